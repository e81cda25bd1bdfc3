#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The CUDA tier compiles for one architecture, with the warnings of host code as errors, and so does
# every test program that has a part on a GPU; the library names no CUDA library and works on a
# machine without a device.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if ! command -v nvcc > /dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]]; then
  echo "no nvcc on this machine"
  exit "$kSkipped"
fi
# Into the folder of `make test`, whose library and tests are compiled already.
configure_tested -DSHARPI_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90
build build sharpi sharpi_static tests_cuda cuda_checks api_misuse_test
build/tests/api/api_misuse_test > /dev/null  # among others that the library names this tier
ctest --test-dir build --output-on-failure -j "$jobs" -R '^abi\.' | tail -n 3
# Every compiled kernel can be launched: registers, threads, static shared memory. The disassembler is
# no part of every toolkit; the oldest one that is promised has it, and reads images of later ones.
disassembler=$(command -v cuobjdump || true)
if [[ -z $disassembler ]]; then
  toolkit=$kFetched/oldest-cuda
  tools/setup/oldest_cuda.sh "$toolkit" && disassembler=$toolkit/bin/cuobjdump
fi
if [[ -n $disassembler ]]; then
  mapfile -t images < <(find build/cuda -name '*.cu.o' | sort)
  tools/ci/cuda_images.py --cuobjdump "$disassembler" --architectures 90,90a --every-kernel \
    "${images[@]}"
else
  echo "no cuobjdump: the compiled kernels are not checked"
fi
# What needs a device is skipped without one, and says so by its status; what plans for devices on
# paper runs everywhere.
n=0
while read -r program; do
  echo "${program##*/}"
  status=0
  "$program" --gtest_brief=1 || status=$?
  ((status == 0 || status == kSkipped)) || exit "$status"
  n=$((n + 1))
done < <(grep /tests/cuda/ build/tests_cuda.txt)
for program in build/tests/cuda/*_check; do
  status=0
  "$program" test least || status=$?
  ((status == 0 || status == kSkipped)) || exit "$status"
done
((n > 0)) || { echo "no test program of the CUDA tier"; exit 1; }
