#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The CUDA tier compiles with the oldest toolkit that is promised (cuda/tier.cmake): all host
# code, and every kernel with dynamic shared memory, to machine code of 8.9, which can be launched (the
# other images that CI sees are of 9.0); an older toolkit is refused. The toolkit is
# kept beside the compiler cache, so only the first run of a machine fetches it.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

toolkit=$kFetched/oldest-cuda
tools/setup/oldest_cuda.sh "$toolkit"
export CUDACXX=$toolkit/bin/nvcc

quietly cmake --preset cuda -B build-cuda-oldest -DCMAKE_CUDA_ARCHITECTURES=89-real \
  -DSHARPI_TESTS=OFF -DSHARPI_EXAMPLES=OFF -DSHARPI_INSTALL=OFF
# The kernels that kernel_limits.h has a line for, and choosing rows and repacking.
limited=$(sed -nE 's/.*\{"(\w+)", [0-9]+.*/\1/p' cuda/kernels/kernel_limits.h | paste -sd '|')
kernels=$(grep -rlE "\b($limited)\b" cuda/kernels --include='*.cu' | sed -E 's|.*/(\w+)\.cu|\1|' |
  grep -v sm90 | paste -sd '|')'|kv_select|weight_layout'
mapfile -t objects < <(ninja -C build-cuda-oldest -t targets all | cut -d : -f 1 |
  grep -E "sharpi_cuda\.dir/.*\.cc\.o$|sharpi_cuda\.dir/kernels/[a-z]+/($kernels)\.cu\.o$")
((${#objects[@]} > 30)) || { echo "the objects of the tier were not found"; exit 1; }
build build-cuda-oldest "${objects[@]}"
"$CUDACXX" --version | sed -nE "s/.*release ([0-9.]+),.*/${#objects[@]} files with CUDA \1/p"
mapfile -t images < <(find build-cuda-oldest/cuda -name '*.cu.o' | sort)
tools/ci/cuda_images.py --cuobjdump "$toolkit/bin/cuobjdump" --architectures 89 \
  --every-kernel --but 'sm90|warpgroup' "${images[@]}"

# A compiler that says that it is older is refused by its version, before it is tried.
mkdir -p build-cuda-oldest/older
printf '#!/bin/sh\necho "Cuda compilation tools, release 12.3, V12.3.107"\n' \
  > build-cuda-oldest/older/nvcc
chmod +x build-cuda-oldest/older/nvcc
log=build-cuda-oldest/older/log
if CUDACXX=$PWD/build-cuda-oldest/older/nvcc cmake --preset cuda -B build-cuda-oldest/older/build \
  > "$log" 2>&1; then
  echo "a toolkit of 12.3 was taken"
  exit 1
fi
tr -s ' \n' ' ' < "$log" | grep -q 'CUDA toolkit 12.3 .* is too old for the CUDA tier: at least 12.4' ||
  { cat "$log"; exit 1; }
