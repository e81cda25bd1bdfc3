// SPDX-License-Identifier: MIT
// Attention of a block of query vectors with one tile of keys, rounded to bf16, with f32 sums, by
// the matrix instruction BFMMLA, which multiplies two rows of four by two rows of four.
//   S[2 vectors][2 keys] += Q[2][4 d] K[2][4 d]^T
//   O[2 vectors][2 d]    += P[2][4 keys] V^T[2 d][4 keys]
// Q, K, V and the weights P are rounded once; the softmax is f32. For prefill chunks, whose many
// query rows share the cost of converting a tile of keys. A vector's bits do not depend on the
// block it is in.
// Thread rule: pure functions with internal linkage.
#include "cpu/arm/vec_neon.h"
// The vectors come first: the kernels are written over them.
#include "cpu/arm/kernel_tables.h"
#include "cpu/carver.h"
#include "cpu/flatten.h"
#include "cpu/generic/attention_kernels.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t kTile = 4;    // pairs of rows and pairs of columns whose sums are in registers
constexpr uint32_t kVector = 8;  // bf16 of a vector: two rows of four
constexpr uint32_t kQuads = kTileKeys / 4;

constexpr uint32_t pairs_of(uint32_t n) {
  return (n + 1) / 2;
}

/// One thread's memory of a tile.
struct Buffers {
  float* scores;      // [n][64 keys], rounded up to pairs of rows
  uint16_t* weights;  // [pair][16 key quads][2][4]
  uint16_t* k;        // [32 key pairs][padded / 4][2][4]
  uint16_t* v;        // [16 key quads][padded / 2][2][4]
  float* rows;        // [4][padded]
  float* no_row;      // [padded], what the last of an odd number is paired with
};
Buffers take_buffers(Carver& c, uint32_t n_vectors, uint32_t padded) {
  const uint64_t n = 2 * uint64_t{pairs_of(n_vectors)};
  Buffers b{};
  b.scores = c.take<float>(n * kTileKeys);
  b.weights = c.take<uint16_t>(n * kTileKeys);
  b.k = c.take<uint16_t>(uint64_t{kTileKeys} * padded);
  b.v = c.take<uint16_t>(uint64_t{kTileKeys} * padded);
  b.rows = c.take<float>(uint64_t{4} * padded);
  b.no_row = c.take<float>(padded);
  return b;
}
uint64_t bf16_work_bytes(uint32_t n, uint32_t padded) {
  Carver c(nullptr);
  take_buffers(c, n, padded);
  return c.used();
}
uint64_t bf16_q_bytes(uint32_t n, uint32_t padded) {
  return 2 * uint64_t{pairs_of(n)} * padded * sizeof(uint16_t);
}

inline uint16x8_t rounded(V::R x) {
  return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(x.low), x.high));
}
inline bfloat16x8_t load_bf16(const uint16_t* p) {
  return vreinterpretq_bf16_u16(vld1q_u16(p));
}
/// Eight elements of two rows as two operands of products.
inline void store_pair(uint16x8_t a, uint16x8_t b, uint16_t* to) {
  const uint64x2_t x = vreinterpretq_u64_u16(a), y = vreinterpretq_u64_u16(b);
  vst1q_u16(to, vreinterpretq_u16_u64(vzip1q_u64(x, y)));
  vst1q_u16(to + kVector, vreinterpretq_u16_u64(vzip2q_u64(x, y)));
}

void bf16_prepare_q(const float* const* vectors, uint32_t n, uint32_t dim, uint32_t padded,
                    float scale, std::byte* q) {
  const V::R f = V::set1(scale);
  auto* to = reinterpret_cast<uint16_t*>(q);
  for (uint32_t i = 0; i < n; i += 2) {
    for (uint32_t d = 0; d < padded; d += V::kWidth, to += 2 * kVector) {
      uint16x8_t row[2];
      for (uint32_t j = 0; j < 2; ++j) {
        V::R x = V::zero();
        if (i + j < n && d < dim) {
          const uint32_t left = dim - d < V::kWidth ? dim - d : V::kWidth;
          x = V::mul(V::load_n(vectors[i + j] + d, left), f);
        }
        row[j] = rounded(x);
      }
      store_pair(row[0], row[1], to);
    }
  }
}

