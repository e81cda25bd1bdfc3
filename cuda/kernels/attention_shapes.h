// SPDX-License-Identifier: MIT
// Sizes that the attention kernels and the plans of their launches share. Plain C++.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/kv_dtype.h"
#include "cuda/kernels/host_device.h"

namespace sharpi::cuda {

/// Of an element of a stored row, scales apart.
SHARPI_HOST_DEVICE constexpr uint32_t element_bytes(KvDtype type) {
  return type == KvDtype::kF32 ? 4 : type == KvDtype::kBf16 ? 2 : 1;
}

/// Query vectors of a split block at most, and keys of a tile of the split kernels.
constexpr uint32_t kSplitVectors = 16, kSplitTile = 16;

}  // namespace sharpi::cuda
