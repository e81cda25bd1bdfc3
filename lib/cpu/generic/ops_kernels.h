// SPDX-License-Identifier: MIT
// The row operations of cpu/ops.h, written once over the vectors V of vec_<isa>.h. A row's bits
// depend on its length and values only: accumulators and tails are fixed by n.
// Thread rule: pure functions with internal linkage.
#pragma once

#include <cstdint>

#include "cpu/generic/row_kernels.h"
#include "cpu/generic/vec_math.h"
#include "cpu/ops_table.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t W = V::kWidth;
// Independent sums that cover the latency of an FMA (4 cycles, 2 per cycle).
constexpr uint32_t kSums = 8;

/// body(i, n): n = W for whole vectors, less for the tail.
template <class Body>
inline void for_vectors(uint64_t n, Body body) {
  uint64_t i = 0;
  for (; i + W <= n; i += W) body(i, W);
  if (i < n) body(i, static_cast<uint32_t>(n - i));
}

inline V::R load_part(const float* p, uint32_t n) {
  return n == W ? V::load(p) : V::load_n(p, n);
}
inline void store_part(float* p, V::R v, uint32_t n) {
  if (n == W) {
    V::store(p, v);
  } else {
    V::store_n(p, v, n);
  }
}

float ops_dot(const float* a, const float* b, uint64_t n) {
  V::R s[kSums];
  for (V::R& v : s) v = V::zero();
  uint64_t i = 0;
  for (; i + kSums * W <= n; i += kSums * W) {
    for (uint32_t j = 0; j < kSums; ++j) {
      s[j] = V::fma(V::load(a + i + j * W), V::load(b + i + j * W), s[j]);
    }
  }
  uint32_t j = 0;
  for (; i < n; i += W, ++j) {
    const uint32_t part = n - i < W ? static_cast<uint32_t>(n - i) : W;
    s[j] = V::fma(load_part(a + i, part), load_part(b + i, part), s[j]);
  }
  for (uint32_t half = kSums / 2; half > 0; half /= 2) {
    for (uint32_t k = 0; k < half; ++k) s[k] = V::add(s[k], s[k + half]);
  }
  return V::sum(s[0]);
}

void ops_rms_norm(const float* x, const float* w, float eps, uint64_t n, float* y) {
  const float mean = ops_dot(x, x, n) / static_cast<float>(n);
  const V::R r = V::set1(1.0f / __builtin_sqrtf(mean + eps));
  if (w == nullptr) {
    for_vectors(
        n, [=](uint64_t i, uint32_t m) { store_part(y + i, V::mul(load_part(x + i, m), r), m); });
    return;
  }
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    store_part(y + i, V::mul(V::mul(load_part(x + i, m), r), load_part(w + i, m)), m);
  });
}

void ops_layer_norm(const float* x, const float* w, const float* b, float eps, uint64_t n,
                    float* y) {
  V::R sums[2] = {V::zero(), V::zero()};
  for_vectors(n, [&](uint64_t i, uint32_t m) {
    sums[i / W % 2] = V::add(sums[i / W % 2], load_part(x + i, m));
  });
  const float mean = V::sum(V::add(sums[0], sums[1])) / static_cast<float>(n);
  const V::R centre = V::set1(mean);
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    store_part(y + i, V::sub(load_part(x + i, m), centre), m);
  });
  const float variance = ops_dot(y, y, n) / static_cast<float>(n);
  const V::R r = V::set1(1.0f / __builtin_sqrtf(variance + eps));
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    const V::R scaled = V::mul(V::mul(load_part(y + i, m), r), load_part(w + i, m));
    store_part(y + i, b == nullptr ? scaled : V::add(scaled, load_part(b + i, m)), m);
  });
}

void ops_rope_halves(float* x, uint32_t n_heads, uint32_t head_dim, uint32_t n_half,
                     const float* cos, const float* sin) {
  for (uint32_t h = 0; h < n_heads; ++h) {
    float* lo = x + uint64_t{h} * head_dim;
    float* hi = lo + n_half;
    for_vectors(n_half, [=](uint64_t i, uint32_t m) {
      const V::R a = load_part(lo + i, m), b = load_part(hi + i, m);
      const V::R c = load_part(cos + i, m), s = load_part(sin + i, m);
      store_part(lo + i, V::fnma(b, s, V::mul(a, c)), m);
      store_part(hi + i, V::fma(a, s, V::mul(b, c)), m);
    });
  }
}

