// SPDX-License-Identifier: MIT
// Attention of one query row (decode) with one tile of keys in int8, for codecs that store signed
// bytes (q8_0) or codes that are looked up to signed bytes (q4). AMX tiles have 16 columns; column
// c = block * kHeads + head holds one head of the KV head's group (as many as fit) with one block
// of 32 dims, because every block of 32 has a scale of its own:
//   C[16 keys][16 c]  = K[16][64 dims] Q[64][16 c]    int8 tiles; K is read in place; Q, quantised
//                       per block of 32, is zero outside the column's own block
//   s[key][head]      = sum over blocks of C * scale of K * scale of Q
//   o[head][32 dims] += w[2 keys] V[2 keys][16 dims]  int16 pairs; w = e^(s - max) * scale of V,
//                       rounded per block to 15 bits of the tile's largest
// Bound: K and V bytes once; about 8 vector operations a cache line with four heads a group.
#include "cpu/x86/vec_avx512.h"
// The vectors come first: the kernels are written over them.
#include "cpu/carver.h"
#include "cpu/generic/attention_kernels.h"
#include "cpu/x86/exp2_avx512.h"
#include "cpu/x86/kernel_tables.h"
#include "cpu/x86/tiles_amx.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t kColumns = 16, kPiece = 16, kDepth = 64, kTileBytes = 1024;
constexpr uint32_t kPairs = kTileKeys / 2;
constexpr float kWeightOne = 32767.0f;

/// How blocks and heads share the columns.
constexpr uint32_t heads_of(uint32_t n_blocks) {
  return n_blocks < kColumns ? kColumns / n_blocks : 1;
}
constexpr uint32_t groups_of(uint32_t n_vectors, uint32_t padded) {
  const uint32_t n_heads = heads_of(padded / kQ8Block);
  return (n_vectors + n_heads - 1) / n_heads;
}
template <uint32_t kBlocks>
struct Columns {
  static constexpr uint32_t kHeads = heads_of(kBlocks), kShift = __builtin_ctz(kHeads);
  static __m512i lane() {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  static __m512i head_of_column() {
    return _mm512_and_si512(lane(), _mm512_set1_epi32(kHeads - 1));
  }
  static __m512i block_of_column() { return _mm512_srli_epi32(lane(), kShift); }
};

/// Queries of a group of columns: tiles, then the columns' scales.
uint64_t group_bytes(uint32_t padded) {
  return uint64_t{padded / kDepth} * kTileBytes + kColumns * sizeof(float);
}

uint64_t q8_q_bytes(uint32_t n, uint32_t padded) {
  return group_bytes(padded) * groups_of(n, padded);
}

void q8_prepare_q(const float* const* vectors, uint32_t n, uint32_t dim, uint32_t padded,
                  float scale, std::byte* q) {
  const uint32_t n_heads = heads_of(padded / kQ8Block);
  for (uint32_t v0 = 0; v0 < n; v0 += n_heads, q += group_bytes(padded)) {
    __builtin_memset(q, 0, group_bytes(padded));
    auto* scales = reinterpret_cast<float*>(q + uint64_t{padded / kDepth} * kTileBytes);
    for (uint32_t c = 0; c < kColumns; ++c) {
      const uint32_t block = c / n_heads, v = v0 + c % n_heads;
      if (v >= n || block * kQ8Block >= dim) continue;
      const float* x = vectors[v] + block * kQ8Block;
      // The bits of magnitudes, compared as integers, are in the order of the floats; NaN is
      // largest.
      uint32_t top_bits = 0;
      for (uint32_t i = 0; i < kQ8Block; ++i) {
        uint32_t bits = 0;
        __builtin_memcpy(&bits, x + i, 4);
        bits &= 0x7FFFFFFFu;
        top_bits = bits > top_bits ? bits : top_bits;
      }
      float top = 0.0f;
      __builtin_memcpy(&top, &top_bits, 4);
      const bool finite = top_bits < 0x7F800000u;
      const float inverse = top < 1e-30f || !finite ? 0.0f : 127.0f / top;
      // A block with an infinity or a NaN gets a NaN for its scale, so every score of it is NaN.
      scales[c] = finite ? top / 127.0f * scale : __builtin_nanf("");
      // Four dims are one row of the operand: dims 4d to 4d + 3 of a block are row d of one half of
      // the block's tile, the first half for even blocks.
      std::byte* at = q + block / 2 * kTileBytes + block % 2 * (kTileBytes / 2) + c * 4;
      for (uint32_t i = 0; i < kQ8Block; ++i) {
        const auto code = finite ? static_cast<int8_t>(__builtin_rintf(x[i] * inverse)) : int8_t{0};
        __builtin_memcpy(at + i / 4 * 64 + i % 4, &code, 1);
      }
    }
  }
}

/// One thread's memory of a tile.
struct Buffers {
  float* scores;      // [group][64 keys][16 columns], every block's columns the same
  uint32_t* pairs;    // [group][32 pairs of keys][16 columns] weights, two in a dword
  int32_t* products;  // [group][16 keys][16 columns]
  int8_t* keys;       // [16][padded]
  float* factors;     // [group][16 columns] scale of the integer weights
};

[[gnu::always_inline]] inline Buffers take_buffers(Carver& c, uint32_t n_vectors, uint32_t padded) {
  const uint64_t groups = groups_of(n_vectors, padded);
  Buffers b{};
  b.scores = c.take<float>(groups * kTileKeys * kColumns);
  b.pairs = c.take<uint32_t>(groups * kPairs * kColumns);
  b.products = c.take<int32_t>(groups * kPiece * kColumns);
  b.keys = c.take<int8_t>(uint64_t{kPiece} * padded);
  b.factors = c.take<float>(groups * kColumns);
  return b;
}

uint64_t q8_work_bytes(uint32_t n, uint32_t padded) {
  Carver c(nullptr);
  take_buffers(c, n, padded);
  return c.used();
}

/// Two codes of q4 a byte to their levels, in order.
inline __m512i levels_of(__m256i codes) {
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kQ4Levels)));
  const __m512i wide = _mm512_cvtepu8_epi16(codes);
  const __m512i apart =
      _mm512_and_si512(_mm512_or_si512(wide, _mm512_slli_epi16(wide, 4)), _mm512_set1_epi8(15));
  return _mm512_shuffle_epi8(table, apart);
}

