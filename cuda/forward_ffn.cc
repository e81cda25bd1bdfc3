// SPDX-License-Identifier: MIT
// Launches of the FFN blocks of the CUDA tier that are no products: routers, experts, the shared
// expert's gate, per-layer inputs.
#include "cuda/cuda_model.h"
#include "cuda/kernels/moe/router.h"
#include "cuda/step_binding.h"

namespace sharpi::cuda {

Status CudaModel::launch_experts(Pass& p, const Binding& at, const LaunchList& list,
                                 const Launch& l) const {
  switch (l.kind) {
    case LaunchKind::kRouter:
      return choose_experts(p, spec().layers[l.layer].ffn);
    case LaunchKind::kSharedGate:
      return shared_gate(p, spec().layers[l.layer]);
    case LaunchKind::kExperts:
      return launch_moe(p.config, at.experts(l.layer, l.to, l.add), p.ws.lane());
    case LaunchKind::kMoeStep: {
      const RowStep* step = list.steps.data() + l.first_step;
      const RowProduct* before = l.has_before ? &step++->product : nullptr;
      const bool has_after = l.n_steps > (l.has_before ? 1u : 0u);
      const RowProduct* after = has_after ? &step->product : nullptr;
      return launch_moe_step(p.config, at.moe_step(l.layer, l.to, l.add, before, after),
                             p.ws.lane());
    }
    case LaunchKind::kSendRows:
      return send_rows(p, l.layer);
    case LaunchKind::kSlotExperts:
      return resident_experts(p, l.layer, at.expert_rows(l.layer, l.to, l.add));
    case LaunchKind::kAnswers:
      return answered_experts(p, l.layer, l.to, l.add);
    default:
      return Status::error(Code::kInternal, "no launch of experts");
  }
}

Status CudaModel::choose_experts(Pass& p, const FfnSpec& f) const {
  RouterParams r;
  r.logits = p.ws.get(Buf::kRouter);
  r.stride = f.n_experts;
  r.n_rows = p.n_rows();
  r.n_experts = f.n_experts;
  r.n_used = f.n_used;
  r.renormalize = f.renormalize;
  r.ids = p.ws.get<int32_t>(Buf::kMoeIds);
  r.weights = p.ws.get(Buf::kMoeWeight);
  r.pdl = p.config.pdl;
  return launch_router(r, p.ws.lane());
}

Status CudaModel::shared_gate(Pass& p, const LayerSpec& l) const {
  SigmoidGateParams g;
  g.x = p.ws.get(Buf::kX);
  g.x_stride = spec().n_embd;
  g.n_rows = p.n_rows();
  g.n_in = spec().n_embd;
  g.norm_weight = floats(l.ffn_norm);
  g.norm_eps = spec().rms_eps;
  g.w = floats(l.ffn.shared_gate_inp);
  g.y = p.ws.get(Buf::kSharedGate);
  g.pdl = p.config.pdl;
  return launch_sigmoid_gate(g, p.ws.lane());
}

bool CudaModel::takes_moe_step(uint32_t layer) const {
  const LayerSpec& l = spec().layers[layer];
  const bool add = !l.ffn_post_norm;
  const PaperBinding paper(spec(), 1, workspace_layout_.size_of(Buf::kMoeSync));
  return (add || l.ffn.d_shared == 0) &&
         moe_step_takes(config_,
                        paper.moe_step(layer, add ? Buf::kX : Buf::kY, add, nullptr, nullptr));
}

Status CudaModel::per_layer_gate(Pass& p, uint32_t layer) const {
  const uint32_t width = spec().d_ple;
  PleGateParams g;
  g.t = p.ws.get(Buf::kPleTmp);
  g.c = p.ws.get(Buf::kPle) + uint64_t{layer} * width;
  g.stride = uint64_t{spec().n_layers()} * width;
  g.n_rows = p.n_rows();
  g.width = width;
  return launch_ple_gate(g, lane(p));
}

}  // namespace sharpi::cuda
