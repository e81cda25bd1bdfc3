// SPDX-License-Identifier: MIT
// Attention of a block of query vectors with one tile of keys in bf16 tiles, f32 sums:
//   S^T[16 keys][16 vectors] += K[16][32 d] Q^T[16 d pairs][16][2]     keys are the left operand,
//   so
//                               that stored bf16 rows are read where they lie
//   O[16 vectors][16 d] += P[16][32 keys] V[16 key pairs][16][2]
// Q, K, V and the weights P are rounded to bf16 once; the softmax is f32, lanes are query vectors.
// Bound: decode by memory, with q8_0 by the conversion of rows; prefill by exponentials and tiles.
#include "cpu/vec_avx512.h"
// The vectors come first: the kernels are written over them.
#include "cpu/attention_kernels.h"
#include "cpu/tiles_amx.h"
#include "cpu/transpose_avx512.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t kGroup = 16;  // query vectors per tile
constexpr uint32_t kDepth = 32;  // bf16 per tile row
constexpr uint32_t kTileBytes = 1024;
constexpr uint32_t kPiece = 16;  // keys per left operand

inline __m512i to_bf16(V::R low, V::R high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

constexpr uint32_t groups_of(uint32_t n_vectors) {
  return (n_vectors + kGroup - 1) / kGroup;
}

uint64_t amx_q_bytes(uint32_t n, uint32_t padded) {
  return uint64_t{groups_of(n)} * kGroup * padded * sizeof(uint16_t);
}

/// One thread's memory of a step.
struct Buffers {
  float* scores;       // [group][64 keys][16 vectors]
  std::byte* weights;  // [group][two tiles of 16 vectors x 32 keys]
  uint16_t* k;         // [16 keys][padded]
  uint32_t* v;         // [32 key pairs][padded]
  float* row;          // [2][padded], for heads that are no multiple of 32
};
constexpr uint64_t kScoreFloats = uint64_t{kTileKeys} * kGroup;

Buffers take_buffers(std::byte* work, uint32_t n_vectors, uint32_t padded, uint64_t* used) {
  const uint64_t groups = groups_of(n_vectors);
  uint64_t at = reinterpret_cast<uintptr_t>(work);
  const auto take = [&](uint64_t bytes) {
    const uint64_t p = at;
    at += (bytes + 63) / 64 * 64;
    return reinterpret_cast<std::byte*>(p);
  };
  Buffers b{};
  b.scores = reinterpret_cast<float*>(take(groups * kScoreFloats * sizeof(float)));
  b.weights = take(groups * 2 * kTileBytes);
  b.k = reinterpret_cast<uint16_t*>(take(uint64_t{kPiece} * padded * sizeof(uint16_t)));
  b.v = reinterpret_cast<uint32_t*>(take(uint64_t{kTileKeys} / 2 * padded * sizeof(uint32_t)));
  b.row = reinterpret_cast<float*>(take(uint64_t{2} * padded * sizeof(float)));
  *used = at - reinterpret_cast<uintptr_t>(work);
  return b;
}

uint64_t amx_work_bytes(uint32_t n, uint32_t padded) {
  uint64_t used = 0;
  take_buffers(nullptr, n, padded, &used);
  return used;
}

/// Right operands: per group and 32 dims, 16 rows of dim pairs with one dword per vector.
void amx_prepare_q(const float* const* vectors, uint32_t n, uint32_t dim, uint32_t padded,
                   float scale, std::byte* q) {
  const V::R f = V::set1(scale);
  for (uint32_t v0 = 0; v0 < n; v0 += kGroup) {
    for (uint32_t d0 = 0; d0 < padded; d0 += kDepth, q += kTileBytes) {
      __m512i rows[kGroup];
      for (uint32_t i = 0; i < kGroup; ++i) {
        V::R half[2] = {V::zero(), V::zero()};
        for (uint32_t h = 0; h < 2; ++h) {
          const uint32_t at = d0 + h * V::kWidth;
          if (v0 + i >= n || at >= dim) continue;
          const uint32_t left = dim - at < V::kWidth ? dim - at : V::kWidth;
          half[h] = V::mul(V::load_n(vectors[v0 + i] + at, left), f);
        }
        rows[i] = to_bf16(half[0], half[1]);
      }
      transpose(rows);
      for (uint32_t i = 0; i < kGroup; ++i) _mm512_store_si512(q + i * 64, rows[i]);
    }
  }
}

// --- Rows as bf16, 32 elements a vector. ---

template <class Row>
[[gnu::always_inline]] inline __m512i bf16_vector(const Row& row, uint32_t i) {
  return to_bf16(row.vector(i), row.vector(i + V::kWidth));
}
template <>
[[gnu::always_inline]] inline __m512i bf16_vector(const StoredRow<KvDtype::kBf16>& row,
                                                  uint32_t i) {
  return _mm512_loadu_si512(row.p + i);
}
[[gnu::always_inline]] inline __m512i bf16_floats(const float* row, uint32_t i) {
  return to_bf16(V::load(row + i), V::load(row + i + V::kWidth));
}

bool by_vectors(const TileRows& t) {
  return t.dim % kDepth == 0 && t.first % kDepth == 0;
}

/// Keys [from, to) to [to - from][padded]. `row` is scratch for heads that are no multiple of 32.
template <class Row>
void load_keys(const TileRows& t, uint32_t from, uint32_t to, uint32_t padded, float* row,
               uint16_t* out, Prefetcher& ahead) {
  const typename Row::Head head = Row::head(t);
  const bool vectors = by_vectors(t);
  for (uint32_t key = from; key < to; ++key, out += padded) {
    ahead();
    const Row source(head, t.rows[key]);
    if (vectors) {
      for (uint32_t i = 0; i < padded; i += kDepth)
        _mm512_storeu_si512(out + i, bf16_vector(source, i));
      continue;
    }
    decode_row(t, source, padded, row);
    for (uint32_t i = 0; i < padded; i += kDepth) _mm512_storeu_si512(out + i, bf16_floats(row, i));
  }
}

/// Two keys' dims [i, i + 32) interleaved within 128-bit lanes: dword j of them is dim
/// column_of(j).
[[gnu::always_inline]] inline void store_pairs(uint32_t* out, __m512i a, __m512i b) {
  _mm512_storeu_si512(out, _mm512_unpacklo_epi16(a, b));
  _mm512_storeu_si512(out + V::kWidth, _mm512_unpackhi_epi16(a, b));
}

/// The slow way to a pair of keys: by f32 rows, zeros for keys outside [begin, end). Their weights
/// are 0, and 0 times anything must be nothing.
template <class Row>
[[gnu::noinline]] void load_odd_pair(const TileRows& t, uint32_t key, uint32_t padded, float* rows,
                                     uint32_t* out) {
  for (uint32_t j = 0; j < 2; ++j) {
    float* row = rows + uint64_t{j} * padded;
    if (key + j >= t.begin && key + j < t.end) {
      decode_row(t, Row(Row::head(t), t.rows[key + j]), padded, row);
    } else {
      for (uint32_t i = 0; i < padded; ++i) row[i] = 0.0f;
    }
  }
  const float* other = rows + padded;
  for (uint32_t i = 0; i < padded; i += kDepth) {
    store_pairs(out + i, bf16_floats(rows, i), bf16_floats(other, i));
  }
}

/// The 32-key halves of a tile that hold keys of [begin, end), to [32 pairs][padded].
template <class Row>
void load_values(const TileRows& t, uint32_t padded, float* rows, uint32_t* out,
                 Prefetcher& ahead) {
  const uint32_t first = t.begin / kDepth * kDepth, last = (t.end + kDepth - 1) / kDepth * kDepth;
  const typename Row::Head head = Row::head(t);
  const bool vectors = by_vectors(t);
  out += uint64_t{first} / 2 * padded;
  for (uint32_t key = first; key < last; key += 2, out += padded) {
    ahead();
    if (!vectors || key < t.begin || key + 1 >= t.end) {
      load_odd_pair<Row>(t, key, padded, rows, out);
      continue;
    }
    const Row a(head, t.rows[key]), b(head, t.rows[key + 1]);
    for (uint32_t i = 0; i < padded; i += kDepth) {
      store_pairs(out + i, bf16_vector(a, i), bf16_vector(b, i));
    }
  }
}

using KeyLoader = void (*)(const TileRows&, uint32_t from, uint32_t to, uint32_t padded, float* row,
                           uint16_t* out, Prefetcher&);
using ValueLoader = void (*)(const TileRows&, uint32_t padded, float* row, uint32_t* out,
                             Prefetcher&);
struct Loaders {
  KeyLoader keys = nullptr;
  ValueLoader values = nullptr;
};

Loaders loaders_of(KvDtype dtype) {
  return visit_kv_codec(
      dtype,
      []<KvDtype kType>() {
        return Loaders{load_keys<StoredRow<kType>>, load_values<StoredRow<kType>>};
      },
      [] { return Loaders{}; });
}

// --- scores ---

/// S^T of 16 keys with up to four groups. Tiles: 0-3 sums, 4 keys, 5 and 6 queries.
inline void score_tiles(const std::byte* k, uint64_t k_pitch, const std::byte* q, uint32_t groups,
                        uint32_t padded, float* scores) {
  const uint64_t q_group = uint64_t{kGroup} * padded * sizeof(uint16_t);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (uint32_t d = 0; d < padded; d += kDepth, k += 64, q += kTileBytes) {
    _tile_loadd(4, k, k_pitch);
    _tile_loadd(5, q, 64);
    _tile_dpbf16ps(0, 4, 5);
    if (groups < 2) continue;
    _tile_loadd(5, q + q_group, 64);
    _tile_dpbf16ps(1, 4, 5);
    if (groups < 3) continue;
    _tile_loadd(5, q + 2 * q_group, 64);
    _tile_dpbf16ps(2, 4, 5);
    if (groups < 4) continue;
    _tile_loadd(5, q + 3 * q_group, 64);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, scores, 64);
  if (groups > 1) _tile_stored(1, scores + kScoreFloats, 64);
  if (groups > 2) _tile_stored(2, scores + 2 * kScoreFloats, 64);
  if (groups > 3) _tile_stored(3, scores + 3 * kScoreFloats, 64);
}

inline void all_scores(const AttentionStep& a, const Buffers& b, Prefetcher& ahead) {
  const uint32_t groups = groups_of(a.n_vectors);
  const uint64_t q_group = uint64_t{kGroup} * a.padded * sizeof(uint16_t);
  const KeyLoader load = loaders_of(a.k.dtype).keys;
  for (uint32_t key = a.k.begin / kPiece * kPiece; key < a.k.end; key += kPiece) {
    const uint32_t from = key > a.k.begin ? key : a.k.begin;
    const uint32_t to = key + kPiece < a.k.end ? key + kPiece : a.k.end;
    const std::byte* rows = reinterpret_cast<const std::byte*>(b.k);
    uint64_t pitch = a.padded * sizeof(uint16_t);
    if (a.k.dtype == KvDtype::kBf16 && a.k.pitch != 0 && to - from == kPiece &&
        a.k.dim == a.padded) {
      rows = a.k.rows[key] + a.k.first * sizeof(uint16_t);
      pitch = a.k.pitch;
      for (uint32_t i = 0; i < kPiece; ++i) ahead();
    } else {
      load(a.k, from, to, a.padded, b.row, b.k + uint64_t{from - key} * a.padded, ahead);
    }
    for (uint32_t g = 0; g < groups; g += 4) {
      score_tiles(rows, pitch, a.q + g * q_group, groups - g, a.padded,
                  b.scores + g * kScoreFloats + uint64_t{key} * kGroup);
    }
  }
}

// --- softmax ---

/// 2^t for t <= 0, good to 3e-6: the result is rounded to bf16. 2^t = 2^floor(t) (1 + f q(f)), f
/// the fraction; minimax fit. 2^-inf is 0 and 2^0 is 1.
[[gnu::always_inline]] inline V::R exp2_for_bf16(V::R t) {
  const V::R f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  V::R q = V::set1(1.342668066e-2f);
  q = V::fma(q, f, V::set1(5.224248144e-2f));
  q = V::fma(q, f, V::set1(0.2412802003f));
  q = V::fma(q, f, V::set1(0.6930448457f));
  return _mm512_scalef_ps(V::fma(q, f, V::set1(1.0f)), t);
}

/// Which of 16 vectors see key t.
struct Visible {
  __m512i lo, hi;
  bool all;
  Visible(const AttentionStep& a, uint32_t v0, uint32_t n) {
    const auto lanes = static_cast<__mmask16>((1u << n) - 1u);
    lo = _mm512_maskz_loadu_epi32(lanes, a.lo + v0);
    hi = _mm512_maskz_loadu_epi32(lanes, a.hi + v0);
    const auto whole = _mm512_mask_cmpeq_epi32_mask(
        _mm512_cmpeq_epi32_mask(lo, _mm512_setzero_si512()), hi, _mm512_set1_epi32(kTileKeys));
    all = (whole & lanes) == lanes;
  }
  __mmask16 at(uint32_t t) const {
    const __m512i key = _mm512_set1_epi32(static_cast<int>(t));
    return _mm512_mask_cmpgt_epi32_mask(_mm512_cmple_epi32_mask(lo, key), hi, key);
  }
};

/// Scores of a group to weights in bf16: two left operands of 16 vectors by 32 keys. Four sums take
/// the weights, as rounded, in turn. Keys that nobody sees have no scores yet.
inline void group_softmax(const AttentionStep& a, uint32_t v0, float* scores, std::byte* weights) {
  const uint32_t n = a.n_vectors - v0 < kGroup ? a.n_vectors - v0 : kGroup;
  const Visible visible(a, v0, n);
  const V::R masked = V::set1(-__builtin_inff());
  V::R top[4] = {masked, masked, masked, masked};
  if (!visible.all) {
    for (uint32_t t = 0; t < kTileKeys; ++t) {
      float* s = scores + t * kGroup;
      V::store(s, _mm512_mask_blend_ps(visible.at(t), masked, V::load(s)));
    }
  }
  for (uint32_t t = 0; t < kTileKeys; t += 4) {
#pragma GCC unroll 4
    for (uint32_t j = 0; j < 4; ++j) top[j] = V::max(top[j], V::load(scores + (t + j) * kGroup));
  }
  const V::R old_m = load_first(a.state.m + v0, n);
  const V::R new_m = V::max(old_m, V::max(V::max(top[0], top[1]), V::max(top[2], top[3])));
  const V::R shift = V::max(new_m, V::set1(-1.0e38f));  // finite, also times log2(e)
  const V::R keep = vexp(V::sub(old_m, shift));

  // The largest score may come out at 2^+-1e-5: it is within the rounding of the weights.
  const V::R log2e = V::set1(1.44269504f);
  const V::R shift2 = V::sub(V::zero(), V::mul(shift, log2e));
  V::R sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  const __m512i to_pairs =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (uint32_t half = 0; half < 2; ++half) {
    __m512i pairs[kGroup];
#pragma GCC unroll 2
    for (uint32_t i = 0; i < kGroup; ++i) {
      const float* s = scores + (half * kDepth + 2 * i) * kGroup;
      const V::R p0 = exp2_for_bf16(V::fma(V::load(s), log2e, shift2));
      const V::R p1 = exp2_for_bf16(V::fma(V::load(s + kGroup), log2e, shift2));
      pairs[i] = _mm512_permutexvar_epi16(to_pairs, to_bf16(p0, p1));
      const __m512i high =
          _mm512_and_si512(pairs[i], _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
      const uint32_t j = i % 2 * 2;
      sums[j] = V::add(sums[j], _mm512_castsi512_ps(_mm512_slli_epi32(pairs[i], 16)));
      sums[j + 1] = V::add(sums[j + 1], _mm512_castsi512_ps(high));
    }
    transpose(pairs);
    for (uint32_t i = 0; i < kGroup; ++i) {
      _mm512_store_si512(weights + half * kTileBytes + i * 64, pairs[i]);
    }
  }
  const V::R sum = V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3]));
  store_first(a.state.l + v0, V::fma(load_first(a.state.l + v0, n), keep, sum), n);
  store_first(a.state.m + v0, new_m, n);
  if (V::all_equal(old_m, new_m)) return;
  alignas(64) float keeps[kGroup];
  V::store(keeps, keep);
  for (uint32_t i = 0; i < n; ++i) {
    if (keeps[i] != 1.0f) scale_row(a.state.o + uint64_t{v0 + i} * a.padded, keeps[i], a.padded);
  }
}

