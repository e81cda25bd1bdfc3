#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the build, checks the list of files, and moves the prefix to where the other tests find
# it, so that nothing can depend on the place of installation:
# install.sh cmake build prefix libdir includedir version [modules...]
set -euo pipefail
export LC_ALL=C
cmake=$1 build=$2 prefix=$3 libdir=$4 includedir=$5 version=$6
first="$prefix.first"
rm -rf "$first" "$prefix"
"$cmake" --install "$build" --prefix "$first" > /dev/null
shift 6

expected=$(grep . << EOF | sort
$includedir/sharpi.h
$libdir/cmake/sharpi/sharpi-config-version.cmake
$libdir/cmake/sharpi/sharpi-config.cmake
$libdir/cmake/sharpi/sharpi-shared-BUILD.cmake
$libdir/cmake/sharpi/sharpi-shared.cmake
$libdir/cmake/sharpi/sharpi-static-BUILD.cmake
$libdir/cmake/sharpi/sharpi-static.cmake
$libdir/libsharpi.a
$libdir/libsharpi.so
$libdir/libsharpi.so.${version%%.*}
$libdir/libsharpi.so.$version
$libdir/pkgconfig/sharpi-static.pc
$libdir/pkgconfig/sharpi.pc
$(for module; do echo "$libdir/$module"; done)
EOF
)
# CMake names one file of each export after the build type.
installed=$(cd "$first" && find . ! -type d | sed 's|^\./||' |
            sed -E 's/(sharpi-(shared|static))-[a-z]+\.cmake/\1-BUILD.cmake/' | sort)
diff <(echo "$expected") <(echo "$installed") || { echo "the installed files differ"; exit 1; }

# No installed text may name this machine's folders.
if grep -rlIF -e "$build" -e "$first" "$first"; then
  echo "these files name the build folder or the prefix"
  exit 1
fi
mv "$first" "$prefix"
echo "$(wc -l <<< "$installed") files"
