// SPDX-License-Identifier: MIT
// Attention of many query vectors with one tile of keys in f32, in blocks of 6 vectors by 16
// columns: twelve sums hide the latency of a fused product, and eight loads feed them.
//   S[6][16 keys] += q[6] K^T[16 keys]    keys transposed, 16 at a time: lanes are keys
//   O[6][16 d]    += p[6] V[16 d]         values in panels of 16 columns
// For chunks, whose many rows share what a tile costs to decode and transpose. An element of S is
// one sum over d, one of O one sum over keys, both ascending: a vector's bits do not depend on the
// block it is in, but its scores' are not those of cpu/generic/attention_kernels.h.
// Bound: the FMAs (two thirds to three quarters of the time), then exponentials and decoding.
// Thread rule: pure functions with internal linkage.
#include "cpu/x86/vec_avx2.h"
// The vectors come first: the kernels are written over them.
#include "cpu/carver.h"
#include "cpu/generic/attention_kernels.h"
#include "cpu/x86/kernel_tables.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t kVectors = 6, kColumns = 16;
constexpr uint32_t kW = V::kWidth;
static_assert(kColumns == 2 * kW && kTileKeys % kColumns == 0);

constexpr uint32_t groups_of(uint32_t n_vectors) {
  return (n_vectors + kVectors - 1) / kVectors;
}

/// One thread's memory of a tile.
struct Buffers {
  float* scores;  // [n_vectors, rounded up to groups][64 keys], then weights
  float* rows;    // [16][padded], decoded
  float* keys;    // [padded][16 keys]
  float* values;  // [padded / 16][64 keys][16]
};
Buffers take_buffers(Carver& c, uint32_t n_vectors, uint32_t padded) {
  Buffers b{};
  b.scores = c.take<float>(uint64_t{groups_of(n_vectors)} * kVectors * kTileKeys);
  b.rows = c.take<float>(uint64_t{kColumns} * padded);
  b.keys = c.take<float>(uint64_t{kColumns} * padded);
  b.values = c.take<float>(uint64_t{kTileKeys} * padded);
  return b;
}
uint64_t chunk_work_bytes(uint32_t n, uint32_t padded) {
  Carver c(nullptr);
  take_buffers(c, n, padded);
  return c.used();
}
uint64_t chunk_q_bytes(uint32_t n, uint32_t padded) {
  return uint64_t{groups_of(n)} * kVectors * padded * sizeof(float);
}

/// [group][padded][6 vectors].
void chunk_prepare_q(const float* const* vectors, uint32_t n, uint32_t dim, uint32_t padded,
                     float scale, std::byte* q) {
  auto* to = reinterpret_cast<float*>(q);
  for (uint32_t v0 = 0; v0 < n; v0 += kVectors, to += uint64_t{kVectors} * padded) {
    for (uint32_t i = 0; i < kVectors; ++i) {
      for (uint32_t d = 0; d < padded; ++d)
        to[d * kVectors + i] = v0 + i < n && d < dim ? vectors[v0 + i][d] * scale : 0.0f;
    }
  }
}

