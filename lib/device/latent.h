// SPDX-License-Identifier: MIT
// What latent attention multiplies beside what all attention does: each query head has a matrix of
// its own on the way to the latent (k_b) and on the way back (v_b). Thread rule: pure functions.
#pragma once

#include "device/buffers.h"
#include "model/model_spec.h"

namespace sharpi::device {

/// Heads' parts of a row: of head h from first + h * head on; rows are `row` elements apart.
struct HeadParts {
  Buf buf = Buf::kCount;
  uint64_t first = 0, head = 0, row = 0;
};
/// y = W_h x for each head h of every row; `w` has the heads' matrices one after the other.
struct HeadProduct {
  const TensorRef* w = nullptr;
  HeadParts x, y;
  uint32_t n_heads() const { return static_cast<uint32_t>(w->n_experts); }
};

/// Of queries, what is not turned: to where attention reads the latent's elements.
inline HeadProduct latent_queries(const AttentionSpec& a) {
  const LatentSpec& l = a.latent;
  return {&l.k_b,
          {Buf::kQ, 0, uint64_t{l.key_dim} + a.rope.n_rot, a.q.n_out},
          {Buf::kQuery, a.rope.n_rot, a.head_dim, a.query_row()}};
}
/// Of sums of rows, the latents: to what the output projection reads.
inline HeadProduct latent_outputs(const AttentionSpec& a) {
  const LatentSpec& l = a.latent;
  return {&l.v_b,
          {Buf::kMix, a.rope.n_rot, a.head_dim, a.query_row()},
          {Buf::kQuery, 0, l.value_dim, a.mixed_row()}};
}

}  // namespace sharpi::device
