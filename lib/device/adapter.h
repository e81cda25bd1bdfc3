// SPDX-License-Identifier: MIT
// A device's part of an adapter: the pairs of the blocks that run there, those whose weights stream
// to it among them, in one block of memory behind a table of them, which kernels read.
// Thread rule: immutable after load().
#pragma once

#include <memory>
#include <vector>

#include "device/batch.h"
#include "device/loaded_model.h"
#include "device/memory.h"
#include "tier/adapter_weights.h"

namespace sharpi::device {

class DeviceAdapter final : public AdapterPart {
 public:
  /// Its row; none where no block of the device has a pair.
  static std::vector<MemoryRow> plan_rows(const Device& device, const ModelSpec& spec,
                                          const Placement& placement, const ModelShape& model,
                                          const AdapterFile& adapter);
  /// Null where plan_rows() has none. Fails as read_adapter_rows(); kDoesNotFit: it is larger than
  /// any block of the device.
  static Result<std::unique_ptr<DeviceAdapter>> load(const LoadedModel& model,
                                                     const AdapterFile& adapter);
  ~DeviceAdapter() override;
  /// On the device, by the index of a weight in the model's file.
  const AdapterEntry* table() const { return memory_.as<AdapterEntry>(); }
  MemoryRow memory_row() const override;

 private:
  DeviceAdapter() = default;
  std::shared_ptr<Device> device_;
  MemoryRow row_{};
  DeviceBuffer memory_;
};

/// The most adapters that a sequence of the submission has.
uint32_t most_adapters(const Submission& rows);

}  // namespace sharpi::device
