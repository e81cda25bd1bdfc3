#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the packages, installs each in a fresh folder, and asks the demo's question through it alone:
# dist.sh [--chroot]. What a language's tools are missing for is skipped by name, and so is .NET's run-time where
# the Python package index, which has one, cannot be reached. --chroot: the .deb in a new system, too (minutes).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
unset LD_LIBRARY_PATH PYTHONPATH SHARPI_LIBRARY
readonly folder=build
[[ -f $folder/build.ninja ]] || configure_tested
quietly make dist BUILD="$folder" CMAKE_FLAGS=-DSHARPI_WERROR=ON
(cd "$folder/dist" && stat -c '%10s %n' -- *)

# Debian has no .NET; a package for Python brings its run-time. The SBOM's validator is one, too.
tools_path=$PATH
if fetched=$(fetched_python dist-venv dotnetcore2,spdx_tools.spdx dotnetcore2 spdx-tools 2> /dev/null); then
  dotnet=$(find "$fetched" -path '*dotnetcore2/bin/dotnet' -type f | head -n 1)
  chmod +x "$dotnet"
  export SHARPI_DOTNET=${SHARPI_DOTNET:-$dotnet}
  tools_path=$fetched/bin:$PATH
fi
export GOCACHE=${GOCACHE:-$kFetched/go}

kinds=(tarball deb nuget-mono nuget-dotnet crates go wheel)
[[ ${1:-} != --chroot ]] || kinds+=(deb-chroot)
failed=0
for kind in "${kinds[@]}"; do
  status=0 path=$PATH
  [[ $kind != tarball ]] || path=$tools_path
  PATH=$path tests/dist/installed.sh "$kind" "$folder/dist" "$folder/dist-test/$kind" < /dev/null || status=$?
  ((status == 0 || status == kSkipped)) || { failed=1; echo "$kind: FAILED ($status)"; }
done

# What was built for other machines answers, too.
tests/dist/other_machines.sh "$folder/dist" "$folder/dist-test/others" || failed=1

# A package that lacks a file is noticed.
lacking=$folder/dist-test/lacking
rm -rf "$lacking"
mkdir -p "$lacking/unpacked"
archive=$(ls "$folder"/dist/libsharpi-[0-9]*-linux-$(uname -m).tar.gz | head -n 1)
tar xzf "$archive" -C "$lacking/unpacked"
rm "$lacking"/unpacked/*/share/doc/sharpi/licenses/PCRE2.txt
tar czf "$lacking/${archive##*/}" -C "$lacking/unpacked" "$(ls "$lacking/unpacked")"
if tests/dist/installed.sh tarball "$lacking" "$lacking/work" > "$lacking/log" 2>&1 ||
  ! grep -q '^< share/doc/sharpi/licenses/PCRE2.txt' "$lacking/log"; then
  echo "an archive without a licence is not noticed:"
  cat "$lacking/log"
  failed=1
fi
exit "$failed"
