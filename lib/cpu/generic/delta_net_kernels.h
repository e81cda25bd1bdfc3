// SPDX-License-Identifier: MIT
// The gated delta net over the vectors V. State S [value channel j][key channel i], f32.
//   recurrence, per token: p_j = e^g S_j.k;  d_j = beta (v_j - p_j);  o_j = e^g S_j.q + d_j (k.q);
//                          S_j = e^g S_j + d_j k
//     Rows of the state are independent: a few rows stay in L1 over all tokens. Bound in decode:
//     the state is read and written once.
//   chunks of 64 tokens, G = running sum of g (arXiv 2412.06464, section 3.3):
//     N_t = beta_t (v_t - e^{G_t} S k_t) - sum_{s<t} beta_t (k_t.k_s) e^{G_t-G_s} N_s
//     o_t = e^{G_t} S q_t + sum_{s<=t} (q_t.k_s) e^{G_t-G_s} N_s
//     S   = e^{G_C} S + sum_s e^{G_C-G_s} N_s k_s^T
//     G reaches -1000 and less: exponents are subtracted before exp.
// Thread rule: pure functions with internal linkage.
#pragma once

#include <cstdint>

#include "cpu/delta_net_table.h"
#include "cpu/generic/mat_kernels.h"
#include "cpu/generic/recurrent_kernels.h"
#include "cpu/generic/vec_math.h"

