// SPDX-License-Identifier: MIT
// A loaded adapter: what each device has of it, of the blocks that run there. Weights are f32,
// whatever the file's types are, each half as the products read it.
// Thread rule: immutable after creation.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "model/adapter_file.h"
#include "plan/devices.h"
#include "plan/tier_sizer.h"

namespace sharpi {

/// What one device has of an adapter; its tier knows what that is.
class AdapterPart {
 public:
  virtual ~AdapterPart() = default;
  virtual MemoryRow memory_row() const = 0;
};

/// The parts by device index; null = no block of the device has a pair.
struct AdapterParts {
  std::array<std::unique_ptr<const AdapterPart>, kMaxDevices> of;
  const AdapterPart* on(DeviceIndex device) const { return of[index_of(device)].get(); }
};

/// Rows [first, first + n) of a half, one at a time; take() gets their number from `first` on.
/// kFormat names a tensor with an element that is no finite number, kMismatch: the file became
/// shorter.
Status read_adapter_rows(
    const GgufFile& file, const GgufTensor& half, uint64_t first, uint64_t n,
    const std::function<Status(uint64_t row, const std::vector<float>& values)>& take);

/// Of one weight: y += scale * sum_j b[j] (a[j] . x).
struct AdapterProduct {
  const float* a = nullptr;  // [rank][n_in]
  const float* b = nullptr;  // [rank][n_out]
  uint64_t n_in = 0, n_out = 0;
  uint32_t rank = 0;
  float scale = 1.0f;
};

/// The host's part.
class AdapterWeights final : public AdapterPart {
 public:
  /// Of the blocks that are placed on the host; null where none of them has a pair. Fails as
  /// read_adapter_rows().
  static Result<std::unique_ptr<AdapterWeights>> create(MemoryMeter& meter,
                                                        const AdapterFile& adapter,
                                                        const Placement& placement);
  /// Of the weight with this index in the model's file; null = the adapter leaves it alone.
  const AdapterProduct* find(uint32_t tensor) const {
    return tensor < of_tensor_.size() && of_tensor_[tensor] >= 0
               ? &products_[static_cast<size_t>(of_tensor_[tensor])]
               : nullptr;
  }
  MemoryRow memory_row() const override;

 private:
  AdapterWeights() = default;
  MemoryRow row_{};
  HostBuffer memory_;
  std::vector<AdapterProduct> products_;
  std::vector<int32_t> of_tensor_;
};

/// An adapter that a session has chosen, and how much of it.
struct AdapterUse {
  const AdapterParts* parts = nullptr;
  float scale = 1.0f;
  /// The host's part; null = it has none.
  const AdapterWeights* on_host() const {
    return static_cast<const AdapterWeights*>(parts->on(DeviceIndex::kHost));
  }
};

}  // namespace sharpi
