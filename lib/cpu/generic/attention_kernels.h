// SPDX-License-Identifier: MIT
// Attention of a block of query vectors with one tile of keys, in f32, over the vectors V:
//   s = q.k;  m' = max(m, s);  p = exp(s - m');  l = l e^(m-m') + sum p;  o = o e^(m-m') + p V
// q [n][padded] already scaled, K and V [64][stride] f32. Bound: in decode by reading K and V once;
// in prefill by the FMAs (cpu/generic/mat_kernels.h). A vector's bits do not depend on the block it
// is in. Thread rule: pure functions with internal linkage.
#pragma once

#include <cstdint>

#include "cpu/attention_table.h"
#include "cpu/generic/attention_rows.h"
#include "cpu/generic/mat_kernels.h"
#include "cpu/generic/vec_math.h"

namespace sharpi::cpu {
namespace {

static_assert(kTileKeys % V::kWidth == 0);

/// A head's part of a row as f32, from element i on, zeros up to `padded`.
template <class Row>
inline void decode_row(const TileRows& t, const Row& row, uint32_t padded, float* out,
                       uint32_t i = 0) {
  if constexpr (ScalesTable<Row>) {
    if (t.first % kQ8Block == 0) {
      for (; i + kQ8Block <= t.dim; i += kQ8Block) {
        V::R values[kQ8Block / V::kWidth];
        row.block(i, values);
        for (uint32_t j = 0; j < kQ8Block / V::kWidth; ++j)
          V::store(out + i + j * V::kWidth, values[j]);
      }
    }
  }
  if (t.dim % V::kWidth == 0 && t.first % V::kWidth == 0) {
    for (; i < t.dim; i += V::kWidth) V::store(out + i, row.vector(i));
  }
  for (; i < t.dim; ++i) out[i] = row.element(i);
  for (; i < padded; ++i) out[i] = 0.0f;
}

/// Works off an Ahead in n_calls pauses.
class Prefetcher {
 public:
  Prefetcher(const Ahead& a, uint32_t n_calls) : a_(a) {
    const uint32_t lines = (a.bytes + kLine - 1) / kLine * a.n_rows;
    per_call_ = n_calls == 0 ? 0 : (lines + n_calls - 1) / n_calls;
  }
  void operator()() {
    for (uint32_t i = 0; i < per_call_ && a_.n_rows > 0; ++i) {
      __builtin_prefetch(a_.row + at_, 0, 2);
      at_ += kLine;
      if (at_ < a_.bytes) continue;
      at_ = 0;
      a_.row += a_.pitch;
      --a_.n_rows;
    }
  }

 private:
  static constexpr uint32_t kLine = 64;
  Ahead a_;
  uint32_t at_ = 0, per_call_ = 0;
};

/// Decodes keys [from, to) of a head to f32 [to - from][padded].
template <KvDtype kType>
void load_rows(const TileRows& t, uint32_t from, uint32_t to, uint32_t padded, float* out,
               Prefetcher& ahead) {
  using Row = StoredRow<kType>;
  const typename Row::Head head = Row::head(t);
  const uint32_t blocks = block_elements<Row>(head, t.dim);
  const uint32_t asked_end = heads_lie_apart<kType>(t) ? t.end : 0;
  for (uint32_t key = from; key < to; ++key, out += padded) {
    ahead();
    if constexpr (V::kRowsAhead != 0) {
      if (key + V::kRowsAhead < asked_end) ask_for<kType>(t, t.rows[key + V::kRowsAhead]);
    }
    if constexpr (HasBlocks<Row>) {
      decode_blocks<Row>(head, t.rows[key], blocks, out);
      if (blocks == padded) continue;
    }
    decode_row(t, Row(head, t.rows[key]), padded, out, blocks);
  }
}

using RowLoader = void (*)(const TileRows&, uint32_t from, uint32_t to, uint32_t padded, float* out,
                           Prefetcher& ahead);

RowLoader row_loader(KvDtype dtype) {
  return visit_kv_codec(
      dtype, []<KvDtype kType>() -> RowLoader { return load_rows<kType>; },
      []() -> RowLoader { return nullptr; });
}

bool has_codec(KvDtype dtype) {
  return row_loader(dtype) != nullptr;
}

/// Few vectors use a decoded key once: pieces of 16 keys stay in L1 on their way. Many vectors come
/// back to it: the whole tile is decoded. Stored f32 rows are read where they lie by few vectors.
constexpr uint32_t kFewVectors = 8, kPieceKeys = 16;
static_assert(kPieceKeys % V::kWidth == 0);

/// Rows of a tile as f32, piece by piece.
class Pieces {
 public:
  Pieces(const TileRows& t, uint32_t n_vectors, uint32_t padded, float* buffer, Prefetcher& ahead)
      : t_(t),
        ahead_(ahead),
        padded_(padded),
        buffer_(buffer),
        load_(row_loader(t.dtype)),
        size_(n_vectors <= kFewVectors ? kPieceKeys : kTileKeys) {
    in_place_ = t.dtype == KvDtype::kF32 && n_vectors <= kFewVectors && t.pitch != 0 &&
                t.dim == padded && t.begin == 0 && t.end == kTileKeys;
  }
  /// body(rows, stride, base, p0, p1): f32 rows of keys [p0, p1), that of key `base` first. Rows
  /// are readable up to multiples of W around them; what is outside [p0, p1) has no meaning.
  template <class Body>
  void each(Body body) const {
    for (uint32_t base = t_.begin / size_ * size_; base < t_.end; base += size_) {
      if (in_place_) {
        const auto* row = reinterpret_cast<const float*>(t_.rows[0] + base * t_.pitch) + t_.first;
        body(row, t_.pitch / sizeof(float), base, base, base + size_);
        continue;
      }
      const uint32_t p0 = base > t_.begin ? base : t_.begin;
      const uint32_t p1 = base + size_ < t_.end ? base + size_ : t_.end;
      load_(t_, p0, p1, padded_, buffer_ + uint64_t{p0 - base} * padded_, ahead_);
      body(buffer_, padded_, base, p0, p1);
    }
  }