namespace sharpi::cpu {
namespace {

/// State rows advanced together: their two dot products fill one sum_each.
constexpr uint32_t kStateRows = kW >= 8 ? kW / 2 : 1;

// --- recurrence ---

/// S_j.k and S_j.q of kStateRows rows to sums[0, kStateRows) and sums[kStateRows, ...); the latter
/// are zero where nobody wants outputs. Either way the former have the same bits.
template <bool kOut>
inline void state_dots(const float* s, const float* k, const float* q, uint32_t dim, float* sums) {
  V::R acc[2 * kStateRows];
#pragma GCC unroll 16
  for (uint32_t r = 0; r < 2 * kStateRows; ++r) acc[r] = V::zero();
  for (uint32_t c = 0; c < dim; c += kW) {
    const V::R kv = V::load(k + c), qv = kOut ? V::load(q + c) : V::zero();
#pragma GCC unroll 8
    for (uint32_t r = 0; r < kStateRows; ++r) {
      const V::R sv = V::load(s + uint64_t{r} * dim + c);
      acc[r] = V::fma(sv, kv, acc[r]);
      if constexpr (kOut) acc[kStateRows + r] = V::fma(sv, qv, acc[kStateRows + r]);
    }
  }
  if constexpr (kW >= 8) {
    V::store(sums, V::sum_each(acc));
  } else {
    for (uint32_t r = 0; r < 2 * kStateRows; ++r) sums[r] = V::sum(acc[r]);
  }
}

/// kStateRows rows of the state, from row j on, over all tokens; they stay in L1. `from` is where
/// they are before the first.
template <bool kOut>
inline void advance_rows(const DeltaHead& a, uint32_t j, const float* from) {
  const float *decay = a.work, *kq = a.work + a.n_rows;
  float* to = a.state_out + uint64_t{j} * a.dim;
  for (uint32_t t = 0; t < a.n_rows; ++t, from = to) {
    const float* k = a.k + t * a.stride;
    alignas(64) float sums[2 * kStateRows];
    state_dots<kOut>(from, k, a.q + t * a.stride, a.dim, sums);
    float d[kStateRows];
    for (uint32_t r = 0; r < kStateRows; ++r) {
      d[r] = a.beta[t] * (a.v[t * a.stride + j + r] - decay[t] * sums[r]);
      if constexpr (kOut)
        a.out[t * a.out_stride + j + r] = decay[t] * sums[kStateRows + r] + d[r] * kq[t];
    }
    const V::R f = V::set1(decay[t]);
    for (uint32_t c = 0; c < a.dim; c += kW) {
      const V::R kv = V::load(k + c);
#pragma GCC unroll 8
      for (uint32_t r = 0; r < kStateRows; ++r) {
        const uint64_t at = uint64_t{r} * a.dim + c;
        V::store(to + at, V::fma(V::set1(d[r]), kv, V::mul(V::load(from + at), f)));
      }
    }
  }
}

inline void recurrence_gates(const DeltaHead& a, bool outputs) {
  for (uint32_t t = 0; t < a.n_rows; ++t) {
    a.work[t] = exp1(a.g[t]);
    if (outputs) a.work[a.n_rows + t] = dot_rows(a.k + t * a.stride, a.q + t * a.stride, a.dim);
  }
}

void recurrence(const DeltaHead& a) {
  recurrence_gates(a, true);
  if (a.before != nullptr) recurrence_gates(*a.before, false);
  for (uint32_t j = 0; j < a.dim; j += kStateRows) {
    const uint64_t at = uint64_t{j} * a.dim;
    if (a.before == nullptr) {
      advance_rows<true>(a, j, a.state_in + at);
      continue;
    }
    advance_rows<false>(*a.before, j, a.before->state_in + at);
    advance_rows<true>(a, j, a.before->state_out + at);
  }
}

// --- chunks ---

constexpr uint32_t kC = kDeltaChunk;

/// The matrices of one chunk of n tokens; rows n and later of k and q are zero.
struct Chunk {
  float *k, *q, *news, *ks, *qs;  // [64][dim]
  float *kk, *qk;                 // [64][64]
  float sums[kC];                 // G
  uint32_t n, dim;
};

inline void take_chunk(const DeltaHead& a, uint32_t t0, Chunk* c) {
  c->n = a.n_rows - t0 < kC ? a.n_rows - t0 : kC;
  for (uint32_t t = 0; t < kC; ++t) {
    float* k = c->k + uint64_t{t} * c->dim;
    float* q = c->q + uint64_t{t} * c->dim;
    const uint64_t from = (t0 + t) * a.stride;
    for (uint32_t i = 0; i < c->dim; i += kW) {
      V::store(k + i, t < c->n ? V::load(a.k + from + i) : V::zero());
      V::store(q + i, t < c->n ? V::load(a.q + from + i) : V::zero());
    }
  }
  float sum = 0.0f;
  for (uint32_t t = 0; t < c->n; ++t) c->sums[t] = sum += a.g[t0 + t];
  for (uint32_t t = c->n; t < kC; ++t) c->sums[t] = sum;
}

/// kk[t][s] = -beta_t (k_t.k_s) e^{G_t-G_s} for s < t, qk[t][s] = (q_t.k_s) e^{G_t-G_s} for s <= t,
/// zero up to the end of the group of four rows that is multiplied together.
inline void pair_weights(const DeltaHead& a, uint32_t t0, const Chunk& c) {
  const uint32_t rows = (c.n + 3) / 4 * 4;
  for (uint32_t t = 0; t < rows; t += 4) {
    dots(c.k + uint64_t{t} * c.dim, c.dim, 4, c.k, c.dim, 0, t + 4, c.dim, c.kk + t * kC, kC);
    dots(c.q + uint64_t{t} * c.dim, c.dim, 4, c.k, c.dim, 0, t + 4, c.dim, c.qk + t * kC, kC);
  }
  for (uint32_t t = 0; t < c.n; ++t) {
    float* kk = c.kk + t * kC;
    float* qk = c.qk + t * kC;
    const V::R top = V::set1(c.sums[t]), beta = V::set1(-a.beta[t0 + t]);
    for (uint32_t s = 0; s <= t; s += kW) {
      const V::R f = vexp(V::sub(top, V::load(c.sums + s)));
      V::store(kk + s, V::mul(V::mul(V::load(kk + s), beta), f));
      V::store(qk + s, V::mul(V::load(qk + s), f));
    }
    const uint32_t end = t / 4 * 4 + 4;
    for (uint32_t s = t; s < end; ++s) kk[s] = 0.0f;
    for (uint32_t s = t + 1; s < end; ++s) qk[s] = 0.0f;
  }
}

/// news := N by forward substitution, four rows at a time; out := o.
inline void solve_chunk(const DeltaHead& a, uint32_t t0, const Chunk& c) {
  for (uint32_t t = 0; t < c.n; ++t) {
    const V::R decay = vexp(V::set1(c.sums[t])), beta = V::set1(a.beta[t0 + t]);
    const float* v = a.v + (t0 + t) * a.stride;
    const uint64_t row = uint64_t{t} * c.dim;
    for (uint32_t j = 0; j < c.dim; j += kW) {
      const V::R error = V::fnma(decay, V::load(c.ks + row + j), V::load(v + j));
      V::store(c.news + row + j, V::mul(beta, error));
      V::store(c.qs + row + j, V::mul(decay, V::load(c.qs + row + j)));
    }
  }
  for (uint32_t t = 0; t < c.n; t += 4) {
    const uint32_t rows = c.n - t < 4 ? c.n - t : 4;
    axpy({c.kk + t * kC, kC, 1}, rows, c.news, c.dim, 0, t, c.dim, c.news + uint64_t{t} * c.dim,
         c.dim);
    for (uint32_t i = t + 1; i < t + rows; ++i) {
      axpy({c.kk + i * kC, kC, 1}, 1, c.news, c.dim, t, i, c.dim, c.news + uint64_t{i} * c.dim,
           c.dim);
    }
  }
  for (uint32_t t = 0; t < c.n; t += 4) {
    const uint32_t rows = c.n - t < 4 ? c.n - t : 4;
    axpy({c.qk + t * kC, kC, 1}, rows, c.news, c.dim, 0, t + rows, c.dim,
         c.qs + uint64_t{t} * c.dim, c.dim);
  }
  for (uint32_t t = 0; t < c.n; ++t) {
    float* out = a.out + (t0 + t) * a.out_stride;
    for (uint32_t j = 0; j < c.dim; j += kW)
      V::store(out + j, V::load(c.qs + uint64_t{t} * c.dim + j));
  }
}

inline void advance_state(const Chunk& c, const float* from, float* to) {
  const float end = c.sums[kC - 1];
  for (uint32_t s = 0; s < c.n; ++s) {
    const V::R f = vexp(V::set1(end - c.sums[s]));
    float* row = c.news + uint64_t{s} * c.dim;
    for (uint32_t j = 0; j < c.dim; j += kW) V::store(row + j, V::mul(V::load(row + j), f));
  }
  const V::R decay = vexp(V::set1(end));
  const uint64_t n = uint64_t{c.dim} * c.dim;
  for (uint64_t i = 0; i < n; i += kW) V::store(to + i, V::mul(V::load(from + i), decay));
  axpy({c.news, 1, c.dim}, c.dim, c.k, c.dim, 0, c.n, c.dim, to, c.dim);
}

void chunks(const DeltaHead& a) {
  const uint64_t size = uint64_t{kC} * a.dim;
  Chunk c{};
  c.dim = a.dim;
  c.k = a.work;
  c.q = c.k + size;
  c.news = c.q + size;
  c.ks = c.news + size;
  c.qs = c.ks + size;
  c.kk = c.qs + size;
  c.qk = c.kk + kC * kC;
  const float* state = a.state_in;
  for (uint32_t t0 = 0; t0 < a.n_rows; t0 += kC, state = a.state_out) {
    take_chunk(a, t0, &c);
    pair_weights(a, t0, c);
    dots(c.k, c.dim, c.n, state, c.dim, 0, c.dim, c.dim, c.ks, c.dim);
    dots(c.q, c.dim, c.n, state, c.dim, 0, c.dim, c.dim, c.qs, c.dim);
    solve_chunk(a, t0, c);
    advance_state(c, state, a.state_out);
  }
}

void gate(const DeltaGate& a) {
  for (uint32_t t = 0; t < a.n_rows; ++t) {
    float* out = a.out + t * a.out_stride;
    const float* z = a.z + t * a.z_stride;
    const float mean = dot_rows(out, out, a.dim) / static_cast<float>(a.dim);
    const V::R r = V::set1(1.0f / __builtin_sqrtf(mean + a.eps));
    for (uint32_t i = 0; i < a.dim; i += kW) {
      const V::R normed = V::mul(V::mul(V::load(out + i), r), V::load(a.norm + i));
      V::store(out + i, V::mul(normed, vsilu(V::load(z + i))));
    }
  }
}

constexpr DeltaTable make_delta_table() {
  return {
      .width = V::kWidth, .conv = conv, .recurrence = recurrence, .chunks = chunks, .gate = gate};
}

}  // namespace
}  // namespace sharpi::cpu
