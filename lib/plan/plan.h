// SPDX-License-Identifier: MIT
// A plan: where every block of a model runs and every byte that will be taken, from the file's
// header alone. The sizes come from the tiers' own sizing functions, which their allocators use
// too. Thread rule: immutable after creation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/adapter_file.h"
#include "model/model_spec.h"
#include "plan/block_placement.h"
#include "plan/devices.h"
#include "plan/shapes.h"
#include "plan/tier_sizer.h"
#include "sharpi.h"

namespace sharpi {

/// The placement of a call of many rows, in which weights stream: FFN blocks and routed experts of
/// the host run on a device, that of their layer's mixer or, where the mixer is on the host, the
/// device of the nearest layer before it. The head stays where it is, because a call wants few of
/// its rows, and reading it costs less than sending it. Equal to `placement` where nothing streams:
/// no block is on a device, chunks are too short, or results must not depend on the number of rows
/// (`deterministic`).
Placement streamed_placement(const ModelSpec& spec, const Placement& placement,
                             const ModelShape& model);
/// Whether that placement differs.
bool streams_weights(const ModelSpec& spec, const Placement& placement, const ModelShape& model);
/// Bytes/s of device memory, of the link to it, and of the host's memory; 0 = not known.
struct Rates {
  double device = 0, pcie = 0, host = 0;
};

/// Bytes that one decoded token reads of one device's memory: weights, and KV rows and recurrent
/// state at the end of the context. Routed experts of the host count as the host's, even if slots
/// hold some of them.
struct TokenBytes {
  uint64_t weights = 0, rows = 0;
};
TokenBytes token_bytes(const ModelSpec& spec, const Placement& placement,
                       const SessionShape& session, DeviceIndex device);

/// Environment values a session template may take; empty strings = unset.
struct PlanEnvironment {
  std::string kv_dtype, budget, window, recency, device;
  static PlanEnvironment read();  // SHARPI_KV_DTYPE, SHARPI_SNAPKV_*, SHARPI_DEVICE
};

/// What a plan asks of the machine besides sizes.
class PlanMachine {
 public:
  virtual ~PlanMachine() = default;
  /// "no GPU (...)".
  virtual std::string why_no_device() const { return "no GPU"; }
  /// Rates of the host and a GPU, measured by the first call that asks for them.
  virtual Result<Rates> measured_rates(uint32_t device) const = 0;
};

struct Plan {
  std::shared_ptr<const ModelSpec> spec;
  std::shared_ptr<const ModelSpec> draft_spec;  // of the model that drafts for it; null = none
  /// Why the draft model is on the CPU though the head is on a GPU; empty = it is where the head
  /// is.
  std::string draft_on_host;
  Placement placement;
  std::vector<PlanDevice> devices;  // that blocks may go to, the host first
  ModelShape model;
  std::shared_ptr<const std::vector<AdapterFile>> adapters;  // that the request names; null = none
  SessionShape session;
  std::string placement_reason;  // why an automatic placement left the GPU out; empty = it did not
  std::vector<std::string> fallbacks;  // what `auto` gave up to fit, one sentence each
  Rates rates;                         // used; 0 = not needed by this plan
  uint64_t expert_slot_bytes = 0;      // of one slot; 0 = there can be none
  uint32_t split = SHARPI_SPLIT_FEWEST;
  bool n_ctx_is_auto = false, narrowed = false;
  uint64_t capture_bytes = 0;  // of capture_bytes() below
  bool session_only = false;   // made by sharpi_plan_session
  std::vector<MemoryRow> rows;
  uint64_t file_fingerprint = 0;

  /// Whether blocks are placed on the device of a sizer.
  bool uses(const TierSizer& sizer) const { return placement.uses(sizer.device()); }
  /// One of `devices`; null = there is no such.
  const PlanDevice* device(DeviceIndex index) const;
  /// SHARPI_TIER_* of a device; 0 = none of this plan's.
  uint32_t tier_of(DeviceIndex index) const;
  /// Rows of the model, and of a session of some shape, on a device.
  std::vector<MemoryRow> model_rows(const TierSizer& sizer) const;
  std::vector<MemoryRow> session_rows(const TierSizer& sizer, const SessionShape& shape) const;
  std::vector<MemoryRow> adapter_rows(const TierSizer& sizer, const AdapterFile& adapter) const;
  sharpi_plan_summary summary() const;
  std::vector<sharpi_plan_device> device_rows() const;
  std::string json() const;
};

/// The plan as the tier of one device gets it (Placement::seen_from()).
std::shared_ptr<const Plan> seen_from(DeviceIndex device, std::shared_ptr<const Plan> plan);

/// Seconds that a token takes to read its weights and, with `full`, its rows too, and for its row
/// to go from device to device; 0 = a rate that this depends on is not known.
double token_seconds(const Plan& plan, bool full);
/// For a line with one letter a layer: c = the host, g, h, i, ... = the devices with blocks in the
/// order in which a token comes to them.
char device_letter(const Placement& placement, DeviceIndex device);
/// What a layer stores by a plan: its kind, tiers, dtypes and capacity. kInvalidArgument: no such
/// layer.
Status describe_layer(const Plan& plan, uint32_t layer, sharpi_layer_info* out);

/// Solves a plan. `sizers`: the tiers of this context, CPU first. `params` is complete and of
/// current size. Without a `machine`, rates that are not given stay unknown. `draft`: the model of
/// draft_path, null = none; `adapters`: those that it names. Fails as sharpi_plan_create()
/// documents.
Result<std::shared_ptr<const Plan>> make_plan(std::shared_ptr<const ModelSpec> spec,
                                              const std::vector<const TierSizer*>& sizers,
                                              const sharpi_plan_params& params,
                                              const PlanEnvironment& environment,
                                              const PlanMachine* machine = nullptr,
                                              std::shared_ptr<const ModelSpec> draft = nullptr,
                                              std::span<const AdapterFile> adapters = {});

/// What the template's capture window takes of a session, on all tiers, or a window of 64 would.
uint64_t capture_bytes(const std::vector<const TierSizer*>& sizers, const Plan& plan);
/// Bytes of a device's memory that the rows of a model take, the worst moment of loading included.
uint64_t model_bytes(const std::vector<MemoryRow>& rows, DeviceIndex device);
/// What the rows of a priced plan come to there, all of its sessions and the worst moment of
/// loading included.
uint64_t peak_bytes(const Plan& plan, DeviceIndex device);
}  // namespace sharpi