 private:
  const TileRows& t_;
  Prefetcher& ahead_;
  uint32_t padded_;
  float* buffer_;
  RowLoader load_;
  uint32_t size_;
  bool in_place_ = false;
};

void prepare_q(const float* const* vectors, uint32_t n, uint32_t dim, uint32_t padded, float scale,
               std::byte* q) {
  float* out = reinterpret_cast<float*>(q);
  for (uint32_t i = 0; i < n; ++i, out += padded) {
    for (uint32_t j = 0; j < dim; ++j) out[j] = vectors[i][j] * scale;
    for (uint32_t j = dim; j < padded; ++j) out[j] = 0.0f;
  }
}

inline void scale_row(float* o, float f, uint32_t padded) {
  const V::R v = V::set1(f);
  for (uint32_t i = 0; i < padded; i += V::kWidth) V::store(o + i, V::mul(V::load(o + i), v));
}

inline float vexp1(float x) {
  return V::first(vexp(V::set1(x)));
}

inline V::R load_first(const float* p, uint32_t n) {
  return n == V::kWidth ? V::load(p) : V::load_n(p, n);
}
inline void store_first(float* p, V::R v, uint32_t n) {
  if (n == V::kWidth) {
    V::store(p, v);
  } else {
    V::store_n(p, v, n);
  }
}

/// Scores to weights, in place, for n <= W neighbouring vectors; one lane per vector for maxima and
/// sums. Updates m and l and rescales o. Lanes are independent, and a key that is not seen is a
/// weight of 0 in them, so a vector's bits do not depend on its neighbours or on its tile's
/// borders. kExp: exp(x) of x <= 0, exactly 0 of -inf.
template <V::R (*kExp)(V::R) = vexp>
inline void softmax_rows(const AttentionTile& a, float* scores, uint32_t v0, uint32_t n) {
  constexpr uint32_t kW = V::kWidth;
  const float masked = -__builtin_inff();
  V::R fold[kW];
  for (uint32_t i = 0; i < n; ++i) {
    float* s = scores + i * kTileKeys;
    for (uint32_t t = 0; t < a.lo[v0 + i]; ++t) s[t] = masked;
    for (uint32_t t = a.hi[v0 + i]; t < kTileKeys; ++t) s[t] = masked;
    fold[i] = V::load(s);
    for (uint32_t t = kW; t < kTileKeys; t += kW) fold[i] = V::max(fold[i], V::load(s + t));
  }
  for (uint32_t i = n; i < kW; ++i) fold[i] = V::set1(masked);
  const V::R old_m = load_first(a.state.m + v0, n);
  const V::R new_m = V::max(old_m, V::max_each(fold));
  // Finite also for a vector that has seen no key yet.
  const V::R shift = V::max(new_m, V::set1(-3.0e38f));
  const V::R keep = vexp(V::sub(old_m, shift));
  alignas(64) float shifts[kW], keeps[kW];
  V::store(shifts, shift);
  V::store(keeps, keep);
  for (uint32_t i = 0; i < n; ++i) {
    float* s = scores + i * kTileKeys;
    const V::R top = V::set1(shifts[i]);
    fold[i] = V::zero();
    for (uint32_t t = 0; t < kTileKeys; t += kW) {
      const V::R p = kExp(V::sub(V::load(s + t), top));
      V::store(s + t, p);
      fold[i] = V::add(fold[i], p);
    }
  }
  for (uint32_t i = n; i < kW; ++i) fold[i] = V::zero();
  const V::R l = V::fma(load_first(a.state.l + v0, n), keep, V::sum_each(fold));
  store_first(a.state.l + v0, l, n);
  store_first(a.state.m + v0, new_m, n);
  if (V::all_equal(old_m, new_m)) return;
  for (uint32_t i = 0; i < n; ++i) {
    if (keeps[i] != 1.0f) scale_row(a.state.o + uint64_t{v0 + i} * a.padded, keeps[i], a.padded);
  }
}

/// o += p V over keys [p0, p1) for neighbouring vectors: together where all of them see the keys,
/// alone elsewhere, each with its keys ascending. A key that a vector does not see is never
/// multiplied in, not even by 0.
inline void weigh_values(const AttentionTile& a, const float* scores, uint32_t v0, uint32_t n,
                         const float* rows, uint64_t stride, uint32_t base, uint32_t p0,
                         uint32_t p1, Prefetcher& ahead) {
  uint32_t from = p0, to = p1;
  for (uint32_t i = v0; i < v0 + n; ++i) {
    from = a.lo[i] > from ? a.lo[i] : from;
    to = a.hi[i] < to ? a.hi[i] : to;
  }
  const auto run = [&](uint32_t i, uint32_t count, uint32_t t0, uint32_t t1) {
    if (t0 >= t1) return;
    axpy({scores + uint64_t{i} * kTileKeys + base, kTileKeys, 1}, count, rows, stride, t0 - base,
         t1 - base, a.padded, a.state.o + uint64_t{i} * a.padded, a.padded, ahead);
  };
  const auto lo = [&](uint32_t i) { return a.lo[i] > p0 ? a.lo[i] : p0; };
  const auto hi = [&](uint32_t i) { return a.hi[i] < p1 ? a.hi[i] : p1; };
  if (from >= to) {
    for (uint32_t i = v0; i < v0 + n; ++i) run(i, 1, lo(i), hi(i));
    return;
  }
  for (uint32_t i = v0; i < v0 + n; ++i) run(i, 1, lo(i), from);
  run(v0, n, from, to);
  for (uint32_t i = v0; i < v0 + n; ++i) run(i, 1, to, hi(i));
}

void add_tile(const AttentionTile& a) {
  constexpr uint32_t kW = V::kWidth;
  float* scores = reinterpret_cast<float*>(a.work);  // [n_vectors][64]
  float* buffer = scores + uint64_t{a.n_vectors} * kTileKeys;
  // Pauses of one pass over the keys; further groups of vectors find nothing left to ask for.
  const uint32_t at_once = a.n_vectors < 4 ? a.n_vectors : 4;
  Prefetcher ahead_k(a.ahead_k, kTileKeys * at_once / kW + kTileKeys);
  Prefetcher ahead_v(a.ahead_v, 2 * kTileKeys);

  Pieces(a.k, a.n_vectors, a.padded, buffer, ahead_k)
      .each([&](const float* rows, uint64_t stride, uint32_t base, uint32_t p0, uint32_t p1) {
        dots(reinterpret_cast<const float*>(a.q), a.padded, a.n_vectors, rows, stride, p0 - base,
             p1 - base, a.padded, scores + base, kTileKeys, ahead_k);
      });
  for (uint32_t i = 0; i < a.n_vectors; i += kW) {
    softmax_rows(a, scores + uint64_t{i} * kTileKeys, i,
                 a.n_vectors - i < kW ? a.n_vectors - i : kW);
  }
  Pieces(a.v, a.n_vectors, a.padded, buffer, ahead_v)
      .each([&](const float* rows, uint64_t stride, uint32_t base, uint32_t p0, uint32_t p1) {
        for (uint32_t i = 0; i < a.n_vectors; i += 4) {
          weigh_values(a, scores, i, a.n_vectors - i < 4 ? a.n_vectors - i : 4, rows, stride, base,
                       p0, p1, ahead_v);
        }
      });
}

void merge(const SoftmaxState& total, const SoftmaxState& part, uint32_t n, uint32_t padded) {
  for (uint32_t i = 0; i < n; ++i) {
    if (part.l[i] == 0.0f) continue;  // saw no key of the span
    const float m = total.m[i] > part.m[i] ? total.m[i] : part.m[i];
    const float old_f = vexp1(total.m[i] - m), new_f = vexp1(part.m[i] - m);
    total.m[i] = m;
    total.l[i] = total.l[i] * old_f + part.l[i] * new_f;
    const V::R old_v = V::set1(old_f), new_v = V::set1(new_f);
    float* o = total.o + uint64_t{i} * padded;
    const float* p = part.o + uint64_t{i} * padded;
    for (uint32_t j = 0; j < padded; j += V::kWidth) {
      V::store(o + j, V::fma(V::load(p + j), new_v, V::mul(V::load(o + j), old_v)));
    }
  }
}

void finish(const float* o, float l, uint32_t dim, float* out) {
  const float f = 1.0f / l;
  for (uint32_t i = 0; i < dim; ++i) out[i] = o[i] * f;
}

uint64_t q_bytes(uint32_t n, uint32_t padded) {
  return uint64_t{n} * padded * sizeof(float);
}
uint64_t work_bytes(uint32_t n, uint32_t padded) {
  return uint64_t{kTileKeys} * (n + padded) * sizeof(float);
}

constexpr AttentionTable make_attention_table() {
  return {.pad_to = V::kWidth,
          .max_vectors = 64,
          .has_codec = has_codec,
          .q_bytes = q_bytes,
          .work_bytes = work_bytes,
          .prepare_q = prepare_q,
          .add_tile = add_tile,
          .merge = merge,
          .finish = finish};
}

}  // namespace
}  // namespace sharpi::cpu