/// Left to the compiler's vectoriser: pairs are neighbours, and a row has few of them.
void ops_rope_neighbours(float* x, uint32_t n_heads, uint32_t head_dim, uint32_t n_half,
                         const float* __restrict cos, const float* __restrict sin) {
  for (uint32_t h = 0; h < n_heads; ++h) {
    float* __restrict pairs = x + uint64_t{h} * head_dim;
    for (uint32_t j = 0; j < n_half; ++j) {
      const float a = pairs[2 * j], b = pairs[2 * j + 1];
      pairs[2 * j] = a * cos[j] - b * sin[j];
      pairs[2 * j + 1] = b * cos[j] + a * sin[j];
    }
  }
}

void ops_add(float* y, const float* x, uint64_t n) {
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    store_part(y + i, V::add(load_part(y + i, m), load_part(x + i, m)), m);
  });
}

void ops_scale(float* y, float s, uint64_t n) {
  const V::R f = V::set1(s);
  for_vectors(
      n, [=](uint64_t i, uint32_t m) { store_part(y + i, V::mul(load_part(y + i, m), f), m); });
}

void ops_add_scaled(float* y, const float* x, float s, uint64_t n) {
  const V::R f = V::set1(s);
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    store_part(y + i, V::fma(load_part(x + i, m), f, load_part(y + i, m)), m);
  });
}

void ops_swiglu(const float* gate, const float* up, uint64_t n, float* y) {
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    store_part(y + i, V::mul(vsilu(load_part(gate + i, m)), load_part(up + i, m)), m);
  });
}

void ops_geglu(const float* gate, const float* up, uint64_t n, float* y) {
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    store_part(y + i, V::mul(vgelu(load_part(gate + i, m)), load_part(up + i, m)), m);
  });
}

void ops_swiglu_clamped(const float* gate, const float* up, uint64_t n, float* y) {
  const V::R limit = V::set1(7.0f), low = V::set1(-7.0f), one = V::set1(1.0f);
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    const V::R g = V::min(load_part(gate + i, m), limit);
    const V::R u = V::max(low, V::min(load_part(up + i, m), limit));
    const V::R swish = V::mul(g, vsigmoid(V::mul(g, V::set1(1.702f))));
    store_part(y + i, V::mul(swish, V::add(u, one)), m);
  });
}

void ops_gelu(float* y, const float* bias, uint64_t n) {
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    const V::R x = load_part(y + i, m);
    store_part(y + i, vgelu_erf(bias == nullptr ? x : V::add(x, load_part(bias + i, m))), m);
  });
}

void ops_relu_squared(float* y, const float* bias, uint64_t n) {
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    V::R x = load_part(y + i, m);
    if (bias != nullptr) x = V::add(x, load_part(bias + i, m));
    x = V::max(V::zero(), x);  // x where it is no number
    store_part(y + i, V::mul(x, x), m);
  });
}

void ops_sigmoid(float* x, uint64_t n) {
  for_vectors(n,
              [=](uint64_t i, uint32_t m) { store_part(x + i, vsigmoid(load_part(x + i, m)), m); });
}

void ops_sigmoid_gate(float* y, const float* gate, uint64_t n) {
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    store_part(y + i, V::mul(load_part(y + i, m), vsigmoid(load_part(gate + i, m))), m);
  });
}

void ops_silu_gate(float* y, const float* gate, uint64_t n) {
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    store_part(y + i, V::mul(load_part(y + i, m), vsilu(load_part(gate + i, m))), m);
  });
}

void ops_softcap(float* y, float cap, uint64_t n) {
  const V::R c = V::set1(cap);
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    store_part(y + i, V::mul(c, vtanh(V::div(load_part(y + i, m), c))), m);
  });
}

void ops_softmax(float* x, uint64_t n) {
  float top = x[0];
  V::R tops = V::set1(x[0]);
  const uint64_t whole = n / W * W;
  for (uint64_t i = 0; i < whole; i += W) tops = V::max(tops, V::load(x + i));
  top = V::max_of(tops);
  for (uint64_t i = whole; i < n; ++i) top = x[i] > top ? x[i] : top;
  const V::R shift = V::set1(top);
  V::R sums[2] = {V::zero(), V::zero()};
  for_vectors(n, [&](uint64_t i, uint32_t m) {
    store_part(x + i, vexp(V::sub(load_part(x + i, m), shift)), m);
    sums[i / W % 2] = V::add(sums[i / W % 2], load_part(x + i, m));
  });
  ops_scale(x, 1.0f / V::sum(V::add(sums[0], sums[1])), n);
}