/// A codec's values as signed bytes: those of a head as a row for a tile, and 32 at once, widened
/// to 16 bits. kInPlace: tiles are read where rows lie.
template <KvDtype kType>
struct SignedBytes;
template <>
struct SignedBytes<KvDtype::kQ8_0> {
  static constexpr bool kInPlace = true;
  static void copy(const std::byte* p, uint32_t dim, int8_t* to) { __builtin_memcpy(to, p, dim); }
  static __m512i load_32_wide(const std::byte* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
};
template <>
struct SignedBytes<KvDtype::kQ4> {
  static constexpr bool kInPlace = false;
  static void copy(const std::byte* p, uint32_t dim, int8_t* to) {
    for (uint32_t d = 0; d < dim; d += kDepth) {
      const auto* at = reinterpret_cast<const __m256i*>(p + d / 2);
      _mm512_storeu_si512(to + d, levels_of(_mm256_loadu_si256(at)));
    }
  }
  static __m512i load_32_wide(const std::byte* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtepi8_epi16(_mm512_castsi512_si256(levels_of(_mm256_castsi128_si256(codes))));
  }
};

/// Whether products take the codec's values as signed bytes. Such a codec needs SignedBytes.
template <KvDtype kType>
constexpr bool kTakesIntegers = KvCodecTraits<kType>::kProduct == KvProduct::kCodes ||
                                KvCodecTraits<kType>::kProduct == KvProduct::kLevels;
/// f.operator()<codec>() of one of those (has_codec).
template <class F>
inline auto with_integer_codec(KvDtype dtype, const F& f) {
  return with_kv_codec(
      dtype, [&]<KvDtype kType>() requires(kTakesIntegers<kType>) {
        return f.template operator()<kType>();
      });
}

/// Rows of a head's part of a tile; kWhole: all 64, evenly spaced.
template <bool kWhole>
struct HeadRows {
  const std::byte* const* rows;
  const std::byte* first;
  uint64_t pitch, offset, scales;
  uint32_t begin, end;
  explicit HeadRows(const TileRows& t)
      : rows(t.rows),
        first(t.rows[t.begin]),
        pitch(t.pitch),
        offset(value_bytes(t.dtype, t.first)),
        scales(value_bytes(t.dtype, t.row_elems) + t.first / kQ8Block * sizeof(uint16_t)),
        begin(kWhole ? 0 : t.begin),
        end(kWhole ? kTileKeys : t.end) {}
  static uint64_t value_bytes(KvDtype dtype, uint64_t n) {
    return with_integer_codec(dtype, [&]<KvDtype kType>() { return kv_value_bytes<kType>(n); });
  }
  static bool is_whole(const TileRows& t) {
    return t.pitch != 0 && t.begin == 0 && t.end == kTileKeys;
  }
  bool has(uint32_t key) const { return kWhole || (key >= begin && key < end); }
  /// A row that is there; its weight is 0 when it is not the key's.
  const std::byte* row(uint32_t key) const {
    if constexpr (kWhole) return first + key * pitch;
    return has(key) ? rows[key] : first;
  }
  /// A key's block scales, as halves (lanes beyond kBlocks are zero).
  template <uint32_t kBlocks>
  __m256i halves(uint32_t key) const {
    constexpr auto kMask = static_cast<__mmask16>((1u << kBlocks) - 1u);
    return _mm256_maskz_loadu_epi16(kMask, row(key) + scales);
  }
};

// --- scores ---

/// Adds up the columns of a head's blocks: afterwards each of them has the sum over all blocks,
/// which is the head's score.
template <uint32_t kHeads>
inline V::R sum_blocks(V::R x) {
  x = V::add(x, _mm512_shuffle_f32x4(x, x, 0x4E));
  if constexpr (kHeads <= 4) x = V::add(x, _mm512_shuffle_f32x4(x, x, 0xB1));
  if constexpr (kHeads <= 2) x = V::add(x, _mm512_permute_ps(x, 0x4E));
  if constexpr (kHeads <= 1) x = V::add(x, _mm512_permute_ps(x, 0xB1));
  return x;
}

/// 16 keys' rows for a tile: where they lie, or a copy with zeros for the missing ones, or their
/// levels.
template <KvDtype kType>
inline const int8_t* piece_rows_of(const AttentionTile& a, const Buffers& b, uint32_t key,
                                   uint64_t* pitch) {
  using Values = SignedBytes<kType>;
  if (Values::kInPlace && a.k.pitch != 0 && key >= a.k.begin && key + kPiece <= a.k.end) {
    *pitch = a.k.pitch;
    return reinterpret_cast<const int8_t*>(a.k.rows[key]) + a.k.first;
  }
  *pitch = a.padded;
  for (uint32_t i = 0; i < kPiece; ++i) {
    int8_t* to = b.keys + i * a.padded;
    if (key + i < a.k.begin || key + i >= a.k.end) {
      __builtin_memset(to, 0, a.padded);
    } else {
      Values::copy(a.k.rows[key + i] + kv_value_bytes<kType>(a.k.first), a.k.dim, to);
    }
  }
  return b.keys;
}
inline const int8_t* piece_rows(const AttentionTile& a, const Buffers& b, uint32_t key,
                                uint64_t* pitch) {
  return with_integer_codec(
      a.k.dtype, [&]<KvDtype kType>() { return piece_rows_of<kType>(a, b, key, pitch); });
}

template <uint32_t kBlocks, bool kWhole>
inline void all_scores(const AttentionTile& a, const Buffers& b, Prefetcher& ahead) {
  constexpr uint32_t kTiles = kBlocks * kQ8Block / kDepth;
  constexpr uint64_t kGroupBytes = kTiles * kTileBytes + kColumns * sizeof(float);
  const uint32_t groups = groups_of(a.n_vectors, a.padded);
  const __m512i block = Columns<kBlocks>::block_of_column();
  const HeadRows<kWhole> k(a.k);
  for (uint32_t key = k.begin / kPiece * kPiece; key < k.end; key += kPiece) {
    uint64_t pitch = 0;
    const int8_t* rows = piece_rows(a, b, key, &pitch);
    const uint32_t from = kWhole || key > k.begin ? key : k.begin;
    const uint32_t to = kWhole || key + kPiece < k.end ? key + kPiece : k.end;
    for (uint32_t g = 0; g < groups; ++g) {
      const std::byte* q = a.q + g * kGroupBytes;
      zero_tile<0>();
      for (uint32_t i = 0; i < kTiles; ++i) {
        load_tile<1>(rows + i * kDepth, pitch);
        load_tile<2>(q + i * kTileBytes, 64);
        add_int8_products<0, 1, 2>();
      }
      store_tile<0>(b.products + g * kPiece * kColumns, 64);
    }
    for (uint32_t i = 0; i < kPiece / 4; ++i) ahead();
    for (uint32_t g = 0; g < groups; ++g) {
      const std::byte* q = a.q + g * kGroupBytes;
      const V::R q_scale = V::load(reinterpret_cast<const float*>(q + kTiles * kTileBytes));
      float* scores = b.scores + uint64_t{g} * kTileKeys * kColumns;
      const int32_t* products = b.products + g * kPiece * kColumns;
      for (uint32_t i = from; i < to; ++i) {
        const V::R halves = _mm512_cvtph_ps(k.template halves<kBlocks>(i));
        const V::R k_scale = V::mul(_mm512_permutexvar_ps(block, halves), q_scale);
        const V::R c = _mm512_cvtepi32_ps(_mm512_load_si512(products + (i - key) * kColumns));
        V::store(scores + i * kColumns, sum_blocks<Columns<kBlocks>::kHeads>(V::mul(c, k_scale)));
      }
    }
  }
}

// --- softmax ---

/// For each block of the tile's value rows the largest magnitude among its scales, spread over the
/// block's columns. Without their sign bit f16 numbers compare as integers do, and infinities and
/// NaN as the largest of them, so the maximum is one of those where there is one.
template <uint32_t kBlocks, bool kWhole>
inline V::R largest_scales(const AttentionTile& a) {
  const HeadRows<kWhole> v(a.v);
  __m256i top = _mm256_setzero_si256();
  const __m256i magnitude = _mm256_set1_epi16(0x7FFF);
  for (uint32_t t = v.begin; t < v.end; ++t) {
    top = _mm256_max_epu16(top, _mm256_and_si256(v.template halves<kBlocks>(t), magnitude));
  }
  return _mm512_permutexvar_ps(Columns<kBlocks>::block_of_column(), _mm512_cvtph_ps(top));
}

/// Scores of a group of columns to pairs of weights. Updates m and l, rescales o.
template <uint32_t kBlocks, bool kWhole>
inline void group_weights(const AttentionTile& a, const Buffers& b, uint32_t g, V::R v_top) {
  constexpr uint32_t kHeads = Columns<kBlocks>::kHeads;
  const HeadRows<kWhole> rows(a.v);
  const uint32_t v0 = g * kHeads;
  const uint32_t n = a.n_vectors - v0 < kHeads ? a.n_vectors - v0 : kHeads;
  float* scores = b.scores + uint64_t{g} * kTileKeys * kColumns;
  uint32_t* pairs = b.pairs + uint64_t{g} * kPairs * kColumns;
  V::R top = V::set1(-__builtin_inff());
  for (uint32_t t = rows.begin; t < rows.end; ++t)
    top = V::max(top, V::load(scores + t * kColumns));
  const __m512i head = Columns<kBlocks>::head_of_column(),
                block = Columns<kBlocks>::block_of_column();
  const V::R old_m = _mm512_permutexvar_ps(head, V::load_n(a.state.m + v0, n));
  const V::R old_l = _mm512_permutexvar_ps(head, V::load_n(a.state.l + v0, n));
  const V::R new_m = V::max(old_m, top);
  const V::R shift = V::max(new_m, V::set1(-1.0e38f));  // finite, also times log2(e)
  const V::R keep = vexp(V::sub(old_m, shift)), part = vexp(V::sub(top, shift));

  const V::R log2e = V::set1(1.44269504f);
  const V::R shift2 = V::sub(V::zero(), V::mul(V::max(top, V::set1(-1.0e38f)), log2e));
  const V::R unit = V::div(V::set1(kWeightOne), v_top);
  V::R sum = V::zero();
  const auto weight = [&](uint32_t t) {
    if (!rows.has(t)) return _mm512_setzero_si512();
    const V::R p = exp2_for_weights(V::fma(V::load(scores + t * kColumns), log2e, shift2));
    sum = V::add(sum, p);
    const V::R halves = _mm512_cvtph_ps(rows.template halves<kBlocks>(t));
    const V::R scale = V::mul(_mm512_permutexvar_ps(block, halves), unit);
    // 2^0 may come out a little above 1: 32767 is the most a word holds.
    return _mm512_cvtps_epi32(V::min(V::mul(p, scale), V::set1(kWeightOne)));
  };
  for (uint32_t t = rows.begin / 2 * 2; t < rows.end; t += 2) {
    const __m512i first = weight(t), second = weight(t + 1);
    _mm512_store_si512(pairs + t / 2 * kColumns,
                       _mm512_mask_blend_epi16(0xAAAAAAAA, first, _mm512_slli_epi32(second, 16)));
  }
  V::store(b.factors + g * kColumns, V::mul(V::mul(part, v_top), V::set1(1.0f / kWeightOne)));
  V::store_n(a.state.l + v0, V::fma(old_l, keep, V::mul(part, sum)), n);
  V::store_n(a.state.m + v0, new_m, n);
  if (V::all_equal(old_m, new_m)) return;
  alignas(64) float keeps[kColumns];
  V::store(keeps, keep);
  for (uint32_t i = 0; i < n; ++i) {
    if (keeps[i] != 1.0f) scale_row(a.state.o + uint64_t{v0 + i} * a.padded, keeps[i], a.padded);
  }
}

// --- values ---

/// o of kN vectors from v0 on += their weights times kM blocks of 32 dims. Two keys' dims are
/// interleaved within 128-bit lanes, and so lie in o: see column_of.
template <uint32_t kBlocks, bool kWhole, KvDtype kType, uint32_t kN, uint32_t kM>
inline void weigh_blocks(const AttentionTile& a, const Buffers& b, uint32_t v0, uint32_t block,
                         Prefetcher& ahead) {
  constexpr uint32_t kHeads = Columns<kBlocks>::kHeads;
  const HeadRows<kWhole> rows(a.v);
  __m512i acc[kM][kN][2];
#pragma GCC unroll 2
  for (uint32_t m = 0; m < kM; ++m) {
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kN; ++i) acc[m][i][0] = acc[m][i][1] = _mm512_setzero_si512();
  }
  // Where the weights of vector i and block m are among the columns of a pair, from the first on.
  uint64_t at[kN];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < kN; ++i) {
    at[i] = uint64_t{(v0 + i) / kHeads} * kPairs * kColumns + block * kHeads + (v0 + i) % kHeads;
  }
  const auto words = [&](uint32_t key, uint32_t m) {
    return SignedBytes<kType>::load_32_wide(rows.row(key) + rows.offset +
                                            (block + m) * kv_value_bytes<kType>(kQ8Block));
  };
  const uint32_t* weights = b.pairs + uint64_t{rows.begin} / 2 * kColumns;
  for (uint32_t t = rows.begin / 2 * 2; t < rows.end; t += 2, weights += kColumns) {
    if (t % 8 == 0) ahead();
#pragma GCC unroll 2
    for (uint32_t m = 0; m < kM; ++m) {
      const __m512i first = words(t, m), second = words(t + 1, m);
      const __m512i low = _mm512_unpacklo_epi16(first, second);
      const __m512i high = _mm512_unpackhi_epi16(first, second);
#pragma GCC unroll 4
      for (uint32_t i = 0; i < kN; ++i) {
        const __m512i w = _mm512_set1_epi32(static_cast<int>(weights[at[i] + m * kHeads]));
        acc[m][i][0] = _mm512_dpwssd_epi32(acc[m][i][0], low, w);
        acc[m][i][1] = _mm512_dpwssd_epi32(acc[m][i][1], high, w);
      }
    }
  }
