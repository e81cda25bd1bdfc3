// SPDX-License-Identifier: MIT
#include "cuda/ffn_launches.h"

#include <cmath>

#include "cuda/kernels/moe/handover.h"
#include "cuda/kernels/moe/router.h"

namespace sharpi::cuda {

Status FfnLaunches::launch(Pass& p, const Binding& at, const LaunchList& list,
                           const Launch& l) const {
  switch (l.kind) {
    case LaunchKind::kRouter:
      return choose_experts(p, m_.spec().layers[l.layer].ffn);
    case LaunchKind::kSharedGate:
      return shared_gate(p, m_.spec().layers[l.layer]);
    case LaunchKind::kExperts:
      return launch_moe(s_.of(p), at.experts(l.layer, l.to, l.add), raw_stream(p));
    case LaunchKind::kMoeStep: {
      const RowLink* link = list.links.data() + l.first_link;
      const RowProduct* before = l.has_before ? &link++->product : nullptr;
      const bool has_after = l.n_links > (l.has_before ? 1u : 0u);
      const RowProduct* after = has_after ? &link->product : nullptr;
      return launch_moe_step(s_.of(p), at.moe_step(l.layer, l.to, l.add, before, after),
                             raw_stream(p));
    }
    case LaunchKind::kSendRows:
      return send_rows(p, l.layer);
    case LaunchKind::kSlotExperts:
      return resident_experts(p, l.layer, at.expert_rows(l.layer, l.to, l.add));
    case LaunchKind::kAnswers:
      return answered_experts(p, l.to, l.add);
    default:
      return Status::error(Code::kInternal, "a launch of another kind was given to the experts");
  }
}

Status FfnLaunches::choose_experts(Pass& p, const FfnSpec& f) const {
  RouterParams r;
  r.logits = p.ws.get(Buf::kRouter);
  r.stride = f.n_experts;
  r.n_rows = p.n_rows();
  r.n_experts = f.n_experts;
  r.n_used = f.n_used;
  r.renormalize = f.renormalize;
  if (f.beside_dense()) {
    r.logit_scale = 1.0f / std::sqrt(static_cast<float>(m_.spec().n_embd));
    r.factors = m_.floats(f.expert_scale);
  }
  r.sigmoid = f.scores == RouterScores::kSigmoid;
  r.choice_bias = m_.floats(f.choice_bias);
  r.share_scale = f.share_scale;
  r.ids = p.ws.get<int32_t>(Buf::kMoeIds);
  r.weights = p.ws.get(Buf::kMoeWeight);
  r.pdl = s_.of(p).pdl;
  return launch_router(r, raw_stream(p));
}

Status FfnLaunches::shared_gate(Pass& p, const LayerSpec& l) const {
  SigmoidGateParams g;
  g.x = p.ws.get(Buf::kX);
  g.x_stride = m_.spec().n_embd;
  g.n_rows = p.n_rows();
  g.n_in = m_.spec().n_embd;
  g.norm_weight = m_.floats(l.ffn_norm);
  g.norm_eps = m_.spec().rms_eps;
  g.w = m_.floats(l.ffn.shared_gate_inp);
  g.y = p.ws.get(Buf::kSharedGate);
  g.pdl = s_.of(p).pdl;
  return launch_sigmoid_gate(g, raw_stream(p));
}

Status FfnLaunches::per_layer_gate(Pass& p, uint32_t layer) const {
  const uint32_t width = m_.spec().d_ple;
  PleGateParams g;
  g.t = p.ws.get(Buf::kPleTmp);
  g.c = p.ws.get(Buf::kPle) + uint64_t{layer} * width;
  g.stride = uint64_t{m_.spec().n_layers()} * width;
  g.n_rows = p.n_rows();
  g.width = width;
  return launch_ple_gate(g, s_.on(p));
}

Status FfnLaunches::send_rows(Pass& p, uint32_t layer) const {
  const ExpertHandover& h = p.ws.experts;
  const uint32_t n_used = m_.spec().layers[layer].ffn.n_used;
  SendExpertsParams s;
  s.x = p.ws.get(Buf::kX);
  s.n_rows = p.n_rows();
  s.n_embd = m_.spec().n_embd;
  s.n_used = n_used;
  s.ids = p.ws.get<int32_t>(Buf::kMoeIds);
  s.weights = p.ws.get(Buf::kMoeWeight);
  s.slot_of_expert = m_.uses_slots(p.n_rows()) ? m_.experts->table(layer) : nullptr;
  s.state = p.ws.get<HandoverState>(Buf::kHandover);
  s.to_x = h.at<float>(h.layout.x);
  s.to_ids = h.layer_ids(layer);
  s.to_weights = h.layer_weights(layer);
  s.sent = h.at<uint32_t>(h.layout.sent);
  s.pdl = s_.of(p).pdl;
  return launch_send_experts(s, raw_stream(p));
}

/// The layer's matrices as if every slot held an expert of it.
FfnLaunches::SlotMatrices FfnLaunches::slot_matrices(uint32_t layer) const {
  const FfnSpec& f = m_.spec().layers[layer].ffn;
  const DeviceBuffer& pool = m_.experts->pool();
  const SlotLayout& layout = m_.experts->layout();
  const auto make = [&](const TensorRef& w, uint64_t at) {
    if (!w) return DeviceMatrix{};
    DeviceMatrix m = make_device_matrix(w.tensor->type, w.n_in, w.n_out, 1, pool.data() + at);
    m.n_experts = static_cast<uint32_t>(pool.bytes() / layout.bytes);
    m.expert_bytes = layout.bytes;
    return m;
  };
  return {make(f.gate, 0), make(f.up, layout.layers[layer].up),
          make(f.down, layout.layers[layer].down)};
}

Status FfnLaunches::resident_experts(Pass& p, uint32_t layer, MoeParams m) const {
  const SlotMatrices w = slot_matrices(layer);
  const FfnSpec& f = m_.spec().layers[layer].ffn;
  m.gate = f.fused_gate_up ? output_slice(w.gate, 0, f.d_ff) : w.gate;
  m.up = f.fused_gate_up ? output_slice(w.gate, f.d_ff, f.d_ff) : w.up;
  m.down = w.down;
  m.slot_of_expert = m_.experts->table(layer);
  return launch_moe(s_.of(p), m, raw_stream(p));
}

Status FfnLaunches::answered_experts(Pass& p, Buf to, bool add) const {
  const ExpertHandover& h = p.ws.experts;
  AddAnswerParams a;
  a.answer = h.at<float>(h.layout.y);
  a.n_rows = p.n_rows();
  a.n_embd = m_.spec().n_embd;
  a.y = p.ws.get(to);
  a.add = add;
  a.pdl = s_.of(p).pdl;
  if (p.recorded) {
    a.state = p.ws.get<HandoverState>(Buf::kHandover);
    a.done = h.at<uint32_t>(h.layout.done);
  }
  return launch_add_answer(a, raw_stream(p));
}

}  // namespace sharpi::cuda
