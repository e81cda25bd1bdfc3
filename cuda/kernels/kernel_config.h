// SPDX-License-Identifier: MIT
// What every launch of a model on one device shares: arithmetic, the device, which kernels. Read by
// launchers of products, attention, experts and delta nets alike.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "cuda/kernels/device_profile.h"

namespace sharpi::cuda {

/// Which kernel products of many rows go to; kAuto is what measured fastest.
enum class GemmPath : uint8_t { kAuto, kMma, kWarpgroup, kCublasLt };

class CublasLt;

/// Made once per model (make_kernel_config(), products/matmul.h).
struct KernelConfig {
  bool exact = false;
  bool deterministic = false;
  bool pdl = false;  // launch with programmatic stream serialization
  DeviceProfile device;
  GemmPath gemm_path = GemmPath::kAuto;  // for tests and measurements
  CublasLt* cublas_lt = nullptr;         // the model's (cublas_lt.h); nullptr: own kernels only
};

}  // namespace sharpi::cuda
