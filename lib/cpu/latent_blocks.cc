// SPDX-License-Identifier: MIT
#include "cpu/latent_blocks.h"

#include <cstring>

#include "cpu/ops.h"

namespace sharpi::cpu {

/// Products of every head's own matrix with its own part of each row. `in`: heads of a row one
/// after the other, row after row. Head h of row r goes to y + r * row + h * head.
void LatentBlocks::by_head(const Pass& p, const TensorRef& w, const MatmulInput& in, float* y,
                           uint64_t head, uint64_t row) const {
  const auto n_heads = static_cast<uint32_t>(w.n_experts);
  const uint32_t n_rows = p.rows.n_rows;
  auto* ids = p.ws.get<uint32_t>(Buf::kHeadRows);
  auto* tasks = p.ws.get<MatmulTask>(Buf::kHeadTasks);
  p.matmul().prepare(in);
  for (uint32_t h = 0; h < n_heads; ++h) {
    uint32_t* own = ids + uint64_t{h} * n_rows;
    for (uint32_t r = 0; r < n_rows; ++r) own[r] = r * n_heads + h;
    MatmulTask t = matmul_task(w, in, y + h * head, row);
    t.w.data += h * w.n_out * w.row_bytes();
    t.row_ids = own;
    t.n_rows = n_rows;
    tasks[h] = t;
  }
  p.matmul().run({tasks, n_heads});
}

void LatentBlocks::project_in(const Pass& p, const MatmulInput& in, const AttentionSpec& a) const {
  const LatentSpec& l = a.latent;
  float* const queries = p.ws.get(Buf::kGate);
  const WeightProduct latent{&a.k, p.ws.get(Buf::kV), a.k.n_out};
  if (l.q_a) {
    const uint64_t rank = l.q_a.n_out;
    float* const low = p.ws.get(Buf::kMix);
    const WeightProduct both[] = {{&l.q_a, low, rank}, latent};
    ops_.products(p, in, both);
    ops_.each_row(p.rows.n_rows, [&](uint64_t r) {
      rms_norm(ops_.kernels(), low + r * rank, f32_weights(l.q_norm), spec_.rms_eps, rank,
               low + r * rank);
    });
    const MatmulInput normed = p.input(Buf::kMix, rank, p.rows.n_rows, Buf::kActWide);
    ops_.product(p, normed, a.q, queries, a.q.n_out);
  } else {
    const WeightProduct both[] = {{&a.q, queries, a.q.n_out}, latent};
    ops_.products(p, in, both);
  }
  MatmulInput heads;
  heads.x = queries;
  heads.stride = uint64_t{l.key_dim} + a.rope.n_rot;
  heads.n_rows = p.rows.n_rows * a.n_heads;
  heads.n_in = l.key_dim;
  heads.prepared = p.ws.get<std::byte>(Buf::kActWide);
  by_head(p, l.k_b, heads, p.ws.get(Buf::kQ) + a.rope.n_rot, a.head_dim, a.query_row());
}

void LatentBlocks::join_row(const Pass& p, const AttentionSpec& a, uint64_t r, const float* cos,
                            const float* sin) const {
  const LatentSpec& l = a.latent;
  const uint64_t n_rot = a.rope.n_rot, one = l.key_dim + n_rot;
  const float* from = p.ws.get(Buf::kGate) + r * a.q.n_out;
  float* q = p.ws.get(Buf::kQ) + r * a.query_row();
  for (uint64_t h = 0; h < a.n_heads; ++h) {
    std::memcpy(q + h * a.head_dim, from + h * one + l.key_dim, n_rot * sizeof(float));
  }
  rope_apply(ops_.kernels(), a.rope.pairs, q, a.n_heads, a.head_dim, a.rope.n_rot, cos, sin);
  const float* row = p.ws.get(Buf::kV) + r * a.head_dim;
  float* k = p.ws.get(Buf::kK) + r * a.head_dim;
  std::memcpy(k, row + l.rank, n_rot * sizeof(float));
  rope_apply(ops_.kernels(), a.rope.pairs, k, 1, a.head_dim, a.rope.n_rot, cos, sin);
  rms_norm(ops_.kernels(), row, f32_weights(l.kv_norm), spec_.rms_eps, l.rank, k + n_rot);
}

MatmulInput LatentBlocks::project_values(const Pass& p, const AttentionSpec& a) const {
  const LatentSpec& l = a.latent;
  MatmulInput sums;
  sums.x = p.ws.get(Buf::kMix) + a.rope.n_rot;
  sums.stride = a.head_dim;
  sums.n_rows = p.rows.n_rows * a.n_heads;
  sums.n_in = l.rank;
  sums.prepared = p.ws.get<std::byte>(Buf::kActWide);
  by_head(p, l.v_b, sums, p.ws.get(Buf::kGate), l.value_dim, a.mixed_row());
  return p.input(Buf::kGate, a.mixed_row(), p.rows.n_rows, Buf::kActWide);
}

}  // namespace sharpi::cpu