#pragma GCC unroll 2
  for (uint32_t m = 0; m < kM; ++m) {
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kN; ++i) {
      const uint32_t column = (block + m) * kHeads + (v0 + i) % kHeads;
      const V::R f = V::set1(b.factors[(v0 + i) / kHeads * kColumns + column]);
      float* o = a.state.o + uint64_t{v0 + i} * a.padded + (block + m) * kQ8Block;
      V::store(o, V::fma(_mm512_cvtepi32_ps(acc[m][i][0]), f, V::load(o)));
      V::store(o + 16, V::fma(_mm512_cvtepi32_ps(acc[m][i][1]), f, V::load(o + 16)));
    }
  }
}

template <uint32_t kBlocks, bool kWhole, KvDtype kType>
void weigh_values_of(const AttentionTile& a, const Buffers& b, Prefetcher& ahead) {
  for (uint32_t block = 0; block < kBlocks; block += 2) {
    uint32_t v = 0;
    for (; v + 4 <= a.n_vectors; v += 4) {
      weigh_blocks<kBlocks, kWhole, kType, 4, 2>(a, b, v, block, ahead);
    }
    if (a.n_vectors - v >= 2) {
      weigh_blocks<kBlocks, kWhole, kType, 2, 2>(a, b, v, block, ahead);
      v += 2;
    }
    if (v < a.n_vectors) weigh_blocks<kBlocks, kWhole, kType, 1, 2>(a, b, v, block, ahead);
  }
}

