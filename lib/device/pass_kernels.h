// SPDX-License-Identifier: MIT
// The kernels of one model's passes, as a GPU tier brings them: what they need in scratch, what of
// a pass they do at once, and how each launch of a list is made (launches.h).
// Thread rule: immutable after prepare().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/launches.h"
#include "plan/shapes.h"

namespace sharpi::device {

class DeviceSession;
class LoadedModel;
class Queue;
struct Pass;

/// Widths that buffers must serve: the maximum over the blocks placed on this tier.
struct WorkspaceWidths {
  uint64_t q = 0, query = 0, kv = 0, mix = 0, conv = 0, z = 0, heads_v = 0;
  uint64_t ffn = 0, widest_in = 0, widest_out = 0;
  uint32_t n_experts = 0, n_used = 0, d_expert = 0, d_shared = 0;
  uint32_t n_slabs = 0;  // matrices that rows are sorted by: experts, or expert slots
  uint32_t attn_heads = 0, attn_dim = 0, n_half = 0;
  bool has_shared = false, beside_dense = false, parts_experts = false;
  std::vector<const DeltaNetSpec*> deltas;
  std::vector<const Mamba2Spec*> mambas;
};

/// Bytes of the buffers that are the kernels' own.
struct PassScratch {
  uint64_t kernel = 0, attention = 0, moe_sync = 0, chain_sync = 0;
  uint32_t chain_rows = 0;  // of kOtherX; 0 = nothing goes in chains
};

class PassKernels {
 public:
  virtual ~PassKernels() = default;
  /// What calls of `rows` rows, of which head_rows want logits, need of scratch.
  virtual PassScratch scratch(const ModelSpec& spec, const ModelShape& model,
                              const WorkspaceWidths& widths, uint32_t rows,
                              uint32_t head_rows) const = 0;
  /// Matrices of experts that rows can be sorted by at most; whether calls of n_rows rows can read
  /// as many slots.
  virtual uint32_t max_sorted_experts() const = 0;
  virtual bool takes_slots(uint32_t n_slots, uint32_t n_rows) const = 0;
  /// Whether captured steps of n_rows rows go in few launches, and whether blocks of those wait for
  /// each other: Device::launch_mutex().
  virtual bool fuses(uint32_t n_rows) const = 0;
  virtual bool blocks_meet(const ModelSpec& spec) const = 0;

  /// Of an open device, before the first pass.
  virtual Status prepare() = 0;
  /// Whether kernels are compiled when they are first asked for, though it be for a recording: then
  /// steps and a pass of a whole chunk are recorded while a workspace is made, and nothing is run.
  /// keep_compiled() comes behind it.
  virtual bool compiles_late() const { return false; }
  /// Then the kernels of what `record` records on the queue are compiled together in front of that;
  /// what this records is of no use.
  virtual Status compile(const Queue&, const std::function<Status()>&) const {
    return Status::ok();
  }
  virtual void keep_compiled() const {}
  /// Makes the list of a pass; `step`: of one that is recorded.
  virtual LaunchList fuse(const LoadedModel& model, const SegmentProgram& program,
                          const PassFacts& facts, bool step) const = 0;
  /// Everything but kFetchWeights, kReleaseWeights and kLayerEnd.
  virtual Status launch(Pass& p, const LaunchList& list, const Launch& l) const = 0;
  /// The state of a recurrent layer after the session's pending rows, to its working copy. Enqueued
  /// on the model's queue. Thread rule: any thread; of the session it writes that copy only.
  virtual Status replay(const LoadedModel& model, const DeviceSession& session,
                        uint32_t layer) const = 0;
  /// TierModel::paths() as far as kernels go.
  virtual std::string paths(const LoadedModel& model) const = 0;
};

}  // namespace sharpi::device
