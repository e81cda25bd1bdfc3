// SPDX-License-Identifier: MIT
#include "cuda/step_binding.h"

#include "cuda/weight_matrix.h"

namespace sharpi::cuda {

Epilogue gated(const FfnSpec& f) {
  return f.activation == Activation::kSilu ? Epilogue::kSwiGlu : Epilogue::kGeGlu;
}

MatmulParams Binding::product(const RowProduct& p) const {
  MatmulParams m;
  m.x = row(p.x);
  m.x_stride = p.tasks[0].w->n_in;
  m.n_rows = p.of_head ? n_head_rows_ : n_rows_;
  m.norm_weight = floats(p.norm);
  m.norm_eps = spec_.rms_eps;
  m.n_tasks = p.n_tasks;
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    m.tasks[t] = {matrix(*p.tasks[t].w), row(p.tasks[t].y), p.tasks[t].w->n_out};
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
  return {sum.adds ? row(Buf::kY) : nullptr, floats(sum.norm), spec_.rms_eps, sum.scale,
          row(sum.to)};
}

MoeParams Binding::expert_rows(uint32_t layer, Buf to, bool add) const {
  const LayerSpec& l = spec_.layers[layer];
  MoeParams m;
  m.x = row(Buf::kX);
  m.x_stride = spec_.n_embd;
  m.n_rows = n_rows_;
  m.norm_weight = floats(l.ffn_norm);
  m.norm_eps = spec_.rms_eps;
  m.n_used = l.ffn.n_used;
  m.ids = reinterpret_cast<const int32_t*>(at(Buf::kMoeIds));
  m.weights = row(Buf::kMoeWeight);
  m.activation = gated(l.ffn);
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
  const DeviceMatrix first = matrix(f.gate);
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
  m.renormalize = f.renormalize;
  m.sync = at(Buf::kMoeSync);
  m.sync_bytes = size(Buf::kMoeSync);
  if (before != nullptr) m.before = product(*before);
  if (after != nullptr) m.after = product(*after);
  // A post norm is of the routed experts' sum alone.
  if (f.d_shared == 0 || !add) return m;
  m.shared_gate = matrix(f.shared_gate);
  m.shared_up = matrix(f.shared_up);
  m.shared_down = matrix(f.shared_down);
  m.shared_gate_inp = floats(f.shared_gate_inp);
  return m;
}

bool have_room(const PassFacts& facts, const Binding& binding, std::span<const RowLink> links) {
  std::vector<ChainLink> made;
  for (const RowLink& l : links) made.push_back(binding.link(l));
  ChainTuning tuning;
  tuning.shared_bytes = facts.chain_bytes;
  return chain_fits(facts.config, made.data(), static_cast<uint32_t>(made.size()), tuning);
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

}  // namespace sharpi::cuda
