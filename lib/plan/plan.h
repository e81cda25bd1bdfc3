// SPDX-License-Identifier: MIT
// A plan: where every block of a model runs and every byte that will be taken, from the file's
// header alone. The sizes come from the tiers' own sizing functions, which their allocators use
// too. Thread rule: immutable after creation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.h"
#include "base/status.h"
#include "kv/kv_layout.h"
#include "model/model_spec.h"
#include "plan/block_placement.h"
#include "plan/devices.h"
#include "sharpi.h"

namespace sharpi {

/// The session template with everything resolved.
struct SessionShape {
  uint32_t n_ctx = 0;
  std::vector<KvDtypePair> dtypes;  // per layer
  uint32_t rewind = kDefaultRewind, n_checkpoints = 0;
  uint32_t kv_budget = 0, prompt_budget = 0, capture_window = 0;
  uint32_t recency = SHARPI_UNSET, sinks = SHARPI_UNSET;  // UNSET = what the budget suggests
  sharpi_policy policy = SHARPI_POLICY_AUTO;
  bool lookahead = true, per_layer_budgets = false;
  std::vector<int32_t> probe;
  uint32_t replay_every = 0;  // queries from one that gives replay scores to the next; 0 = none
  uint32_t n_draft = 0, drafters = 0;   // most drafts of a pass; SHARPI_DRAFT_*: its own drafters
  uint32_t n_draft_vocab = 0;           // MTP drafts tokens with ids below it; 0 = all
  uint32_t first_slots = SHARPI_UNSET;  // of capacity(), committed at first; a fork needs no more
  /// Slots of full-attention layers committed at creation.
  uint32_t capacity(uint32_t n_chunk) const;
};

/// Queries that the observer rows (look-ahead or probe) and the scoring scratch of such a session
/// take; 0 = it has neither.
uint32_t score_queries(const SessionShape& session);

/// Inputs of a plan that do not belong to a session.
struct ModelShape {
  bool exact = false, deterministic = false;
  uint32_t n_chunk = 512, max_batch = kDefaultMaxBatch, max_logit_rows = kDefaultMaxLogitRows;
  uint32_t max_concurrent = 1, n_sessions = 1;
  /// Rows of a call from which weights stream; 0 = measured at load, SHARPI_UNSET = never.
  uint32_t stream_rows = SHARPI_UNSET;
  bool copy_weights = false;  // those in host memory are copies, not pages of the file
  /// Rows of a call that may want logits.
  uint32_t head_rows() const { return max_logit_rows > max_batch ? max_logit_rows : max_batch; }
  uint32_t max_rows() const { return n_chunk > max_batch ? n_chunk : max_batch; }
};

/// The placement of a call of many rows: FFN blocks and routed experts on the host run where their
/// layer's mixer is, or that of the last layer before it that is on a device, their weights
/// streamed. Equal to `placement` where nothing streams: nothing is on a device, chunks are too
/// short, or results must not depend on the number of rows (`deterministic`). The head stays: a
/// call wants few of its rows, and reading it costs less than sending it.
Placement streamed_placement(const ModelSpec& spec, const Placement& placement,
                             const ModelShape& model);
/// Whether that placement differs.
bool streams_weights(const ModelSpec& spec, const Placement& placement, const ModelShape& model);
/// Bytes/s of device memory, of the link to it, and of the host's memory; 0 = not known.
struct Rates {
  double device = 0, pcie = 0, host = 0;
};

/// What one decoded token reads of one device's memory: weights (experts in slots are counted where
/// they are from), and KV rows and states at the end of the context.
struct TokenBytes {
  uint64_t weights = 0, rows = 0;
};
TokenBytes token_bytes(const ModelSpec& spec, const Placement& placement,
                       const SessionShape& session, DeviceIndex device);

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
  /// kUnsupported naming the layer and what this tier cannot do of the blocks placed on it.
  virtual Status check_model(const ModelSpec&, const Placement&) const { return Status::ok(); }
  /// kUnsupported where this device cannot have a part of a model of which `others`, none of them
  /// the host, have parts too.
  virtual Status check_beside(const std::vector<const TierSizer*>& others) const;
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
};

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
  /// Why that one is on the CPU though the head may be on a GPU; empty = it is where the head is.
  std::string draft_on_host;
  Placement placement;
  std::vector<PlanDevice> devices;  // that blocks may go to, the host first
  ModelShape model;
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
/// draft_path, null = none. Fails as sharpi_plan_create() documents.
Result<std::shared_ptr<const Plan>> make_plan(std::shared_ptr<const ModelSpec> spec,
                                              const std::vector<const TierSizer*>& sizers,
                                              const sharpi_plan_params& params,
                                              const PlanEnvironment& environment,
                                              const PlanMachine* machine = nullptr,
                                              std::shared_ptr<const ModelSpec> draft = nullptr);

