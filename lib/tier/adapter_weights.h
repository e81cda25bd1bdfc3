// SPDX-License-Identifier: MIT
// An adapter's weights in host memory: f32, whatever the file's types are, each half as the
// products read it. Thread rule: immutable after creation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/memory.h"
#include "model/adapter_file.h"
#include "plan/tier_sizer.h"

namespace sharpi {

/// Of one weight: y += scale * sum_j b[j] (a[j] . x).
struct AdapterProduct {
  const float* a = nullptr;  // [rank][n_in]
  const float* b = nullptr;  // [rank][n_out]
  uint64_t n_in = 0, n_out = 0;
  uint32_t rank = 0;
  float scale = 1.0f;
};

class AdapterWeights {
 public:
  /// kFormat names a tensor with an element that is no finite number, kMismatch: the file became
  /// shorter.
  static Result<std::unique_ptr<AdapterWeights>> create(MemoryMeter& meter,
                                                        const AdapterFile& adapter);
  /// Of the weight with this index in the model's file; null = the adapter leaves it alone.
  const AdapterProduct* find(uint32_t tensor) const {
    return tensor < of_tensor_.size() && of_tensor_[tensor] >= 0
               ? &products_[static_cast<size_t>(of_tensor_[tensor])]
               : nullptr;
  }
  MemoryRow memory_row() const;

 private:
  AdapterWeights() = default;
  MemoryRow row_{};
  HostBuffer memory_;
  std::vector<AdapterProduct> products_;
  std::vector<int32_t> of_tensor_;
};

/// An adapter that a session has chosen, and how much of it.
struct AdapterUse {
  const AdapterWeights* weights = nullptr;
  float scale = 1.0f;
};

}  // namespace sharpi
