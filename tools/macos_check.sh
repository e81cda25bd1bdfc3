#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The library and the example programs for macOS 13, compiled and linked here by the Clang of the Python
# package `ziglang`: macos_check.sh [arm64|x86_64...] (default: both), into `build-macos`. What the library
# exports is held against the header, what it needs against the libraries of the system. Nothing of it is
# run: no such machine was ever at hand. Exit status 77 where the package cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/ci/common.sh
build=build-macos
processors=("$@")
((${#processors[@]})) || processors=(arm64 x86_64)
tools/setup/packages.sh macos
fetched=$(fetched_python zig ziglang ziglang) || exit "$kSkipped"
zig=$("$fetched/bin/python3" -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / "zig")')

# Functions that the header declares, and names that a library exports, without the underscore of this
# system. The package's linker does not know lists of symbols, so what is exported here is what the compiler
# left visible, two marks of the linker and the package's own operators new and delete, which would be in a library
# of the system there. Apple's takes the list of lib/CMakeLists.txt.
declared=$(gcc -E -P -x c include/sharpi.h | grep -oE '\bsharpi_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u)
exports() {
  llvm-objdump --macho --exports-trie "$1" | sed -nE 's/^0x[0-9A-F]+ +_//p' |
    grep -vxE '_mh_dylib_header|__dso_handle|_Z(da|dl|na|nw)[A-Za-z0-9_]* \[weak_def\]' | sort -u
}
# The compiler's command is a script in this checkout; a compiler cache goes by what it says and starts.
version=$("$zig" version)
for processor in "${processors[@]}"; do
  folder=$build/$processor
  mkdir -p "$folder"
  tools/setup/macos.sh "$folder/root" "$processor" "$zig"
  CCACHE_COMPILERCHECK="string:zig $version $(cksum < "$folder/root/bin/c++")"
  export CCACHE_COMPILERCHECK
  cmake --preset release -B "$folder/release" --toolchain "$PWD/cmake/toolchains/macos.cmake" \
    -DSHARPI_MACOS_ROOT="$(realpath "$folder/root")" -DSHARPI_MACOS_PROCESSOR="$processor" -DSHARPI_TESTS=OFF \
    -DSHARPI_INSTALL=OFF -DSHARPI_WERROR=ON > "$folder/configure.log" 2>&1 || { cat "$folder/configure.log"; exit 1; }
  cmake --build "$folder/release" -j "$jobs" --target sharpi sharpi_static generate chat compact plan \
    > "$folder/build.log" 2>&1 || { grep -E 'error|FAILED' "$folder/build.log" | head -n 40; exit 1; }
  library=$folder/release/lib/libsharpi.1.dylib
  difference=$(diff <(echo "$declared") <(exports "$library")) ||
    { echo "declared (<) and exported (>) functions differ on $processor:"; echo "$difference"; exit 1; }
  foreign=$(llvm-objdump --macho --dylibs-used "$library" | sed -nE 's/^\s+(\S+) \(compat.*/\1/p' |
    grep -vxE '(@rpath/)?libsharpi\.1\.dylib|/usr/lib/libSystem\.B\.dylib' || true)
  [[ -z $foreign ]] || { echo "$library needs $foreign"; exit 1; }
  llvm-objdump --macho --private-header "$library" | grep -qiE "${processor/x86_64/x86_64}.* DYLIB" ||
    { llvm-objdump --macho --private-header "$library"; echo "not a library for $processor"; exit 1; }
  echo "macOS on $processor: $(stat -L -c %s "$library") bytes, $(wc -l <<< "$declared") functions exported as declared; compiled, not run"
done
