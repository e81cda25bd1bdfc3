#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A project that has libsharpi as a part of itself (add_subdirectory) gets the library, and nothing that it
# did not ask for: no CUDA, no tests, no examples, no rules of installation. Only configures:
# subdirectory.sh source-tree cc cmake generator work-folder
set -euo pipefail
export LC_ALL=C
tree=$1 cc=$2 cmake=$3 generator=$4 work=$5
rm -rf "$work"
mkdir -p "$work/project"

# A compiler of CUDA is at hand, and notes it if it is asked for anything.
cat > "$work/nvcc" << 'NVCC'
#!/bin/sh
echo "$@" >> "$0.calls"
echo "Cuda compilation tools, release 13.0, V13.0.0"
NVCC
chmod +x "$work/nvcc"
cat > "$work/project/CMakeLists.txt" << 'PROJECT'
cmake_minimum_required(VERSION 3.25)
project(host LANGUAGES C CXX)
add_subdirectory("${TREE}" libsharpi)
add_executable(host host.c)
target_link_libraries(host PRIVATE sharpi::sharpi)
add_executable(host_static host.c)
target_link_libraries(host_static PRIVATE sharpi::static)
foreach(unasked sharpi_cuda generate)
  if(TARGET ${unasked})
    message(FATAL_ERROR "the target ${unasked} was not asked for")
  endif()
endforeach()
PROJECT
echo 'int main(void) { return 0; }' > "$work/project/host.c"

CUDACXX=$work/nvcc "$cmake" -S "$work/project" -B "$work/build" -G "$generator" "-DTREE=$tree" \
  "-DCMAKE_C_COMPILER=$cc" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
[[ ! -e $work/nvcc.calls ]] || { echo "CUDA's compiler was asked, unasked: $(< "$work/nvcc.calls")"; exit 1; }
for option in CUDA TESTS EXAMPLES INSTALL BENCH; do
  grep -qx "SHARPI_$option:[A-Z]*=OFF" "$work/build/CMakeCache.txt" ||
    { echo "not off: $(grep "^SHARPI_$option:" "$work/build/CMakeCache.txt")"; exit 1; }
done

# Asked for, the compiler is looked at; that this one cannot compile is then said.
if CUDACXX=$work/nvcc "$cmake" -S "$work/project" -B "$work/asked" -G "$generator" "-DTREE=$tree" \
  "-DCMAKE_C_COMPILER=$cc" -DSHARPI_CUDA=ON > "$work/log" 2>&1; then
  echo "a compiler of CUDA that compiles nothing was accepted"
  exit 1
fi
[[ -e $work/nvcc.calls ]] || { cat "$work/log"; echo "CUDA's compiler was not asked"; exit 1; }
echo "nothing unasked"
