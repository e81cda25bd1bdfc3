// SPDX-License-Identifier: MIT
// The FFN blocks of the CPU tier: dense, mixture of experts grouped by expert, the shared expert,
// and what ends a layer (per-layer embedding injection, output scale).
#include <algorithm>
#include <array>
#include <cstring>

#include "cpu/cpu_model.h"
#include "cpu/ops.h"

namespace sharpi::cpu {
void CpuModel::activate(Pass&, const FfnSpec& f, const float* gate, const float* up,
                        uint64_t stride_in, uint64_t width, uint64_t n_rows, float* out) const {
  const auto apply = f.activation == Activation::kSilu ? swiglu : geglu;
  if (stride_in ==
      width) {  // contiguous: split finer than rows, so that one long row is spread too
    pool_->for_range(n_rows * width, 2048, [&](uint64_t b, uint64_t e) {
      apply(isa_, gate + b, up + b, e - b, out + b);
    });
    return;
  }
  for (uint64_t r = 0; r < n_rows;
       ++r) {  // rows shrink towards the front: in order, never in parallel
    apply(isa_, gate + r * stride_in, up + r * stride_in, width, out + r * width);
  }
}

Status CpuModel::run_ffn_op(const Op& op, Pass& p) const {
  const LayerSpec& l = spec().layers[op.layer];
  const FfnSpec& f = l.ffn;
  switch (op.kind) {
    case OpKind::kFfnIn:
      norm_ffn(p, l);
      gate_up(p, f, f.gate, f.up, f.d_ff);
      break;
    case OpKind::kFfnOut:
      down(p, f.down, f.d_ff);
      add_residual(p, l.ffn_post_norm);
      break;
    case OpKind::kRoute:
      route(p, l);
      break;
    case OpKind::kExperts:
      experts(p, f, p.normed);
      add_residual(p, l.ffn_post_norm);
      break;
    case OpKind::kSharedExpert:
      shared_expert(p, f);
      break;
    case OpKind::kInjectPerLayer:
      per_layer_injection(p, op.layer);
      break;
    case OpKind::kScaleLayer:
      scale_layer(p, l);
      break;
    default:
      return Status::error(Code::kInternal, "operation \"%s\" does not belong to an FFN block",
                           op_name(op.kind));
  }
  return Status::ok();
}

void CpuModel::norm_ffn(Pass& p, const LayerSpec& l) const {
  norm_rows(p, p.ws.get(Buf::kX), l.ffn_norm, p.ws.get(Buf::kNorm));
  p.normed = input(p, Buf::kNorm, spec().n_embd, p.rows.n_rows, Buf::kActE);
}

void CpuModel::gate_up(Pass& p, const FfnSpec& f, const TensorRef& gate, const TensorRef& up,
                       uint64_t width) const {
  const MatmulInput& in = p.normed;
  float* g = p.ws.get(Buf::kFfnGate);
  float* u = p.ws.get(Buf::kFfnUp);
  const std::array<MatmulTask, 2> tasks = {task(gate, in, g, width), task(up, in, u, width)};
  mm(p).run(tasks);
  activate(p, f, g, u, width, width, p.rows.n_rows, g);
}

void CpuModel::down(Pass& p, const TensorRef& down, uint64_t width) const {
  const MatmulInput h = input(p, Buf::kFfnGate, width, p.rows.n_rows, Buf::kActWide);
  const MatmulTask t = task(down, h, p.ws.get(Buf::kY), spec().n_embd);
  mm(p).run({&t, 1});
}

void CpuModel::route(Pass& p, const LayerSpec& l) const {
  const FfnSpec& f = l.ffn;
  norm_ffn(p, l);
  float* logits = p.ws.get(Buf::kRouter);
  const MatmulTask t = task(f.router, p.normed, logits, f.n_experts, true);
  mm(p).run({&t, 1});
  auto* ids = p.ws.get<uint32_t>(Buf::kMoeIds);
  float* weights = p.ws.get(Buf::kMoeWeights);
  each_row(p.rows.n_rows, [&](uint64_t r) {
    float* prob = logits + r * f.n_experts;
    float* w = weights + r * f.n_used;
    softmax(isa_, prob, f.n_experts);
    top_k(prob, f.n_experts, f.n_used, ids + r * f.n_used, w);
    if (!f.renormalize) return;
    float sum = 0.0f;
    for (uint32_t j = 0; j < f.n_used; ++j) sum += w[j];
    for (uint32_t j = 0; j < f.n_used; ++j) w[j] /= std::max(sum, 0x1p-14f);
  });
}

/// Ids that are no expert's (asked for by a tier that serves them itself) get no slot. How many do.
uint32_t CpuModel::group_by_expert(CpuWorkspace& ws, uint32_t n_rows, const FfnSpec& f) const {
  const uint32_t n_slots = n_rows * f.n_used;
  const auto* ids = ws.get<uint32_t>(Buf::kMoeIds);
  auto* slot_row = ws.get<uint32_t>(Buf::kMoeRows);
  auto* slot_of = ws.get<uint32_t>(Buf::kMoeSlot);
  auto* first = ws.get<uint32_t>(Buf::kMoeFirst);
  std::memset(first, 0, (f.n_experts + 1ull) * sizeof(uint32_t));
  for (uint32_t s = 0; s < n_slots; ++s) {
    if (ids[s] < f.n_experts) ++first[ids[s] + 1];
  }
  for (uint32_t e = 0; e < f.n_experts; ++e) first[e + 1] += first[e];
  for (uint32_t s = 0; s < n_slots; ++s) {
    slot_of[s] = kNoSlot;
    if (ids[s] >= f.n_experts) continue;
    const uint32_t slot = first[ids[s]]++;
    slot_row[slot] = s / f.n_used;
    slot_of[s] = slot;
  }
  for (uint32_t e = f.n_experts; e > 0; --e) first[e] = first[e - 1];
  first[0] = 0;
  return first[f.n_experts];
}

size_t CpuModel::expert_tasks(Pass& p, const TensorRef& w, const MatmulInput& in,
                              const uint32_t* rows, float* y, uint64_t y_stride,
                              size_t n_tasks) const {
  const auto* first = p.ws.get<uint32_t>(Buf::kMoeFirst);
  auto* tasks = p.ws.get<MatmulTask>(Buf::kMoeTasks);
  for (uint32_t e = 0; e < w.n_experts; ++e) {
    const uint32_t n = first[e + 1] - first[e];
    if (n == 0) continue;
    MatmulTask t = task(w, in, y + first[e] * y_stride, y_stride);
    t.w.data += e * w.n_out * w.row_bytes();
    t.row_ids = rows + first[e];
    t.n_rows = n;
    tasks[n_tasks++] = t;
  }
  return n_tasks;
}

void CpuModel::experts(Pass& p, const FfnSpec& f, const MatmulInput& in) const {
  const uint64_t width = f.d_ff, d = spec().n_embd;
  const uint64_t stride = f.fused_gate_up ? 2 * width : width;
  const auto* tasks = p.ws.get<MatmulTask>(Buf::kMoeTasks);
  float* g = p.ws.get(Buf::kFfnGate);
  float* u = p.ws.get(Buf::kFfnUp);

  // Slots of one expert are consecutive, so its weights are read once for all its rows.
  const uint32_t n_slots = group_by_expert(p.ws, p.rows.n_rows, f);
  const auto* slot_row = p.ws.get<uint32_t>(Buf::kMoeRows);
  size_t n = expert_tasks(p, f.gate, in, slot_row, g, stride, 0);
  if (!f.fused_gate_up) n = expert_tasks(p, f.up, in, slot_row, u, stride, n);
  mm(p).run({tasks, n});
  activate(p, f, g, f.fused_gate_up ? g + width : u, stride, width, n_slots, g);

  const MatmulInput h = input(p, Buf::kFfnGate, width, n_slots, Buf::kActWide);
  float* out = p.ws.get(Buf::kMoeOut);
  n = expert_tasks(p, f.down, h, p.ws.get<uint32_t>(Buf::kMoeIota), out, d, 0);
  mm(p).run({tasks, n});

  const float* weights = p.ws.get(Buf::kMoeWeights);
  const auto* slot_of = p.ws.get<uint32_t>(Buf::kMoeSlot);
  each_row(p.rows.n_rows, [&](uint64_t r) {
    float* y = p.ws.get(Buf::kY) + r * d;
    std::memset(y, 0, d * sizeof(float));
    for (uint32_t j = 0; j < f.n_used; ++j) {
      const uint64_t s = r * f.n_used + j;
      if (slot_of[s] == kNoSlot) continue;
      add_scaled(isa_, y, out + uint64_t{slot_of[s]} * d, weights[s], d);
    }
  });
}

uint32_t CpuModel::group_request(const ExpertRequest& r, CpuWorkspace& ws) const {
  const FfnSpec& f = spec().layers[r.layer].ffn;
  std::memcpy(ws.get<uint32_t>(Buf::kMoeIds), r.ids, r.n_rows * f.n_used * sizeof(uint32_t));
  std::memcpy(ws.get(Buf::kMoeWeights), r.weights, r.n_rows * f.n_used * sizeof(float));
  return group_by_expert(ws, r.n_rows, f);
}

MatmulInput CpuModel::norm_request(const ExpertRequest& r, CpuWorkspace& ws) const {
  const uint64_t e = spec().n_embd;
  const TensorRef& norm = spec().layers[r.layer].ffn_norm;
  float* to = ws.get(Buf::kNorm);
  for (uint32_t i = 0; i < r.n_rows; ++i) {
    rms_norm(isa_, r.x + i * e, f32_weights(norm), spec().rms_eps, e, to + i * e);
  }
  const MatmulInput in = {to, e, r.n_rows, e, ws.get<std::byte>(Buf::kActE)};
  ws.matmul().prepare_rows(in, 0, r.n_rows);
  return in;
}

void CpuModel::compute_experts(const ExpertRequest& r, CpuWorkspace& ws) const {
  Submission rows;
  rows.n_rows = r.n_rows;
  Pass p{rows, ws};
  const LayerSpec& l = spec().layers[r.layer];
  norm_rows(p, r.x, l.ffn_norm, ws.get(Buf::kNorm));
  const MatmulInput in = input(p, Buf::kNorm, spec().n_embd, r.n_rows, Buf::kActE);
  const uint64_t n = uint64_t{r.n_rows} * l.ffn.n_used;
  std::memcpy(ws.get<uint32_t>(Buf::kMoeIds), r.ids, n * sizeof(uint32_t));
  std::memcpy(ws.get(Buf::kMoeWeights), r.weights, n * sizeof(float));
  experts(p, l.ffn, in);
  std::memcpy(r.y, ws.get(Buf::kY), uint64_t{r.n_rows} * spec().n_embd * sizeof(float));
}

void CpuModel::shared_expert(Pass& p, const FfnSpec& f) const {
  const uint64_t d = spec().n_embd;
  float* x = p.ws.get(Buf::kX);
  gate_up(p, f, f.shared_gate, f.shared_up, f.d_shared);
  down(p, f.shared_down, f.d_shared);
  const float* n = p.ws.get(Buf::kNorm);
  each_row(p.rows.n_rows, [&](uint64_t r) {
    float gate = 1.0f;
    if (f.shared_gate_inp) {
      float s = dot(isa_, f32_weights(f.shared_gate_inp), n + r * d, d);
      sigmoid_gate(isa_, &gate, &s, 1);
    }
    add_scaled(isa_, x + r * d, p.ws.get(Buf::kY) + r * d, gate, d);
  });
}

void CpuModel::scale_layer(Pass& p, const LayerSpec& l) const {
  scale_inplace(isa_, p.ws.get(Buf::kX), l.output_scale, uint64_t{p.rows.n_rows} * spec().n_embd);
}

void CpuModel::per_layer_injection(Pass& p, uint32_t layer) const {
  const LayerSpec& l = spec().layers[layer];
  const uint64_t width = spec().d_ple;
  const uint64_t all = uint64_t{spec().n_layers()} * width;
  const MatmulInput in = input(p, Buf::kX, spec().n_embd, p.rows.n_rows, Buf::kActE);
  float* t = p.ws.get(Buf::kPleTmp);
  const MatmulTask gate = task(l.ple_gate, in, t, width);
  mm(p).run({&gate, 1});
  each_row(p.rows.n_rows, [&](uint64_t r) {
    geglu(isa_, t + r * width, p.ws.get(Buf::kPle) + r * all + layer * width, width, t + r * width);
  });
  const MatmulInput h = input(p, Buf::kPleTmp, width, p.rows.n_rows, Buf::kActWide);
  const MatmulTask proj = task(l.ple_proj, h, p.ws.get(Buf::kY), spec().n_embd);
  mm(p).run({&proj, 1});
  add_residual(p, l.ple_post_norm);
}

}  // namespace sharpi::cpu