// --- values ---

/// Where some vectors do not see some keys, a weight of 0 must not meet an infinity or NaN of a
/// later token. Such values leave the tile and are added to the vectors that do see them one by
/// one.
void lift_non_finite(const AttentionStep& a, const Buffers& b) {
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  const auto lift = [&](uint32_t key, uint32_t j, uint16_t* at) {
    const uint32_t bits = uint32_t{*at} << 16;
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    *at = 0;
    for (uint32_t i = 0; i < a.n_vectors; ++i) {
      if (key >= a.lo[i] && key < a.hi[i]) a.state.o[uint64_t{i} * a.padded + j] += x;
    }
  };
  for (uint32_t key = a.v.begin / 2 * 2; key < a.v.end; key += 2) {
    uint32_t* row = b.v + uint64_t{key} / 2 * a.padded;
    for (uint32_t j = 0; j < a.padded; j += V::kWidth) {
      const __m512i x = _mm512_and_si512(_mm512_loadu_si512(row + j), exponent);
      uint32_t found = _mm512_cmpeq_epi16_mask(x, exponent);
      for (; found != 0; found &= found - 1) {
        const auto half = static_cast<uint32_t>(__builtin_ctz(found));
        lift(key + half % 2, j + half / 2, reinterpret_cast<uint16_t*>(row + j) + half);
      }
    }
  }
}

