// SPDX-License-Identifier: MIT
#include "cuda/step_binding.h"

#include <algorithm>

#include "cuda/weight_matrix.h"

namespace sharpi::cuda {

static_assert(kMaxProductTasks == kMaxMatmulTasks);

MatmulParams Binding::product(const RowProduct& p) const {
  MatmulParams m;
  m.x = row(p.x);
  m.x_stride = p.tasks[0].w->n_in;
  m.n_rows = p.of_head ? n_head_rows_ : n_rows_;
  m.norm_weight = floats(p.norm);
  m.norm_eps = spec_.rms_eps;
  m.n_tasks = p.n_tasks;
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    m.tasks[t] = {matrix(*p.tasks[t].w), row(p.tasks[t].y), p.tasks[t].w->n_out,
                  floats(p.tasks[t].bias)};
  }
  m.epilogue = p.epilogue;
  m.row_scale = p.shared_scale ? row(Buf::kSharedGate) : nullptr;
  m.force_f32 = p.force_f32;
  m.workspace = at(Buf::kKernel);
  m.workspace_bytes = size(Buf::kKernel);
  return m;
}

ChainLink Binding::link(const RowLink& l) const {
  ChainLink link{product(l.product), {}};
  if (!l.sum.adds) return link;
  link.product.x = row(l.sum.x);
  link.branch = branch(l.sum);
  return link;
}

ChainBranch Binding::branch(const RowSum& sum) const {
  return {sum.adds ? row(Buf::kY) : nullptr,
          floats(sum.norm),
          spec_.rms_eps,
          sum.scale,
          row(sum.to),
          sum.share};
}

MoeParams Binding::expert_rows(uint32_t layer, Buf to, bool add) const {
  const LayerSpec& l = spec_.layers[layer];
  MoeParams m;
  m.x = row(Buf::kX);
  m.x_stride = spec_.n_embd;
  m.n_rows = n_rows_;
  m.norm_weight = floats(l.expert_norm());
  m.norm_eps = spec_.rms_eps;
  m.n_used = l.ffn.n_used;
  m.ids = reinterpret_cast<const int32_t*>(at(Buf::kMoeIds));
  m.weights = row(Buf::kMoeWeight);
  m.gate_bias = floats(l.ffn.gate_bias);
  m.up_bias = floats(l.ffn.up_bias);
  m.down_bias = floats(l.ffn.down_bias);
  m.activation = hidden_epilogue(l.ffn);
  m.add = add;
  m.y = row(to);
  m.y_stride = spec_.n_embd;
  m.workspace = at(Buf::kKernel);
  m.workspace_bytes = size(Buf::kKernel);
  return m;
}

MoeParams Binding::experts(uint32_t layer, Buf to, bool add) const {
  const FfnSpec& f = spec_.layers[layer].ffn;
  MoeParams m = expert_rows(layer, to, add);
  const DeviceMatrix first = matrix_if(f.gate);
  m.gate = f.fused_gate_up ? output_slice(first, 0, f.d_ff) : first;
  m.up = f.fused_gate_up ? output_slice(first, f.d_ff, f.d_ff) : matrix(f.up);
  m.down = matrix(f.down);
  return m;
}

MoeStepParams Binding::moe_step(uint32_t layer, Buf to, bool add, const RowProduct* before,
                                const RowProduct* after) const {
  const FfnSpec& f = spec_.layers[layer].ffn;
  MoeStepParams m;
  m.moe = experts(layer, to, add);
  m.ids = reinterpret_cast<int32_t*>(at(Buf::kMoeIds));
  m.weights = row(Buf::kMoeWeight);
  m.router = matrix(f.router);
  m.router_bias = static_cast<bool>(f.router_bias);
  m.other_scores = !f.routes_by_shares();
  m.renormalize = f.renormalize;
  m.sync = at(Buf::kMoeSync);
  m.sync_bytes = size(Buf::kMoeSync);
  if (before != nullptr) m.before = product(*before);
  if (after != nullptr) m.after = product(*after);
  // A post norm is of the routed experts' sum alone.
  if (f.d_shared == 0 || !add) return m;
  m.shared_gate = matrix_if(f.shared_gate);
  m.shared_up = matrix(f.shared_up);
  m.shared_down = matrix(f.shared_down);
  m.shared_gate_inp = floats(f.shared_gate_inp);
  return m;
}

std::byte* PaperBinding::at(Buf b) const {
  constexpr int kApart = 36;  // bits of a buffer's bytes
  return reinterpret_cast<std::byte*>((uintptr_t{1} + static_cast<uintptr_t>(b)) << kApart);
}

DeviceMatrix PaperBinding::matrix(const TensorRef& w) const {
  return matrix_of(w, at(Buf::kCount));
}

const float* PaperBinding::floats(const TensorRef& w) const {
  return w ? row(Buf::kCount) : nullptr;
}

namespace {

/// The kernels' answers, given by what a launch would be on paper.
class PaperKernels final : public StepKernels {
 public:
  explicit PaperKernels(const StepFacts& facts)
      : facts_(facts), paper_(*facts.spec, facts.n_rows, facts.moe_sync_bytes) {}
  uint32_t max_chain_rows() const override { return cuda::max_chain_rows(facts_.config); }
  uint32_t max_chain_links() const override { return kMaxChainLinks; }
  bool chain_takes(const RowLink& link) const override {
    return cuda::chain_takes(facts_.config, paper_.link(link));
  }
  bool chain_fits(std::span<const RowLink> links) const override {
    std::vector<ChainLink> made;
    for (const RowLink& l : links) made.push_back(paper_.link(l));
    ChainTuning tuning;
    tuning.shared_bytes = facts_.chain_bytes;
    return cuda::chain_fits(facts_.config, made.data(), static_cast<uint32_t>(made.size()), tuning);
  }
  bool takes(const ExpertStep& e) const override {
    return moe_step_takes(facts_.config, paper_.moe_step(e.layer, e.to, e.add, e.before, e.after));
  }

 private:
  const StepFacts& facts_;
  const PaperBinding paper_;
};

}  // namespace

StepFacts step_facts(const ModelSpec& spec, const Placement& placement, const KernelConfig& config,
                     uint32_t n_rows) {
  StepFacts f;
  static_cast<PassFacts&>(f) = device::step_facts(spec, placement, config.deterministic, n_rows);
  f.config = config;
  uint32_t hidden = 0, shared = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const FfnSpec& ffn = spec.layers[l].ffn;
    if (ffn.kind != FfnKind::kMoe) continue;
    hidden = std::max(hidden, ffn.n_used * ffn.d_ff);
    shared = std::max(shared, ffn.d_shared);
  }
  if (hidden != 0) f.moe_sync_bytes = moe_step_sync_bytes(spec.n_embd, hidden, shared);
  return f;
}

LaunchList fuse(const SegmentProgram& program, const StepFacts& facts) {
  return device::fuse(program, facts, PaperKernels(facts));
}

}  // namespace sharpi::cuda
