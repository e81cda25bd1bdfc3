// SPDX-License-Identifier: MIT
// Mamba-2 over the vectors V. State S [channel p of x][i], f32; a head's B, C of row t: b_t, c_t.
//   recurrence, per token: S_p = e^{a dt} S_p + dt x_p b;  o_p = S_p.c + D x_p
//     Rows of the state are independent: a few rows stay in L1 over all tokens. Bound in decode:
//     the state is read and written once.
//   chunks of 64 tokens, G = running sum of a dt (arXiv 2405.21060, section 6):
//     o_t = e^{G_t} S c_t + sum_{s<=t} (c_t.b_s) e^{G_t-G_s} dt_s x_s + D x_t
//     S   = e^{G_C} S + sum_s e^{G_C-G_s} dt_s x_s b_s^T
//     The products c_t.b_s are those of all heads of a group, so they are formed once for several.
// Thread rule: pure functions with internal linkage.
#pragma once

#include <cstdint>

#include "cpu/generic/mat_kernels.h"
#include "cpu/generic/recurrent_kernels.h"
#include "cpu/generic/vec_math.h"
#include "cpu/mamba2_table.h"

namespace sharpi::cpu {
namespace {

/// Rows of the state advanced together: their dot products fill one sum_each.
constexpr uint32_t kMambaRows = kW;

/// Decays and steps of a head's rows, to its work.
inline void mamba_steps(const MambaHead& a) {
  for (uint32_t t = 0; t < a.n_rows; ++t) {
    const float dt = a.dt[t * a.dt_stride];
    a.work[t] = exp1(a.a * dt);
    a.work[a.n_rows + t] = dt;
  }
}

/// One token on kMambaRows rows of the state, from channel j on; `from` is where they are before.
/// Whether somebody wants outputs changes no bit of the state.
template <bool kOut>
inline void mamba_token(const MambaHead& a, uint32_t t, uint32_t j, const float* from, float* to) {
  const uint64_t n = a.state_dim;
  const float* b = a.b + t * a.stride;
  const float* c = a.c + t * a.stride;
  const float* x = a.x + t * a.stride + j;
  const V::R decay = V::set1(a.work[t]);
  alignas(64) float d[kMambaRows];
  V::store(d, V::mul(V::set1(a.work[a.n_rows + t]), V::load(x)));
  V::R sums[kMambaRows];
#pragma GCC unroll 16
  for (uint32_t r = 0; r < kMambaRows; ++r) sums[r] = V::zero();
  for (uint32_t i = 0; i < n; i += kW) {
    const V::R bv = V::load(b + i), cv = kOut ? V::load(c + i) : V::zero();
#pragma GCC unroll 16
    for (uint32_t r = 0; r < kMambaRows; ++r) {
      const V::R s = V::fma(V::set1(d[r]), bv, V::mul(V::load(from + r * n + i), decay));
      V::store(to + r * n + i, s);
      if constexpr (kOut) sums[r] = V::fma(s, cv, sums[r]);
    }
  }
  if constexpr (kOut) {
    V::store(a.out + t * a.out_stride + j, V::fma(V::set1(a.skip), V::load(x), V::sum_each(sums)));
  }
}

template <bool kOut>
inline void mamba_rows(const MambaHead& a, uint32_t j, const float* from) {
  float* to = a.state_out + uint64_t{j} * a.state_dim;
  for (uint32_t t = 0; t < a.n_rows; ++t, from = to) mamba_token<kOut>(a, t, j, from, to);
}

void mamba_recurrence(const MambaHead& a) {
  mamba_steps(a);
  if (a.before != nullptr) mamba_steps(*a.before);
  for (uint32_t j = 0; j < a.dim; j += kMambaRows) {
    const uint64_t at = uint64_t{j} * a.state_dim;
    if (a.before == nullptr) {
      mamba_rows<true>(a, j, a.state_in + at);
      continue;
    }
    mamba_rows<false>(*a.before, j, a.before->state_in + at);
    mamba_rows<true>(a, j, a.before->state_out + at);
  }
}

// --- chunks ---

constexpr uint32_t kMC = kMambaChunk;

/// One chunk of n tokens of a group; rows n and later of b and c are zero.
struct MambaChunkOf {
  float *b, *c;     // [64][state_dim]
  float* news;      // [64][dim]: dt x of a head
  float* pairs;     // [64][64]: c_t.b_s
  float* weights;   // [64][64]: the same with a head's decays
  float sums[kMC];  // G of a head
  uint32_t t0, n;
};

inline void take_group(const MambaHead& a, uint32_t t0, MambaChunkOf* k) {
  const uint64_t dim = a.state_dim;
  k->t0 = t0;
  k->n = a.n_rows - t0 < kMC ? a.n_rows - t0 : kMC;
  for (uint32_t t = 0; t < kMC; ++t) {
    const uint64_t from = (uint64_t{t0} + t) * a.stride;
    for (uint32_t i = 0; i < dim; i += kW) {
      V::store(k->b + t * dim + i, t < k->n ? V::load(a.b + from + i) : V::zero());
      V::store(k->c + t * dim + i, t < k->n ? V::load(a.c + from + i) : V::zero());
    }
  }
  for (uint32_t t = 0; t < k->n; t += 4)
    dots(k->c + t * dim, dim, 4, k->b, dim, 0, t + 4, a.state_dim, k->pairs + t * kMC, kMC);
}

/// Sums of decays, and dt x.
inline void take_head(const MambaHead& a, MambaChunkOf* k) {
  float sum = 0.0f;
  for (uint32_t t = 0; t < k->n; ++t) {
    const uint64_t row = uint64_t{k->t0} + t;
    const float dt = a.dt[row * a.dt_stride];
    k->sums[t] = sum += a.a * dt;
    for (uint32_t j = 0; j < a.dim; j += kW) {
      V::store(k->news + uint64_t{t} * a.dim + j,
               V::mul(V::set1(dt), V::load(a.x + row * a.stride + j)));
    }
  }
  for (uint32_t t = k->n; t < kMC; ++t) k->sums[t] = sum;
}

/// weights[t][s] = (c_t.b_s) e^{G_t-G_s} for s <= t, zero up to the end of the group of four rows
/// that is multiplied together.
inline void weigh_pairs(const MambaChunkOf& k) {
  for (uint32_t t = 0; t < k.n; ++t) {
    const V::R top = V::set1(k.sums[t]);
    float* to = k.weights + t * kMC;
    for (uint32_t s = 0; s <= t; s += kW) {
      const V::R f = vexp(V::sub(top, V::load(k.sums + s)));
      V::store(to + s, V::mul(V::load(k.pairs + t * kMC + s), f));
    }
    for (uint32_t s = t + 1; s < t / 4 * 4 + 4; ++s) to[s] = 0.0f;
  }
}

inline void chunk_outputs(const MambaHead& a, const MambaChunkOf& k, const float* state) {
  float* out = a.out + k.t0 * a.out_stride;
  const uint64_t o = a.out_stride, dim = a.state_dim;
  dots(k.c, dim, k.n, state, dim, 0, a.dim, a.state_dim, out, o);
  const V::R skip = V::set1(a.skip);
  for (uint32_t t = 0; t < k.n; ++t) {
    const V::R decay = vexp(V::set1(k.sums[t]));
    const float* x = a.x + (uint64_t{k.t0} + t) * a.stride;
    for (uint32_t j = 0; j < a.dim; j += kW) {
      float* at = out + t * o + j;
      V::store(at, V::fma(skip, V::load(x + j), V::mul(decay, V::load(at))));
    }
  }
  for (uint32_t t = 0; t < k.n; t += 4) {
    const uint32_t rows = k.n - t < 4 ? k.n - t : 4;
    axpy({k.weights + t * kMC, kMC, 1}, rows, k.news, a.dim, 0, t + rows, a.dim, out + t * o, o);
  }
}

inline void chunk_state(const MambaHead& a, const MambaChunkOf& k, const float* from) {
  const float end = k.sums[kMC - 1];
  for (uint32_t s = 0; s < k.n; ++s) {
    const V::R f = vexp(V::set1(end - k.sums[s]));
    float* row = k.news + uint64_t{s} * a.dim;
    for (uint32_t j = 0; j < a.dim; j += kW) V::store(row + j, V::mul(V::load(row + j), f));
  }
  const V::R decay = vexp(V::set1(end));
  const uint64_t n = uint64_t{a.dim} * a.state_dim;
  for (uint64_t i = 0; i < n; i += kW) V::store(a.state_out + i, V::mul(V::load(from + i), decay));
  axpy({k.news, 1, a.dim}, a.dim, k.b, a.state_dim, 0, k.n, a.state_dim, a.state_out, a.state_dim);
}

void mamba_chunks(const MambaHeads& g) {
  const MambaHead& first = g.heads[0];
  const uint64_t size = uint64_t{kMC} * first.state_dim;
  MambaChunkOf k{};
  k.b = g.work;
  k.c = k.b + size;
  k.news = k.c + size;
  k.pairs = k.news + uint64_t{kMC} * first.dim;
  k.weights = k.pairs + kMC * kMC;
  for (uint32_t t0 = 0; t0 < first.n_rows; t0 += kMC) {
    take_group(first, t0, &k);
    for (uint32_t h = 0; h < g.n_heads; ++h) {
      const MambaHead& a = g.heads[h];
      const float* state = t0 == 0 ? a.state_in : a.state_out;
      take_head(a, &k);
      weigh_pairs(k);
      chunk_outputs(a, k, state);
      chunk_state(a, k, state);
    }
  }
}

constexpr Mamba2Table make_mamba2_table() {
  return {.width = V::kWidth, .conv = conv, .recurrence = mamba_recurrence, .chunks = mamba_chunks};
}

}  // namespace
}  // namespace sharpi::cpu
