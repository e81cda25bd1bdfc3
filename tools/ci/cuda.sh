#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The CUDA tier compiles for one architecture, with the warnings of host code as errors; the library
# names no CUDA library and works on a machine without a device.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if ! command -v nvcc > /dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]]; then
  echo "no nvcc on this machine"
  exit "$kSkipped"
fi
configure cuda -DSHARPI_EXAMPLES=OFF
build build-cuda sharpi sharpi_static no_device_test tiers_test faults_test
tests/abi/dynamic.sh readelf build-cuda/lib/libsharpi.so
tests/abi/exports.sh cc nm include/sharpi.h build-cuda/lib/libsharpi.so
for test in no_device_test tiers_test faults_test; do
  build-cuda/tests/cuda/$test --gtest_brief=1  # the last two are skipped without a device
done
