#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A project whose only language is C has libsharpi as a part of itself, and links the archive. The archive
# is the one that this build has made; compiling it again takes minutes and would show no more:
# subdirectory_c.sh source-tree cc cmake archive cuda model work-folder
set -euo pipefail
export LC_ALL=C
tree=$1 cc=$2 cmake=$3 archive=$4 cuda=$5 model=$6 work=$7
command -v make > /dev/null || { echo "skipped: no make on this machine"; exit 77; }
rm -rf "$work"
mkdir -p "$work/project"
cat > "$work/project/CMakeLists.txt" << 'PROJECT'
cmake_minimum_required(VERSION 3.25)
project(host LANGUAGES C)
add_subdirectory("${TREE}" libsharpi)
add_executable(host "${TREE}/tests/package/consumer/main.c")
target_link_libraries(host PRIVATE sharpi::static)
PROJECT
"$cmake" -S "$work/project" -B "$work/build" -G "Unix Makefiles" "-DTREE=$tree" \
  "-DCMAKE_C_COMPILER=$cc" "-DSHARPI_CUDA=$cuda" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
grep -qx "SHARPI_UNITY:BOOL=ON" "$work/build/CMakeCache.txt" ||
  { echo "a part of another project is not compiled several sources at a time"; exit 1; }

# The host's own object, then the link as CMake wrote it down.
cd "$work/build"
make -f CMakeFiles/host.dir/build.make CMakeFiles/host.dir/depend > "$work/log" 2>&1 || true
object=$(sed -nE 's/.* (CMakeFiles\/host\.dir\/[^ ]*\.o).*/\1/p' CMakeFiles/host.dir/link.txt)
make -f CMakeFiles/host.dir/build.make "$object" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
mkdir -p libsharpi/lib
cp "$archive" libsharpi/lib/
sh CMakeFiles/host.dir/link.txt > "$work/log" 2>&1 || { head -n 5 "$work/log"; exit 1; }
./host "$model"