/// Calls take(term, first slot, V::R of W dots) for kTileTerms vectors of d elements and the slots
/// of a tile, term after term for the slots whose sums are in registers.
template <class Take>
inline void tile_sums(const float* const* q, const float* columns, uint64_t d, Take&& take) {
  constexpr uint32_t kVectors = W == 16 ? 4 : 2;  // of sums per term: all sums stay in registers
  for (uint32_t c = 0; c < kTileSlots; c += kVectors * W) {
    V::R s[kTileTerms][kVectors];
    for (auto& term : s) {
      for (V::R& v : term) v = V::zero();
    }
    for (uint64_t i = 0; i < d; ++i) {
      V::R column[kVectors];
      for (uint32_t v = 0; v < kVectors; ++v)
        column[v] = V::load(columns + i * kTileSlots + c + v * W);
      for (uint32_t t = 0; t < kTileTerms; ++t) {
        const V::R x = V::set1(q[t][i]);
        for (uint32_t v = 0; v < kVectors; ++v) s[t][v] = V::fma(x, column[v], s[t][v]);
      }
    }
    for (uint32_t t = 0; t < kTileTerms; ++t) {
      for (uint32_t v = 0; v < kVectors; ++v) take(t, c + v * W, s[t][v]);
    }
  }
}

void ops_tile_dots(const float* const* q, const float* columns, uint64_t d, float scale,
                   float* out) {
  const V::R factor = V::set1(scale);
  tile_sums(q, columns, d, [&](uint32_t t, uint32_t slot, V::R sum) {
    V::store(out + t * kTileSlots + slot, V::mul(sum, factor));
  });
}

void ops_tile_magnitudes(const float* const* q, const float* columns, uint64_t d, float* sums) {
  tile_sums(q, columns, d, [&](uint32_t, uint32_t slot, V::R sum) {
    const V::R magnitude = V::max(sum, V::sub(V::zero(), sum));
    V::store(sums + slot, V::add(V::load(sums + slot), magnitude));
  });
}

float ops_exp_sum(float* x, uint64_t n, float* high) {
  V::R tops = V::set1(*high);
  const uint64_t whole = n / W * W;
  for (uint64_t i = 0; i < whole; i += W) tops = V::max(tops, V::load(x + i));
  float top = V::max_of(tops);
  for (uint64_t i = whole; i < n; ++i) top = x[i] > top ? x[i] : top;
  *high = top;
  const V::R shift = V::set1(top);
  V::R sum = V::zero();
  for_vectors(n, [&](uint64_t i, uint32_t m) {
    store_part(x + i, vexp(V::sub(load_part(x + i, m), shift)), m);
    sum = V::add(sum, load_part(x + i, m));
  });
  return V::sum(sum);
}

void ops_add_mass(const float* x, uint64_t n, float shift, float scale, float weight, float* sum,
                  float* top) {
  const V::R s = V::set1(shift), f = V::set1(scale), w = V::set1(weight);
  for_vectors(n, [=](uint64_t i, uint32_t m) {
    const V::R p = V::mul(vexp(V::sub(load_part(x + i, m), s)), f);
    store_part(sum + i, V::add(load_part(sum + i, m), p), m);
    store_part(top + i, V::max(load_part(top + i, m), V::mul(p, w)), m);
  });
}

constexpr OpsTable make_ops_table() {
  return {.rms_norm = ops_rms_norm,
          .layer_norm = ops_layer_norm,
          .rope_halves = ops_rope_halves,
          .rope_neighbours = ops_rope_neighbours,
          .add = ops_add,
          .scale = ops_scale,
          .add_scaled = ops_add_scaled,
          .swiglu = ops_swiglu,
          .geglu = ops_geglu,
          .swiglu_clamped = ops_swiglu_clamped,
          .gelu = ops_gelu,
          .relu_squared = ops_relu_squared,
          .sigmoid = ops_sigmoid,
          .sigmoid_gate = ops_sigmoid_gate,
          .silu_gate = ops_silu_gate,
          .softcap = ops_softcap,
          .softmax = ops_softmax,
          .dot = ops_dot,
          .tile_dots = ops_tile_dots,
          .tile_magnitudes = ops_tile_magnitudes,
          .exp_sum = ops_exp_sum,
          .add_mass = ops_add_mass,
          .rotate = rows_rotate,
          .unrotate = rows_unrotate,
          .encode_q4 = rows_encode_q4};
}

}  // namespace
}  // namespace sharpi::cpu