/// Stored rows [first, first + n) as eight bf16 at a time; zeros for keys outside [begin, end).
template <KvDtype kType>
struct Rows {
  using Row = StoredRow<kType>;
  const TileRows& t;
  const uint16_t* direct[4] = {};
  const float* decoded[4] = {};

  Rows(const TileRows& tile, uint32_t first, uint32_t n, uint32_t padded, float* rows) : t(tile) {
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t key = first + i;
      float* row = rows + uint64_t{i} * padded;
      if (key < t.begin || key >= t.end) {
        for (uint32_t d = 0; d < padded; d += V::kWidth) V::store(row + d, V::zero());
      } else if (kType == KvDtype::kBf16 && t.dim == padded) {
        direct[i] = reinterpret_cast<const uint16_t*>(t.rows[key]) + t.first;
        continue;
      } else {
        decode_row(t, Row(Row::head(t), t.rows[key]), padded, row);
      }
      decoded[i] = row;
    }
  }
  uint16x8_t eight(uint32_t i, uint32_t d) const {
    return direct[i] != nullptr ? vld1q_u16(direct[i] + d) : rounded(V::load(decoded[i] + d));
  }
};

template <KvDtype kType>
void load_keys(const TileRows& t, uint32_t padded, float* rows, uint16_t* out, Prefetcher& ahead) {
  for (uint32_t key = t.begin / 2 * 2; key < t.end; key += 2) {
    ahead();
    const Rows<kType> pair(t, key, 2, padded, rows);
    uint16_t* to = out + uint64_t{key} * padded;
    for (uint32_t d = 0; d < padded; d += kVector, to += 2 * kVector) {
      store_pair(pair.eight(0, d), pair.eight(1, d), to);
    }
  }
}

/// Whether a value is an infinity or NaN.
template <KvDtype kType>
bool load_values(const TileRows& t, uint32_t padded, float* rows, uint16_t* out,
                 Prefetcher& ahead) {
  const uint16x8_t exponent = vdupq_n_u16(0x7F80);
  uint16x8_t found = vdupq_n_u16(0);
  for (uint32_t key = t.begin / 4 * 4; key < t.end; key += 4) {
    ahead();
    const Rows<kType> quad(t, key, 4, padded, rows);
    uint16_t* to = out + uint64_t{key} * padded;
    for (uint32_t d = 0; d < padded; d += kVector, to += 4 * kVector) {
      uint16x8_t r[4];
      for (uint32_t i = 0; i < 4; ++i) {
        r[i] = quad.eight(i, d);
        found = vorrq_u16(found, vceqq_u16(vandq_u16(r[i], exponent), exponent));
      }
      const uint32x4_t low[2] = {vreinterpretq_u32_u16(vzip1q_u16(r[0], r[1])),
                                 vreinterpretq_u32_u16(vzip1q_u16(r[2], r[3]))};
      const uint32x4_t high[2] = {vreinterpretq_u32_u16(vzip2q_u16(r[0], r[1])),
                                  vreinterpretq_u32_u16(vzip2q_u16(r[2], r[3]))};
      vst1q_u16(to, vreinterpretq_u16_u32(vzip1q_u32(low[0], low[1])));
      vst1q_u16(to + kVector, vreinterpretq_u16_u32(vzip2q_u32(low[0], low[1])));
      vst1q_u16(to + 2 * kVector, vreinterpretq_u16_u32(vzip1q_u32(high[0], high[1])));
      vst1q_u16(to + 3 * kVector, vreinterpretq_u16_u32(vzip2q_u32(high[0], high[1])));
    }
  }
  return vmaxvq_u16(found) != 0;
}

struct Loaders {
  void (*keys)(const TileRows&, uint32_t padded, float* rows, uint16_t* out, Prefetcher&);
  bool (*values)(const TileRows&, uint32_t padded, float* rows, uint16_t* out, Prefetcher&);
};
Loaders loaders_of(KvDtype dtype) {
  return visit_kv_codec(
      dtype,
      []<KvDtype kType>() {
        return Loaders{load_keys<kType>, load_values<kType>};
      },
      [] { return Loaders{}; });
}

