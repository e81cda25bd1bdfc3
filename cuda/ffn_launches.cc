// SPDX-License-Identifier: MIT
#include "cuda/ffn_launches.h"

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
      return launch_moe(p.config, at.experts(l.layer, l.to, l.add), p.ws.raw_stream());
    case LaunchKind::kMoeStep: {
      const RowLink* link = list.links.data() + l.first_link;
      const RowProduct* before = l.has_before ? &link++->product : nullptr;
      const bool has_after = l.n_links > (l.has_before ? 1u : 0u);
      const RowProduct* after = has_after ? &link->product : nullptr;
      return launch_moe_step(p.config, at.moe_step(l.layer, l.to, l.add, before, after),
                             p.ws.raw_stream());
    }
    case LaunchKind::kSendRows:
      return send_rows(p, l.layer);
    case LaunchKind::kSlotExperts:
      return resident_experts(p, l.layer, at.expert_rows(l.layer, l.to, l.add));
    case LaunchKind::kAnswers:
      return answered_experts(p, l.layer, l.to, l.add);
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
  r.ids = p.ws.get<int32_t>(Buf::kMoeIds);
  r.weights = p.ws.get(Buf::kMoeWeight);
  r.pdl = p.config.pdl;
  return launch_router(r, p.ws.raw_stream());
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
  g.pdl = p.config.pdl;
  return launch_sigmoid_gate(g, p.ws.raw_stream());
}

Status FfnLaunches::per_layer_gate(Pass& p, uint32_t layer) const {
  const uint32_t width = m_.spec().d_ple;
  PleGateParams g;
  g.t = p.ws.get(Buf::kPleTmp);
  g.c = p.ws.get(Buf::kPle) + uint64_t{layer} * width;
  g.stride = uint64_t{m_.spec().n_layers()} * width;
  g.n_rows = p.n_rows();
  g.width = width;
  return launch_ple_gate(g, stream_of(p));
}

Status FfnLaunches::send_rows(Pass& p, uint32_t layer) const {
  const ExpertHandover& h = p.ws.experts;
  const uint32_t n_used = m_.spec().layers[layer].ffn.n_used;
  if (p.recorded) {
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
    s.pdl = p.config.pdl;
    return launch_send_experts(s, p.ws.raw_stream());
  }
  const auto fetch = [&](uint64_t to, const void* from, uint64_t bytes) {
    return m_.device->check(cudaMemcpyAsync(h.memory.data() + to, from, bytes,
                                            cudaMemcpyDeviceToHost, p.ws.raw_stream()),
                            "rows for experts");
  };
  const uint64_t n = p.n_rows();
  SHARPI_TRY(fetch(h.layout.x, p.ws.get(Buf::kX), n * m_.spec().n_embd * sizeof(float)));
  SHARPI_TRY(fetch(h.layout.ids, p.ws.get(Buf::kMoeIds), n * n_used * sizeof(int32_t)));
  SHARPI_TRY(fetch(h.layout.weights, p.ws.get(Buf::kMoeWeight), n * n_used * sizeof(float)));
  return m_.device->check(cudaEventRecord(h.sent.get(), p.ws.raw_stream()), "rows for experts");
}

Status FfnLaunches::resident_experts(Pass& p, uint32_t layer, MoeParams m) const {
  const ExpertSlots::Matrices w = m_.experts->matrices(layer);
  const FfnSpec& f = m_.spec().layers[layer].ffn;
  m.gate = f.fused_gate_up ? output_slice(w.gate, 0, f.d_ff) : w.gate;
  m.up = f.fused_gate_up ? output_slice(w.gate, f.d_ff, f.d_ff) : w.up;
  m.down = w.down;
  m.slot_of_expert = m_.experts->table(layer);
  return launch_moe(p.config, m, p.ws.raw_stream());
}

Status FfnLaunches::answered_experts(Pass& p, uint32_t layer, Buf to, bool add) const {
  const ExpertHandover& h = p.ws.experts;
  AddAnswerParams a;
  a.answer = h.at<float>(h.layout.y);
  a.n_rows = p.n_rows();
  a.n_embd = m_.spec().n_embd;
  a.y = p.ws.get(to);
  a.add = add;
  a.pdl = p.config.pdl;
  if (p.recorded) {
    a.state = p.ws.get<HandoverState>(Buf::kHandover);
    a.done = h.at<uint32_t>(h.layout.done);
    return launch_add_answer(a, p.ws.raw_stream());
  }
  // Rows of no session (a warm-up) want no answer.
  if (p.rows != nullptr) {
    SHARPI_TRY(m_.device->check(cudaEventSynchronize(h.sent.get()), "rows for experts"));
    const uint32_t n = p.n_rows() * m_.spec().layers[layer].ffn.n_used;
    auto* ids = h.at<int32_t>(h.layout.ids);
    const bool slots = m_.uses_slots(p.n_rows());
    if (slots) (void)leave_out_resident(*m_.experts, layer, ids, n);
    if (!p.rows->sequences.empty()) m_.experts->note(layer, ids, n, slots);  // not of a measurement
    SHARPI_TRY(h.host->compute({layer, p.n_rows(), h.at<float>(h.layout.x), ids,
                                h.at<float>(h.layout.weights), h.at<float>(h.layout.y)}));
  }
  return launch_add_answer(a, p.ws.raw_stream());
}

}  // namespace sharpi::cuda