/// Eight vectors of eight lanes: lane j of vector i becomes lane i of vector j.
[[gnu::always_inline]] inline void transpose(V::R* v) {
  V::R t[8], u[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    v[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

/// [16 keys][padded] to [padded][16 keys].
void transpose_keys(const float* rows, uint32_t padded, float* keys) {
  for (uint32_t d = 0; d < padded; d += kW) {
    for (uint32_t half = 0; half < kColumns; half += kW) {
      V::R v[kW];
#pragma GCC unroll 8
      for (uint32_t i = 0; i < kW; ++i) v[i] = V::load(rows + (half + i) * padded + d);
      transpose(v);
#pragma GCC unroll 8
      for (uint32_t i = 0; i < kW; ++i) V::store(keys + (d + i) * kColumns + half, v[i]);
    }
  }
}

/// sums[i][:] += a[t * kStep + i * kRow] * b[t][16] for n t, ascending.
template <uint32_t kStep, uint32_t kRow>
[[gnu::always_inline]] inline void add_products(const float* a, const float* b, uint32_t n,
                                                V::R (*sums)[2]) {
#pragma GCC unroll 2
  for (uint32_t t = 0; t < n; ++t, a += kStep, b += kColumns) {
    const V::R b0 = V::load(b), b1 = V::load(b + kW);
#pragma GCC unroll 6
    for (uint32_t i = 0; i < kVectors; ++i) {
      const V::R factor = V::set1(a[i * kRow]);
      sums[i][0] = V::fma(factor, b0, sums[i][0]);
      sums[i][1] = V::fma(factor, b1, sums[i][1]);
    }
  }
}

/// Whether a vector of a group from v0 on sees one of 16 keys.
bool sees_some(const AttentionTile& a, uint32_t v0, uint32_t key) {
  const uint32_t end = v0 + kVectors < a.n_vectors ? v0 + kVectors : a.n_vectors;
  for (uint32_t i = v0; i < end; ++i) {
    if (a.lo[i] < key + kColumns && a.hi[i] > key) return true;
  }
  return false;
}

/// Scores of all vectors with the 16 keys from `key` on. Those of groups that see none of them keep
/// what they were: softmax_rows() reads no score of a key that its vector does not see.
void score_keys(const AttentionTile& a, uint32_t key, const float* keys, float* scores,
                Prefetcher& ahead) {
  const float* q = reinterpret_cast<const float*>(a.q);
  for (uint32_t v0 = 0; v0 < a.n_vectors; v0 += kVectors) {
    const float* queries = q + uint64_t{v0} * a.padded;
    ahead();
    if (!sees_some(a, v0, key)) continue;
    V::R sums[kVectors][2];
#pragma GCC unroll 6
    for (uint32_t i = 0; i < kVectors; ++i) sums[i][0] = sums[i][1] = V::zero();
    add_products<kVectors, 1>(queries, keys, a.padded, sums);
    float* to = scores + uint64_t{v0} * kTileKeys + key;
#pragma GCC unroll 6
    for (uint32_t i = 0; i < kVectors; ++i, to += kTileKeys) {
      V::store(to, sums[i][0]);
      V::store(to + kW, sums[i][1]);
    }
  }
}

/// exp(x) for x <= 0 as vexp() has it, but nothing below 2^-126: a weight is added to one of 1.
/// Half of its instructions: n + 127 comes out in the low bits of a sum, and moves up to be the
/// exponent.
[[gnu::always_inline]] inline V::R exp_of_weight(V::R x) {
  const V::R magic = V::set1(12582912.0f + 127.0f);
  x = V::max(V::set1(-88.03f), x);
  const V::R t = V::fma(x, V::set1(1.44269504f), magic), n = V::sub(t, magic);
  V::R r = V::fnma(n, V::set1(0.693359375f), x);
  r = V::fnma(n, V::set1(-2.12194440e-4f), r);
  V::R q = V::set1(1.381432072e-3f);
  q = V::fma(q, r, V::set1(8.368851068e-3f));
  q = V::fma(q, r, V::set1(4.166840108e-2f));
  q = V::fma(q, r, V::set1(0.1666651952f));
  q = V::fma(q, r, V::set1(0.4999999337f));
  q = V::fma(V::mul(r, r), q, r);
  const V::R power = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
  return V::fma(q, power, power);
}

/// O of a group of vectors in 16 columns, over the keys [from, to) that all of them see.
void weigh_group(const AttentionTile& a, const float* weights, const float* panel, uint32_t from,
                 uint32_t to, float* o) {
  V::R sums[kVectors][2];
#pragma GCC unroll 6
  for (uint32_t i = 0; i < kVectors; ++i) {
    sums[i][0] = V::load(o + i * a.padded);
    sums[i][1] = V::load(o + i * a.padded + kW);
  }
  add_products<1, kTileKeys>(weights + from, panel + uint64_t{from} * kColumns, to - from, sums);
#pragma GCC unroll 6
  for (uint32_t i = 0; i < kVectors; ++i) {
    V::store(o + i * a.padded, sums[i][0]);
    V::store(o + i * a.padded + kW, sums[i][1]);
  }
}

/// The keys that vectors [v0, v0 + n) all see: [from, to), or none.
struct Common {
  uint32_t from, to;
  Common(const AttentionTile& a, uint32_t v0, uint32_t n) : from(a.v.begin), to(a.v.end) {
    for (uint32_t i = v0; i < v0 + n; ++i) {
      from = a.lo[i] > from ? a.lo[i] : from;
      to = a.hi[i] < to ? a.hi[i] : to;
    }
  }
};

/// O += P V in 16 columns for n vectors from v0 on. A key that a vector does not see is never
/// multiplied in, not even by 0.
void weigh_vectors(const AttentionTile& a, const float* scores, const float* panel, uint32_t v0,
                   uint32_t n, float* o) {
  const float* weights = scores + uint64_t{v0} * kTileKeys;
  const Common common(a, v0, n);
  const auto run = [&](uint32_t i, uint32_t count, uint32_t from, uint32_t to) {
    if (from >= to) return;
    axpy({weights + uint64_t{i} * kTileKeys, kTileKeys, 1}, count, panel, kColumns, from, to,
         kColumns, o + uint64_t{i} * a.padded, a.padded);
  };
  if (common.from >= common.to) {
    for (uint32_t i = 0; i < n; ++i) run(i, 1, a.lo[v0 + i], a.hi[v0 + i]);
    return;
  }
  for (uint32_t i = 0; i < n; ++i) run(i, 1, a.lo[v0 + i], common.from);
  if (n == kVectors) {
    weigh_group(a, weights, panel, common.from, common.to, o);
  } else {
    run(0, n, common.from, common.to);
  }
  for (uint32_t i = 0; i < n; ++i) run(i, 1, common.to, a.hi[v0 + i]);
}

/// body(first row, rows, from, to) for each 16 keys of a tile, of which [from, to) are decoded.
template <class Body>
void each_piece(const TileRows& t, uint32_t padded, float* rows, Prefetcher& ahead, Body body) {
  const RowLoader load = row_loader(t.dtype);
  for (uint32_t key = t.begin / kColumns * kColumns; key < t.end; key += kColumns) {
    const uint32_t from = key > t.begin ? key : t.begin;
    const uint32_t to = key + kColumns < t.end ? key + kColumns : t.end;
    load(t, from, to, padded, rows + uint64_t{from - key} * padded, ahead);
    body(key, from, to);
  }
}

void chunk_tile(const AttentionTile& a) {
  Carver c(a.work);
  const Buffers b = take_buffers(c, a.n_vectors, a.padded);
  const uint32_t groups = groups_of(a.n_vectors);
  Prefetcher ahead_k(a.ahead_k, kTileKeys + kTileKeys / kColumns * groups);
  Prefetcher ahead_v(a.ahead_v, kTileKeys + a.padded / kColumns * groups);

  each_piece(a.k, a.padded, b.rows, ahead_k, [&](uint32_t key, uint32_t, uint32_t) {
    transpose_keys(b.rows, a.padded, b.keys);
    score_keys(a, key, b.keys, b.scores, ahead_k);
  });
  for (uint32_t i = 0; i < a.n_vectors; i += kW) {
    softmax_rows<exp_of_weight>(a, b.scores + uint64_t{i} * kTileKeys, i,
                                a.n_vectors - i < kW ? a.n_vectors - i : kW);
  }
  each_piece(a.v, a.padded, b.rows, ahead_v, [&](uint32_t key, uint32_t from, uint32_t to) {
    for (uint32_t t = from; t < to; ++t) {
      const float* row = b.rows + uint64_t{t - key} * a.padded;
      float* panel = b.values + uint64_t{t} * kColumns;
      for (uint32_t d = 0; d < a.padded; d += kColumns, panel += uint64_t{kTileKeys} * kColumns) {
        V::store(panel, V::load(row + d));
        V::store(panel + kW, V::load(row + d + kW));
      }
    }
  });
  for (uint32_t d = 0; d < a.padded; d += kColumns) {
    const float* panel = b.values + uint64_t{d} * kTileKeys;
    for (uint32_t i = 0; i < a.n_vectors; i += kVectors) {
      ahead_v();
      weigh_vectors(a, b.scores, panel, i, a.n_vectors - i < kVectors ? a.n_vectors - i : kVectors,
                    a.state.o + uint64_t{i} * a.padded + d);
    }
  }
}

}  // namespace

const AttentionTable kAttentionChunkAvx2 = {.pad_to = kColumns,
                                            .max_vectors = 192,
                                            .has_codec = has_codec,
                                            .q_bytes = chunk_q_bytes,
                                            .work_bytes = chunk_work_bytes,
                                            .prepare_q = chunk_prepare_q,
                                            .add_tile = chunk_tile,
                                            .merge = merge,
                                            .finish = finish,
                                            .blocks_ask = true};

}  // namespace sharpi::cpu