/// Sums of kRows pairs of rows of `a` with kColumns of `b`: operands of `depth` vectors, which
/// follow each other by a_step and b_step, pairs a_pair and b_pair apart.
template <uint32_t kRows, uint32_t kColumns>
SHARPI_FLATTEN void multiply(const uint16_t* a, uint64_t a_pair, uint64_t a_step, const uint16_t* b,
                             uint64_t b_pair, uint64_t b_step, uint32_t depth,
                             float32x4_t (&sum)[kRows][kColumns]) {
  for (uint32_t i = 0; i < depth; ++i, a += a_step, b += b_step) {
    bfloat16x8_t columns[kColumns];
    SHARPI_UNROLL(4)
    for (uint32_t c = 0; c < kColumns; ++c) columns[c] = load_bf16(b + c * b_pair);
    SHARPI_UNROLL(4)
    for (uint32_t r = 0; r < kRows; ++r) {
      const bfloat16x8_t row = load_bf16(a + r * a_pair);
      SHARPI_UNROLL(4)
      for (uint32_t c = 0; c < kColumns; ++c) sum[r][c] = vbfmmlaq_f32(sum[r][c], row, columns[c]);
    }
  }
}

/// S of kRows pairs of vectors with the keys of the tile.
template <uint32_t kRows>
void score_pairs(const AttentionTile& a, const Buffers& b, uint32_t pair) {
  const uint64_t row = uint64_t{2} * a.padded;
  const auto* q = reinterpret_cast<const uint16_t*>(a.q) + pair * row;
  for (uint32_t key = a.k.begin / 8 * 8; key < a.k.end; key += 2 * kTile) {
    float32x4_t sum[kRows][kTile] = {};
    multiply<kRows, kTile>(q, row, kVector, b.k + uint64_t{key} * a.padded, row, kVector,
                           a.padded / 4, sum);
    for (uint32_t r = 0; r < kRows; ++r) {
      float* to = b.scores + uint64_t{2} * (pair + r) * kTileKeys + key;
      for (uint32_t c = 0; c < kTile; ++c) {
        vst1_f32(to + 2 * c, vget_low_f32(sum[r][c]));
        vst1_f32(to + kTileKeys + 2 * c, vget_high_f32(sum[r][c]));
      }
    }
  }
}

/// O of kRows pairs of vectors in 2 * kColumns columns from d on.
template <uint32_t kRows, uint32_t kColumns>
SHARPI_FLATTEN void weigh_columns(const AttentionTile& a, const Buffers& b, uint32_t pair,
                                  uint32_t d) {
  const uint32_t first = a.v.begin / 4, last = (a.v.end + 3) / 4;
  const auto of = [&](uint32_t i) {
    return (i < a.n_vectors ? a.state.o + uint64_t{i} * a.padded : b.no_row) + d;
  };
  float32x4_t sum[kRows][kColumns];
  SHARPI_UNROLL(4)
  for (uint32_t r = 0; r < kRows; ++r) {
    const float *one = of(2 * (pair + r)), *two = of(2 * (pair + r) + 1);
    SHARPI_UNROLL(4)
    for (uint32_t c = 0; c < kColumns; ++c) {
      sum[r][c] = vcombine_f32(vld1_f32(one + 2 * c), vld1_f32(two + 2 * c));
    }
  }
  constexpr uint64_t kWeightPair = uint64_t{2} * kTileKeys;
  multiply<kRows, kColumns>(b.weights + pair * kWeightPair + first * kVector, kWeightPair, kVector,
                            b.v + (uint64_t{first} * a.padded / 2 + d / 2) * kVector, kVector,
                            uint64_t{a.padded} / 2 * kVector, last - first, sum);
  SHARPI_UNROLL(4)
  for (uint32_t r = 0; r < kRows; ++r) {
    float *one = of(2 * (pair + r)), *two = of(2 * (pair + r) + 1);
    SHARPI_UNROLL(4)
    for (uint32_t c = 0; c < kColumns; ++c) {
      vst1_f32(one + 2 * c, vget_low_f32(sum[r][c]));
      vst1_f32(two + 2 * c, vget_high_f32(sum[r][c]));
    }
  }
}
template <uint32_t kRows>
void weigh_pairs(const AttentionTile& a, const Buffers& b, uint32_t pair) {
  for (uint32_t d = 0; d < a.padded; d += 2 * kTile) weigh_columns<kRows, kTile>(a, b, pair, d);
}

