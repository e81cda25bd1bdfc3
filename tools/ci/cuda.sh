#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The CUDA tier compiles for one architecture, with the warnings of host code as errors.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ ! -f cuda/CMakeLists.txt ]]; then
  echo "no CUDA tier in this tree"
  exit "$kSkipped"
fi
if ! command -v nvcc > /dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]]; then
  echo "no nvcc on this machine"
  exit "$kSkipped"
fi
configure cuda
build build-cuda
tests/abi/dynamic.sh readelf build-cuda/lib/libsharpi.so