template <uint32_t kBlocks, bool kWhole>
void run_tile(const AttentionTile& a) {
  Carver c(a.work);
  const Buffers b = take_buffers(c, a.n_vectors, a.padded);
  Prefetcher ahead_k(a.ahead_k, kTileKeys / 4), ahead_v(a.ahead_v, kPairs / 4 * kBlocks / 2);
  all_scores<kBlocks, kWhole>(a, b, ahead_k);
  const V::R v_top = largest_scales<kBlocks, kWhole>(a);
  for (uint32_t g = 0; g < groups_of(a.n_vectors, a.padded); ++g) {
    group_weights<kBlocks, kWhole>(a, b, g, v_top);
  }
  with_integer_codec(
      a.v.dtype, [&]<KvDtype kType>() { weigh_values_of<kBlocks, kWhole, kType>(a, b, ahead_v); });
}

template <uint32_t kBlocks>
void run_either(const AttentionTile& a) {
  if (HeadRows<true>::is_whole(a.k)) {
    run_tile<kBlocks, true>(a);
  } else {
    run_tile<kBlocks, false>(a);
  }
}

void q8_tile(const AttentionTile& a) {
  const TileConfig config;
  configure_tiles(config);
  switch (a.padded / kQ8Block) {
    case 2:
      run_either<2>(a);
      break;
    case 4:
      run_either<4>(a);
      break;
    case 8:
      run_either<8>(a);
      break;
    case 16:
      run_either<16>(a);
      break;
    default:  // table_for_row asks for no other
      break;
  }
  release_tiles();
}

/// The dim that element j of a stored state belongs to: see weigh_block.
constexpr uint32_t column_of(uint32_t j) {
  const uint32_t in = j % kQ8Block, half = in / V::kWidth, lane = in % V::kWidth / 4;
  return j - in + lane * 8 + half * 4 + in % 4;
}

void q8_finish(const float* o, float l, uint32_t dim, float* out) {
  const float f = 1.0f / l;
  for (uint32_t j = 0; j < dim; ++j) out[column_of(j)] = o[j] * f + 0.0f;
}

bool q8_codec(KvDtype dtype) {
  return any_kv_codec(dtype, []<KvDtype kType>() { return kTakesIntegers<kType>; });
}

}  // namespace

const AttentionTable kAttentionQ8RowAmx = {.pad_to = kDepth,
                                           .max_vectors = kColumns,
                                           .has_codec = q8_codec,
                                           .q_bytes = q8_q_bytes,
                                           .work_bytes = q8_work_bytes,
                                           .prepare_q = q8_prepare_q,
                                           .add_tile = q8_tile,
                                           .merge = merge,
                                           .finish = q8_finish};

}  // namespace sharpi::cpu