/// KV dtypes of every layer, and whether `auto` decided any of them.
struct SessionDtypes {
  std::vector<KvDtypePair> per_layer;
  bool any_auto = false;
};
/// Explicit parameter over environment over `automatic`. Layers on the CPU beside a GPU with
/// attention layers are the tail: f32 unless their own parameter says otherwise.
Result<SessionDtypes> resolve_dtypes(const ModelSpec& spec, const Placement& placement,
                                     const sharpi_session_params& params,
                                     const PlanEnvironment& environment, KvDtype automatic);
/// All of a template but dtypes; n_ctx may stay SHARPI_UNSET. Pre: each field is in its range.
Result<SessionShape> resolve_session_shape(const ModelSpec& spec,
                                           const sharpi_session_params& params,
                                           const PlanEnvironment& environment);
/// A session of a loaded model: its template against what the plan priced.
Result<SessionShape> resolve_session(const ModelSpec& spec, const Placement& placement,
                                     const SessionShape& priced,
                                     const sharpi_session_params& params,
                                     const PlanEnvironment& environment);
/// kUnsupported where a session of this shape captures replay scores of a layer that is on a
/// device.
Status check_replay_placement(const ModelSpec& spec, const Placement& placement,
                              const SessionShape& session);
/// kInvalidArgument where rows that stay unscored are more than what BUDGET_AUTO may come to.
Status check_automatic_budget(const SessionShape& s);
/// Bytes that the engine itself takes for a session, by what they are for; 0 = none.
struct EngineBytes {
  uint64_t history = 0, sampler = 0, checkpoint_logits = 0, compaction_tables = 0, ngram_index = 0,
           mtp_queue = 0, key_shift = 0;
};
std::vector<MemoryRow> engine_rows(const EngineBytes& bytes);
/// Of the n-gram drafter: heads of its chains, a power of two, beside one entry a token.
inline uint64_t ngram_buckets(uint32_t n_ctx) {
  return std::bit_ceil(std::max<uint64_t>(64, n_ctx));
}
uint64_t ngram_index_bytes(uint32_t n_ctx);
/// The rows of what the engine takes for a session (token history, sampler, tables). n_chunk is the
/// plan's: a bounded session holds as many rows beside its budget.
std::vector<MemoryRow> engine_session_rows(const ModelSpec& spec, const SessionShape& session,
                                           uint32_t n_chunk);
/// The engine's tables of a session that may compact: row scores, keep lists and kept positions for
/// every KV head, and what selecting one list needs.
uint64_t compaction_table_bytes(const ModelSpec& spec, const SessionShape& session,
                                uint32_t n_chunk);
/// What the template's capture window takes of a session, on all tiers, or a window of 64 would.
uint64_t capture_bytes(const std::vector<const TierSizer*>& sizers, const Plan& plan);
/// Bytes of a device's memory that the rows of a model take, the worst moment of loading included.
uint64_t model_bytes(const std::vector<MemoryRow>& rows, DeviceIndex device);
/// What the rows of a priced plan come to there, all of its sessions and the worst moment of
/// loading included.
uint64_t peak_bytes(const Plan& plan, DeviceIndex device);
/// Whether a row is in a device's memory: pinned memory is the host's, whoever takes it.
bool is_of(const MemoryRow& row, DeviceIndex device);
/// kDoesNotFit naming the row that is short when `wanted` exceeds what `priced` took.
Status check_within(const std::vector<MemoryRow>& priced, const std::vector<MemoryRow>& wanted);

}  // namespace sharpi