bool all_see_all(const AttentionStep& a) {
  for (uint32_t i = 0; i < a.n_vectors; ++i) {
    if (a.lo[i] > a.v.begin || a.hi[i] < a.v.end) return false;
  }
  return true;
}

/// O of one group. Tiles: 0 sums, 2 and 3 weights, 4 and 5 values; the last group may have fewer
/// than 16 vectors, whose tiles are 6 and 7.
inline void weigh_group(const AttentionStep& a, uint32_t v0, const std::byte* weights,
                        const uint32_t* v) {
  const uint64_t o_pitch = a.padded * sizeof(float), v_pitch = a.padded * sizeof(uint32_t);
  const bool first = a.v.begin<kDepth, second = a.v.end> kDepth;
  float* o = a.state.o + uint64_t{v0} * a.padded;
  const bool full = a.n_vectors - v0 >= kGroup;
  if (full) {
    _tile_loadd(2, weights, 64);
    _tile_loadd(3, weights + kTileBytes, 64);
  }
  for (uint32_t d = 0; d < a.padded; d += V::kWidth) {
    if (full) {
      _tile_loadd(0, o + d, o_pitch);
      if (first) {
        _tile_loadd(4, v + d, v_pitch);
        _tile_dpbf16ps(0, 2, 4);
      }
      if (second) {
        _tile_loadd(5, v + uint64_t{kDepth} / 2 * a.padded + d, v_pitch);
        _tile_dpbf16ps(0, 3, 5);
      }
      _tile_stored(0, o + d, o_pitch);
      continue;
    }
    _tile_loadd(6, o + d, o_pitch);
    if (first) {
      _tile_loadd(4, v + d, v_pitch);
      _tile_loadd(7, weights, 64);
      _tile_dpbf16ps(6, 7, 4);
    }
    if (second) {
      _tile_loadd(5, v + uint64_t{kDepth} / 2 * a.padded + d, v_pitch);
      _tile_loadd(7, weights + kTileBytes, 64);
      _tile_dpbf16ps(6, 7, 5);
    }
    _tile_stored(6, o + d, o_pitch);
  }
}

