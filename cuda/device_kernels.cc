// SPDX-License-Identifier: MIT
#include "cuda/device_kernels.h"

#include "cuda/device.h"
#include "cuda/kernels/kv/kv_archive.h"
#include "cuda/kernels/kv/kv_move.h"
#include "cuda/kernels/kv/kv_replay.h"
#include "cuda/kernels/kv/kv_score.h"
#include "cuda/kernels/kv/kv_select.h"
#include "cuda/kernels/moe/gather_experts.h"
#include "cuda/kernels/products/weight_layout.h"
#include "cuda/kernels/sampling/sampling.h"
#include "cuda/queue.h"
#include "cuda/weight_matrix.h"

namespace sharpi::cuda {
namespace {

using device::Queue;

class CudaKernels final : public device::DeviceKernels {
 public:
  explicit CudaKernels(const Device& device) : device_(device) {}

  uint64_t layout_unit(const TensorRef& w) const override {
    return layout_of(w) == WeightLayout::kTiles ? kPanelRows * w.row_bytes() : 0;
  }
  uint64_t most_layout_unit(uint64_t row_bytes) const override { return kPanelRows * row_bytes; }
  Status lay_out(const TensorRef& w, const std::byte* from, std::byte* to, uint64_t bytes,
                 const Queue& queue) const override {
    RepackParams p;
    p.type = w.tensor->type;
    p.n_in = static_cast<uint32_t>(w.n_in);
    p.n_weight_rows = bytes / w.row_bytes();
    p.src = from;
    p.dst = to;
    return device_.settle(launch_repack(p, stream_of(queue)));
  }
  uint32_t max_gathered() const override { return kMaxExperts; }
  Status gather(const device::GatherParams& p, const Queue& queue) const override {
    GatherExpertsParams g;
    g.slots = p.slots;
    g.stride = p.stride;
    g.to = p.to;
    g.bytes = p.bytes;
    for (const device::GatherParams::Pair& pair : p.pairs) {
      g.slot[g.n] = pair.slot;
      g.expert[g.n++] = static_cast<uint16_t>(pair.expert);
    }
    return device_.settle(launch_gather_experts(g, stream_of(queue)));
  }

  Status move_rows(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t max_bytes,
                   const Queue& queue) const override {
    return device_.settle(launch_kv_move(jobs, n_jobs, max_bytes, stream_of(queue)));
  }

  bool keeps_by_head() const override { return true; }
  Status move_head_rows(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t max_bytes,
                        const Queue& queue) const override {
    return device_.settle(launch_kv_head_move(jobs, n_jobs, max_bytes, stream_of(queue)));
  }
  Status take_apart(const device::ApartParams& p, const Queue& queue) const override {
    return device_.settle(launch_kv_take_apart(p, stream_of(queue)));
  }
  Status move_units(const device::UnitMoveParams& p, const Queue& queue) const override {
    return device_.settle(launch_kv_move_units(p, stream_of(queue)));
  }

  Status copy_rows(const device::RowCopyParams& p, const Queue& queue) const override {
    return device_.settle(launch_kv_copy(p, stream_of(queue)));
  }
  Status bound_keys(const device::KeyBoundsParams& p, const Queue& queue) const override {
    return device_.settle(launch_key_bounds(p, stream_of(queue)));
  }
  Status score_bounds(const device::BoundsParams& p, const Queue& queue) const override {
    return device_.settle(launch_kv_bounds(p, stream_of(queue)));
  }

  uint32_t most_best(uint32_t n_vocab) const override { return cuda::most_best(n_vocab); }
  uint64_t best_bytes(uint32_t n_rows, uint32_t n_vocab, uint32_t k) const override {
    return sampling_workspace_bytes(n_rows, n_vocab, k);
  }
  Status find_best(const device::BestParams& p, const Queue& queue) const override {
    return device_.settle(p.k == 1 ? find_first(p, queue) : find_several(p, queue));
  }

  uint64_t score_bytes(uint32_t n_slots, uint32_t n_queries, uint32_t n_heads, uint32_t n_kv_heads,
                       uint32_t head_dim) const override {
    return score_workspace_bytes(n_slots, n_queries, n_heads, n_kv_heads, head_dim);
  }
  Status score(const ScoreParams& p, const Queue& queue) const override {
    return device_.settle(launch_score(device_.profile(), p, stream_of(queue)));
  }
  uint64_t norm_bytes(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim) const override {
    return value_norm_workspace_bytes(n_heads, n_kv_heads, head_dim);
  }
  Status value_norms(const device::NormParams& p, const Queue& queue) const override {
    ValueNormParams v;
    v.kv = p.kv;
    v.n_slots = p.n_slots;
    v.n_heads = p.n_heads;
    v.first_kv = p.first_kv;
    v.n_kv = p.n_kv;
    if (p.o_data != nullptr) v.o = matrix_of(*p.o, p.o_data);
    if (p.map_data != nullptr) v.map = matrix_of(*p.map, p.map_data);
    v.map_first = p.map_first;
    v.n_outputs = p.n_outputs;
    v.norms = p.norms;
    v.workspace = p.workspace;
    v.workspace_bytes = p.workspace_bytes;
    return device_.settle(launch_value_norms(device_.profile(), v, stream_of(queue)));
  }
  Status replay_scores(const device::ReplayParams& p, const Queue& queue) const override {
    return device_.settle(launch_replay_scores(device_.profile(), p, stream_of(queue)));
  }
  Status join_terms(const JoinParams& p, const Queue& queue) const override {
    return device_.settle(launch_join_terms(p, stream_of(queue)));
  }
  Status share_hits(const HeldTerms& t, const RowPositions& at, float* shared,
                    const Queue& queue) const override {
    return device_.settle(launch_share_hits(t, at, shared, stream_of(queue)));
  }
  Status take_hits(const HeldTerms& t, const RowPositions& at, const float* shared,
                   const Queue& queue) const override {
    return device_.settle(launch_take_hits(t, at, shared, stream_of(queue)));
  }
  Status select(const SelectParams& p, const Queue& queue) const override {
    return device_.settle(launch_select(p, stream_of(queue)));
  }

 private:
  static Status find_first(const device::BestParams& p, const Queue& queue) {
    ArgmaxParams a;
    a.logits = p.logits;
    a.stride = a.n_vocab = p.n_vocab;
    a.n_rows = p.n_rows;
    a.allowed = p.allowed;
    a.values = p.values;
    a.ids = p.ids;
    a.workspace = p.workspace;
    a.workspace_bytes = p.workspace_bytes;
    return launch_argmax(a, stream_of(queue));
  }
  static Status find_several(const device::BestParams& p, const Queue& queue) {
    TopKParams t;
    t.logits = p.logits;
    t.stride = t.n_vocab = p.n_vocab;
    t.n_rows = p.n_rows;
    t.k = p.k;
    t.allowed = p.allowed;
    t.values = p.values;
    t.ids = p.ids;
    t.workspace = p.workspace;
    t.workspace_bytes = p.workspace_bytes;
    return launch_top_k(t, stream_of(queue));
  }
  const Device& device_;
};

}  // namespace

std::unique_ptr<device::DeviceKernels> make_kernels(const Device& device) {
  return std::make_unique<CudaKernels>(device);
}

}  // namespace sharpi::cuda
