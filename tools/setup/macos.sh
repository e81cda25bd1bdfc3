#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a build for macOS needs, in a folder: macos.sh folder processor zig. The commands of a compiler
# for macOS 13 on that processor (arm64 or x86_64), which are those of the `zig` of the Python package
# `ziglang`, and PCRE2 and utf8proc, compiled by them from the system's own source packages, static.
set -euo pipefail
root=$(mkdir -p "${1:?usage: macos.sh folder processor zig}" && cd "$1" && pwd)
processor=$2 zig=$(realpath "$3")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/source_packages.sh"

mkdir -p "$root/bin"
target=${processor/arm64/aarch64}-macos.13.0
for tool in cc c++ ar ranlib; do
  text=$(printf '#!/bin/sh\nexec "%s" %s "$@"' "$zig" "$tool")
  # This compiler names a processor where others name an architecture with extensions.
  [[ $tool != c* ]] || text=$(cat << COMMAND
#!/bin/bash
for option; do
  shift
  [[ \$option != -march=armv8.2-a* ]] || option=-mcpu=apple_m1\${option#-march=armv8.2-a}
  set -- "\$@" "\$option"
done
exec "$zig" $tool -target $target "\$@"
COMMAND
  )
  # A file that changes would have everything compiled again.
  [[ -f $root/bin/$tool && $(cat "$root/bin/$tool") == "$text" ]] || printf '%s\n' "$text" > "$root/bin/$tool"
  chmod +x "$root/bin/$tool"
done
# Nothing of these libraries is exported by ours.
source_libraries "$root" -DCMAKE_TOOLCHAIN_FILE="$here/../../cmake/toolchains/macos.cmake" \
  -DSHARPI_MACOS_ROOT="$root" -DSHARPI_MACOS_PROCESSOR="$processor" -DCMAKE_C_FLAGS=-fvisibility=hidden