void amx_step(const AttentionStep& a) {
  TileConfig config;
  if (a.n_vectors % kGroup != 0) {
    config.rows[6] = config.rows[7] = static_cast<uint8_t>(a.n_vectors % kGroup);
  }
  _tile_loadconfig(&config);
  uint64_t used = 0;
  const Buffers b = take_buffers(a.work, a.n_vectors, a.padded, &used);
  Prefetcher ahead_k(a.ahead_k, kTileKeys), ahead_v(a.ahead_v, kTileKeys / 2);
  const uint32_t groups = groups_of(a.n_vectors);

  all_scores(a, b, ahead_k);
  for (uint32_t g = 0; g < groups; ++g) {
    group_softmax(a, g * kGroup, b.scores + g * kScoreFloats,
                  b.weights + uint64_t{g} * 2 * kTileBytes);
  }
  loaders_of(a.v.dtype).values(a.v, a.padded, b.row, b.v, ahead_v);
  if (!all_see_all(a)) lift_non_finite(a, b);
  for (uint32_t g = 0; g < groups; ++g) {
    weigh_group(a, g * kGroup, b.weights + uint64_t{g} * 2 * kTileBytes, b.v);
  }
  _tile_release();
}

/// The dim that element j of a stored state belongs to: see load_values.
constexpr uint32_t column_of(uint32_t j) {
  const uint32_t in = j % kDepth, half = in / V::kWidth, lane = in % V::kWidth / 4;
  return j - in + lane * 8 + half * 4 + in % 4;
}

void amx_finish(const float* o, float l, uint32_t dim, float* out) {
  const float f = 1.0f / l;
  const uint32_t padded = (dim + kDepth - 1) / kDepth * kDepth;
  for (uint32_t j = 0; j < padded; ++j) {
    const uint32_t d = column_of(j);
    // A sum of nothing but zero products is +0 or -0 by the tile's other keys; it is given as +0.
    if (d < dim) out[d] = o[j] * f + 0.0f;
  }
}

}  // namespace

const AttentionTable kAttentionAmx = {.pad_to = kDepth,
                                      .max_vectors = 64,
                                      .has_codec = has_codec,
                                      .q_bytes = amx_q_bytes,
                                      .work_bytes = amx_work_bytes,
                                      .prepare_q = amx_prepare_q,
                                      .step = amx_step,
                                      .merge = merge,
                                      .finish = amx_finish};

}  // namespace sharpi::cpu
