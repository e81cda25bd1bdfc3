// SPDX-License-Identifier: MIT
// Layers whose routed experts are on the CPU: rows and ids go to the experts' host, resident
// experts are computed here meanwhile, and the host's sum is added when it is there. A recorded
// step hands over without the driver (kernels/moe/handover.h); other calls enqueue what they have
// and compute while it runs.
#include "cuda/cuda_model.h"
#include "cuda/kernels/moe/handover.h"
#include "cuda/kernels/moe/router.h"

namespace sharpi::cuda {

void CudaModel::use_expert_host(Workspace& workspace, ExpertHost* host) {
  static_cast<CudaWorkspace&>(workspace).experts.host = host;
}

bool CudaModel::expert_stats(sharpi_expert_stats* out) const {
  if (experts_ == nullptr) return false;
  *out = experts_->stats();
  return true;
}

std::vector<uint64_t> CudaModel::expert_uses(uint32_t layer) const {
  return experts_ == nullptr ? std::vector<uint64_t>{} : experts_->uses(layer);
}

Status CudaModel::pin_experts(std::span<const ExpertId> experts) {
  return experts_ == nullptr ? TierModel::pin_experts(experts) : experts_->pin(experts);
}

bool CudaModel::asks_for_experts(const Segment& segment) const {
  if (experts_ == nullptr || segment.streamed) return false;
  for (const Block& b : segment.blocks) {
    if (b.kind == BlockKind::kFfn && parts_experts(b.layer)) return true;
  }
  return false;
}

/// Products of many rows (deterministic: of any) sort rows by matrix, and sort no more than
/// kMaxExperts.
bool CudaModel::uses_slots(uint32_t n_rows) const {
  const uint32_t n = plan_->placement.n_expert_slots;
  if (n == 0) return false;
  return n < kMaxExperts || (n_rows <= kStreamedRows && !config_.deterministic);
}

Status CudaModel::send_rows(Pass& p, uint32_t layer) const {
  const ExpertHandover& h = p.ws.experts;
  const uint32_t n_used = spec().layers[layer].ffn.n_used;
  if (p.recorded) {
    SendExpertsParams s;
    s.x = p.ws.get(Buf::kX);
    s.n_rows = p.n_rows();
    s.n_embd = spec().n_embd;
    s.n_used = n_used;
    s.ids = p.ws.get<int32_t>(Buf::kMoeIds);
    s.weights = p.ws.get(Buf::kMoeWeight);
    s.slot_of_expert = uses_slots(p.n_rows()) ? experts_->table(layer) : nullptr;
    s.state = p.ws.get<HandoverState>(Buf::kHandover);
    s.to_x = h.at<float>(h.layout.x);
    s.to_ids = h.layer_ids(layer);
    s.to_weights = h.layer_weights(layer);
    s.sent = h.at<uint32_t>(h.layout.sent);
    s.pdl = p.config.pdl;
    return launch_send_experts(s, p.ws.lane());
  }
  const auto fetch = [&](uint64_t to, const void* from, uint64_t bytes) {
    return device_->check(
        cudaMemcpyAsync(h.memory.data() + to, from, bytes, cudaMemcpyDeviceToHost, p.ws.lane()),
        "rows for experts");
  };
  const uint64_t n = p.n_rows();
  SHARPI_TRY(fetch(h.layout.x, p.ws.get(Buf::kX), n * spec().n_embd * sizeof(float)));
  SHARPI_TRY(fetch(h.layout.ids, p.ws.get(Buf::kMoeIds), n * n_used * sizeof(int32_t)));
  SHARPI_TRY(fetch(h.layout.weights, p.ws.get(Buf::kMoeWeight), n * n_used * sizeof(float)));
  return device_->check(cudaEventRecord(h.sent.get(), p.ws.lane()), "rows for experts");
}

Status CudaModel::resident_experts(Pass& p, uint32_t layer, MoeParams m) const {
  const ExpertSlots::Matrices w = experts_->matrices(layer);
  const FfnSpec& f = spec().layers[layer].ffn;
  m.gate = f.fused_gate_up ? row_slice(w.gate, 0, f.d_ff) : w.gate;
  m.up = f.fused_gate_up ? row_slice(w.gate, f.d_ff, f.d_ff) : w.up;
  m.down = w.down;
  m.slot_of_expert = experts_->table(layer);
  return launch_moe(p.config, m, p.ws.lane());
}

Status CudaModel::answered_experts(Pass& p, uint32_t layer, Buf to, bool add) const {
  const ExpertHandover& h = p.ws.experts;
  AddAnswerParams a;
  a.answer = h.at<float>(h.layout.y);
  a.n_rows = p.n_rows();
  a.n_embd = spec().n_embd;
  a.y = p.ws.get(to);
  a.add = add;
  a.pdl = p.config.pdl;
  if (p.recorded) {
    a.state = p.ws.get<HandoverState>(Buf::kHandover);
    a.done = h.at<uint32_t>(h.layout.done);
    return launch_add_answer(a, p.ws.lane());
  }
  // Rows of no session (a warm-up) want no answer.
  if (p.rows != nullptr) {
    SHARPI_TRY(device_->check(cudaEventSynchronize(h.sent.get()), "rows for experts"));
    const uint32_t n = p.n_rows() * spec().layers[layer].ffn.n_used;
    auto* ids = h.at<int32_t>(h.layout.ids);
    const bool slots = uses_slots(p.n_rows());
    if (slots) (void)leave_out_resident(*experts_, layer, ids, n);
    if (!p.rows->sequences.empty()) experts_->note(layer, ids, n, slots);  // not of a measurement
    SHARPI_TRY(h.host->compute({layer, p.n_rows(), h.at<float>(h.layout.x), ids,
                                h.at<float>(h.layout.weights), h.at<float>(h.layout.y)}));
  }
  return launch_add_answer(a, p.ws.lane());
}

/// Under the device's turn().
Status CudaModel::serve_graph(const Segment& segment, Pass& p, cudaGraphExec_t graph) const {
  GraphLine line(*device_, p.ws.experts, *experts_, spec(), segment, p.n_rows(),
                 uses_slots(p.n_rows()), p.ws.lane());
  SHARPI_TRY(device_->check(cudaGraphLaunch(graph, p.ws.lane()), "cudaGraphLaunch"));
  SHARPI_TRY(p.ws.experts.host->serve(line));
  return line.status();
}

}  // namespace sharpi::cuda
