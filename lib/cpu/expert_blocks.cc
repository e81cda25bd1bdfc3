// SPDX-License-Identifier: MIT
#include "cpu/expert_blocks.h"

#include <cstring>

#include "cpu/ops.h"

namespace sharpi::cpu {
namespace {

/// Ids that are no expert's (asked for by a tier that serves them itself) get no slot. How many do.
uint32_t group_by_expert(CpuWorkspace& ws, uint32_t n_rows, const FfnSpec& f) {
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

/// Adds to the rows of every expert that has slots its own row of `bias`, if there is one.
void add_biases(const BlockOps& ops, const CpuWorkspace& ws, const TensorRef& bias, float* y,
                uint64_t stride, uint32_t n_experts) {
  if (!bias) return;
  const auto* first = ws.get<uint32_t>(Buf::kMoeFirst);
  ops.pool().for_range(n_experts, 1, [&](uint64_t b, uint64_t e) {
    for (uint64_t x = b; x < e; ++x) {
      for (uint64_t s = first[x]; s < first[x + 1]; ++s)
        add_inplace(ops.kernels(), y + s * stride, expert_row(bias, x), bias.n_in);
    }
  });
}

/// The experts that a request names for each row, and their weights.
void take_choices(const ExpertRequest& r, const FfnSpec& f, CpuWorkspace& ws) {
  const uint64_t n = uint64_t{r.n_rows} * f.n_used;
  std::memcpy(ws.get<uint32_t>(Buf::kMoeIds), r.ids, n * sizeof(uint32_t));
  std::memcpy(ws.get(Buf::kMoeWeights), r.weights, n * sizeof(float));
}

/// Products of one matrix of every expert that has slots, behind n_tasks others; how many there are
/// then. `rows`: the row of the input that each slot takes.
size_t expert_tasks(const Pass& p, const TensorRef& w, const MatmulInput& in, const uint32_t* rows,
                    float* y, uint64_t y_stride, size_t n_tasks) {
  const auto* first = p.ws.get<uint32_t>(Buf::kMoeFirst);
  auto* tasks = p.ws.get<MatmulTask>(Buf::kMoeTasks);
  for (uint32_t e = 0; e < w.n_experts; ++e) {
    const uint32_t n = first[e + 1] - first[e];
    if (n == 0) continue;
    MatmulTask t = matmul_task(w, in, y + first[e] * y_stride, y_stride);
    t.w.data += e * w.n_out * w.row_bytes();
    t.row_ids = rows + first[e];
    t.n_rows = n;
    tasks[n_tasks++] = t;
  }
  return n_tasks;
}

}  // namespace

void ExpertBlocks::run(Pass& p, uint32_t layer) const {
  const LayerSpec& l = spec_.layers[layer];
  if (l.ffn.beside_dense()) {
    ops_.norm_rows(p, p.ws.get(Buf::kX), l.expert_norm(), p.ws.get(Buf::kNorm));
    p.normed = p.input(Buf::kNorm, spec_.n_embd, p.rows.n_rows, Buf::kActE);
  }
  experts(p, l.ffn, p.normed);
  if (l.ffn.beside_dense()) {
    ops_.norm_rows(p, p.ws.get(Buf::kY), l.ffn.expert_post_norm, p.ws.get(Buf::kMoeSum));
  } else {
    ops_.add_residual(p, {l.residual_scale, l.ffn_post_norm});
  }
}

void ExpertBlocks::experts(const Pass& p, const FfnSpec& f, const MatmulInput& in) const {
  const uint64_t width = f.d_ff, d = spec_.n_embd;
  const uint64_t stride = f.fused_gate_up ? 2 * width : width;
  const auto* tasks = p.ws.get<MatmulTask>(Buf::kMoeTasks);
  float* g = p.ws.get(Buf::kFfnGate);
  float* u = p.ws.get(Buf::kFfnUp);

  // Slots of one expert are consecutive, so its weights are read once for all its rows.
  const uint32_t n_slots = group_by_expert(p.ws, p.rows.n_rows, f);
  const auto* slot_row = p.ws.get<uint32_t>(Buf::kMoeRows);
  size_t n = expert_tasks(p, f.gate ? f.gate : f.up, in, slot_row, g, stride, 0);
  if (f.gate && !f.fused_gate_up) n = expert_tasks(p, f.up, in, slot_row, u, stride, n);
  p.matmul().run({tasks, n});
  if (f.gate) {
    add_biases(ops_, p.ws, f.gate_bias, g, stride, f.n_experts);
    add_biases(ops_, p.ws, f.up_bias, u, stride, f.n_experts);
    ops_.activate(f, g, f.fused_gate_up ? g + width : u, stride, width, n_slots, g);
  } else {
    add_biases(ops_, p.ws, f.up_bias, g, stride, f.n_experts);
    ops_.activate_alone(f, g, nullptr, width, n_slots);
  }

  const MatmulInput h = p.input(Buf::kFfnGate, width, n_slots, Buf::kActWide);
  float* out = p.ws.get(Buf::kMoeOut);
  n = expert_tasks(p, f.down, h, p.ws.get<uint32_t>(Buf::kMoeIota), out, d, 0);
  p.matmul().run({tasks, n});
  add_biases(ops_, p.ws, f.down_bias, out, d, f.n_experts);

  const float* weights = p.ws.get(Buf::kMoeWeights);
  const auto* slot_of = p.ws.get<uint32_t>(Buf::kMoeSlot);
  ops_.each_row(p.rows.n_rows, [&](uint64_t r) {
    float* y = p.ws.get(Buf::kY) + r * d;
    std::memset(y, 0, d * sizeof(float));
    for (uint32_t j = 0; j < f.n_used; ++j) {
      const uint64_t s = r * f.n_used + j;
      if (slot_of[s] == kNoSlot) continue;
      add_scaled(kernels_, y, out + uint64_t{slot_of[s]} * d, weights[s], d);
    }
  });
}

uint32_t ExpertBlocks::group_request(const ExpertRequest& r, CpuWorkspace& ws) const {
  const FfnSpec& f = spec_.layers[r.layer].ffn;
  take_choices(r, f, ws);
  return group_by_expert(ws, r.n_rows, f);
}

MatmulInput ExpertBlocks::norm_request(const ExpertRequest& r, CpuWorkspace& ws) const {
  const uint64_t e = spec_.n_embd;
  const TensorRef& norm = spec_.layers[r.layer].expert_norm();
  float* to = ws.get(Buf::kNorm);
  for (uint32_t i = 0; i < r.n_rows; ++i) {
    rms_norm(kernels_, r.x + i * e, f32_weights(norm), spec_.rms_eps, e, to + i * e);
  }
  const MatmulInput in = {to, e, r.n_rows, e, ws.get<std::byte>(Buf::kActE)};
  ws.matmul().prepare_rows(in, 0, r.n_rows);
  return in;
}

void ExpertBlocks::compute(const ExpertRequest& r, CpuWorkspace& ws) const {
  Submission rows;
  rows.n_rows = r.n_rows;
  const Pass p{rows, ws};
  const LayerSpec& l = spec_.layers[r.layer];
  ops_.norm_rows(p, r.x, l.expert_norm(), ws.get(Buf::kNorm));
  const MatmulInput in = p.input(Buf::kNorm, spec_.n_embd, r.n_rows, Buf::kActE);
  take_choices(r, l.ffn, ws);
  experts(p, l.ffn, in);
  std::memcpy(r.y, ws.get(Buf::kY), uint64_t{r.n_rows} * spec_.n_embd * sizeof(float));
}

}  // namespace sharpi::cpu