/// The weights of a pair of vectors as operands; zeros for one that is not there.
void round_weights(const AttentionTile& a, const Buffers& b, uint32_t pair) {
  const float* one = b.scores + uint64_t{2} * pair * kTileKeys;
  const bool both = 2 * pair + 1 < a.n_vectors;
  uint16_t* to = b.weights + uint64_t{2} * pair * kTileKeys;
  for (uint32_t t = 0; t < kTileKeys; t += kVector, to += 2 * kVector) {
    const V::R second = both ? V::load(one + kTileKeys + t) : V::zero();
    store_pair(rounded(V::load(one + t)), rounded(second), to);
  }
}

bool all_see_all(const AttentionTile& a) {
  for (uint32_t i = 0; i < a.n_vectors; ++i) {
    if (a.lo[i] > a.v.begin || a.hi[i] < a.v.end) return false;
  }
  return true;
}

/// Where some vectors do not see some keys, a weight of 0 must not meet an infinity or NaN of a
/// later token. Such values leave the tile and are added to the vectors that do see them one by
/// one.
void lift_non_finite(const AttentionTile& a, const Buffers& b) {
  for (uint32_t key = a.v.begin; key < a.v.end; ++key) {
    for (uint32_t d = 0; d < a.padded; ++d) {
      uint16_t* at =
          b.v + (uint64_t{key} / 4 * a.padded / 2 + d / 2) * kVector + d % 2 * 4 + key % 4;
      if ((*at & 0x7F80u) != 0x7F80u) continue;
      const uint32_t bits = uint32_t{*at} << 16;
      float x;
      __builtin_memcpy(&x, &bits, sizeof x);
      *at = 0;
      for (uint32_t i = 0; i < a.n_vectors; ++i) {
        if (key >= a.lo[i] && key < a.hi[i]) a.state.o[uint64_t{i} * a.padded + d] += x;
      }
    }
  }
}

void bf16_add_tile(const AttentionTile& a) {
  Carver carver(a.work);
  const Buffers b = take_buffers(carver, a.n_vectors, a.padded);
  Prefetcher ahead_k(a.ahead_k, kTileKeys / 2), ahead_v(a.ahead_v, kQuads);
  const uint32_t pairs = pairs_of(a.n_vectors);

  loaders_of(a.k.dtype).keys(a.k, a.padded, b.rows, b.k, ahead_k);
  uint32_t pair = 0;
  for (; pair + kTile <= pairs; pair += kTile) score_pairs<kTile>(a, b, pair);
  for (; pair < pairs; ++pair) score_pairs<1>(a, b, pair);

  for (uint32_t i = 0; i < a.n_vectors; i += V::kWidth) {
    softmax_rows(a, b.scores + uint64_t{i} * kTileKeys, i,
                 a.n_vectors - i < V::kWidth ? a.n_vectors - i : V::kWidth);
  }

  const bool lift = loaders_of(a.v.dtype).values(a.v, a.padded, b.rows, b.v, ahead_v);
  if (lift && !all_see_all(a)) lift_non_finite(a, b);
  for (uint32_t d = 0; d < a.padded; d += V::kWidth) V::store(b.no_row + d, V::zero());
  for (uint32_t i = 0; i < pairs; ++i) round_weights(a, b, i);
  pair = 0;
  for (; pair + kTile <= pairs; pair += kTile) weigh_pairs<kTile>(a, b, pair);
  for (; pair < pairs; ++pair) weigh_pairs<1>(a, b, pair);
}

constexpr AttentionTable make_bf16_table() {
  AttentionTable table = make_attention_table();
  table.q_bytes = bf16_q_bytes;
  table.work_bytes = bf16_work_bytes;
  table.prepare_q = bf16_prepare_q;
  table.add_tile = bf16_add_tile;
  return table;
}

}  // namespace

const AttentionTable kAttentionNeonBf16 = make_bf16_table();

}  // namespace sharpi::cpu
