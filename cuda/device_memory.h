// SPDX-License-Identifier: MIT
// How memory of a CUDA device is cut. Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sharpi::cuda {

/// The driver hands out device memory in pieces of this size.
inline constexpr uint64_t kDeviceGranule = 2ull << 20;

}  // namespace sharpi::cuda
