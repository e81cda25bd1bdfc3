// SPDX-License-Identifier: MIT
// The rows of memory that a plan is made of, and who says how large they are: one TierSizer for
// each device. Thread rule: implementations are immutable but for what is free now.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/adapter_file.h"
#include "model/model_spec.h"
#include "plan/block_placement.h"
#include "plan/devices.h"
#include "plan/shapes.h"
#include "sharpi.h"

namespace sharpi {

using MemoryRow = sharpi_memory_row;
MemoryRow make_row(TierId tier, uint32_t device, uint32_t purpose, uint32_t kind,
                   const std::string& label, uint64_t payload, uint64_t held);

/// What a device would allocate. One implementation per tier; called by the planner and, through
/// the same functions, by the tier's allocator. Placements are as this device sees them
/// (Placement::seen_from()).
class TierSizer {
 public:
  virtual ~TierSizer() = default;
  virtual TierId tier() const = 0;
  /// As sharpi_device_info() counts; 0 = the host.
  virtual uint32_t device_index() const { return 0; }
  DeviceIndex device() const { return DeviceIndex{device_index()}; }
  virtual uint64_t free_bytes() const = 0;  // now
  virtual uint64_t total_bytes() const = 0;
  virtual std::string device_name() const = 0;
  virtual std::string device_id() const = 0;  // as sharpi_device says
  /// A device that no plan takes by itself, because the host is faster: one made of software.
  virtual bool only_if_named() const { return false; }
  /// Bytes of one expert slot under a placement, alike for all slots; 0 = this tier has none.
  virtual uint64_t expert_slot_bytes(const ModelSpec&, const Placement&) const { return 0; }
  /// Slots that this tier can have at most, whatever is free.
  virtual uint32_t most_expert_slots(const ModelSpec&) const { return UINT32_MAX; }
  /// kUnsupported naming the layer and what this tier cannot do of the blocks placed on it.
  virtual Status check_model(const ModelSpec&, const Placement&) const { return Status::ok(); }
  /// kUnsupported where this device cannot compute for sessions with adapters.
  virtual Status check_adapters() const { return Status::ok(); }
  /// kUnsupported naming a layer of full attention placed on this tier that cannot serve such
  /// sessions: with replay scores, or of so many rows.
  virtual Status check_session(const ModelSpec&, const Placement&, const SessionShape&) const {
    return Status::ok();
  }
  /// kUnsupported where this device cannot have a part of the model of which `others`, none of them
  /// the host, have parts too.
  virtual Status check_beside(const ModelSpec& spec,
                              const std::vector<const TierSizer*>& others) const;
  /// Weights, workspaces, tables of the blocks placed on this tier. Rows that last only as long as
  /// loading does are marked transient.
  virtual std::vector<MemoryRow> model_rows(const ModelSpec& spec, const Placement& placement,
                                            const ModelShape& model,
                                            const SessionShape& session) const = 0;
  /// With ModelShape::copy_weights: copies of the weights that host memory serves. The host's.
  virtual std::vector<MemoryRow> copied_weight_plan_rows(const ModelSpec&, const Placement&) const {
    return {};
  }
  virtual std::vector<MemoryRow> session_rows(const ModelSpec& spec, const Placement& placement,
                                              const ModelShape& model,
                                              const SessionShape& session) const = 0;
  /// What an adapter takes on this device: pairs of the blocks that run here; none without any.
  virtual std::vector<MemoryRow> adapter_rows(const ModelSpec&, const Placement&, const ModelShape&,
                                              const AdapterFile&) const {
    return {};
  }
};
/// Whether a row is in a device's memory: pinned memory is the host's, whoever takes it.
bool is_of(const MemoryRow& row, DeviceIndex device);

}  // namespace sharpi
