// SPDX-License-Identifier: MIT
// Products in bf16 tiles: weight panels are expanded to bf16 once, as left operands, and multiplied
// with tiles of activations; f32 sums over the whole depth of a panel, no scaling between.
//   C[16 weight rows][16 activation rows] += A[16][32 k] * B[16 k pairs][16 rows][2]
// Bound: 1024 flop per cycle in tiles, fed by 64 bytes per cycle from the second level cache (2 x 2
// blocking); with few activation rows, the expansion.
#include <immintrin.h>

#include "cpu/matmul_kernels.h"
#include "cpu/x86/expand_avx512.h"
#include "cpu/x86/kernel_tables.h"
#include "cpu/x86/tiles_amx.h"
#include "cpu/x86/transpose_avx512.h"

namespace sharpi::cpu {
namespace {

inline __m512i to_bf16(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

/// Elements [begin, begin + n) of a row, begin being a multiple of 256, into the row's place in
/// consecutive tiles.
template <class Format>
struct BlockSource {
  static constexpr uint64_t bytes(uint64_t n) { return n / 256 * Format::kUnitBytes; }
  static void expand(const std::byte* row, uint64_t begin, uint64_t n, std::byte* tile_row) {
    expand_row<Format, 4>(
        reinterpret_cast<const uint8_t*>(row), begin, n, [=](uint64_t at, __m512 low, __m512 high) {
          _mm512_store_si512(tile_row + at / kTileDepth * kTileBytes, to_bf16(low, high));
        });
  }
};

template <bool kHalf>
struct FloatSource {
  static constexpr uint64_t bytes(uint64_t n) { return n * 2; }
  static void expand(const std::byte* row, uint64_t begin, uint64_t n, std::byte* tile_row) {
    for (uint64_t i = 0; i < n; i += kTileDepth, tile_row += kTileBytes) {
      const auto mask = static_cast<__mmask32>(n - i >= 32 ? ~0u : (1u << (n - i)) - 1);
      __m512i v = _mm512_maskz_loadu_epi16(mask, row + (begin + i) * 2);
      if constexpr (kHalf) {
        v = to_bf16(_mm512_cvtph_ps(_mm512_castsi512_si256(v)),
                    _mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1)));
      }
      _mm512_store_si512(tile_row, v);
    }
  }
};

/// kA x kB tiles of sums at `c` (c_next bytes between activation tiles) over n_depth steps; `a` and
/// `b` step by a tile, their second tiles are a_next and b_next bytes away.
template <int kA, int kB>
inline void multiply(const std::byte* a, uint64_t a_next, const std::byte* b, uint64_t b_next,
                     uint64_t n_depth, bool first, std::byte* c, uint64_t c_next) {
  if (first) {
    zero_tile<0>();
    if constexpr (kB == 2) zero_tile<1>();
    if constexpr (kA == 2) zero_tile<2>();
    if constexpr (kA == 2 && kB == 2) zero_tile<3>();
  } else {
    load_tile<0>(c, 64);
    if constexpr (kB == 2) load_tile<1>(c + c_next, 64);
    if constexpr (kA == 2) load_tile<2>(c + kTileBytes, 64);
    if constexpr (kA == 2 && kB == 2) load_tile<3>(c + c_next + kTileBytes, 64);
  }
  for (uint64_t k = 0; k < n_depth; ++k, a += kTileBytes, b += kTileBytes) {
    load_tile<4>(a, 64);
    load_tile<6>(b, 64);
    add_bf16_products<0, 4, 6>();
    if constexpr (kB == 2) {
      load_tile<7>(b + b_next, 64);
      add_bf16_products<1, 4, 7>();
    }
    if constexpr (kA == 2) {
      load_tile<5>(a + a_next, 64);
      add_bf16_products<2, 5, 6>();
      if constexpr (kB == 2) add_bf16_products<3, 5, 7>();
    }
  }
  store_tile<0>(c, 64);
  if constexpr (kB == 2) store_tile<1>(c + c_next, 64);
  if constexpr (kA == 2) store_tile<2>(c + kTileBytes, 64);
  if constexpr (kA == 2 && kB == 2) store_tile<3>(c + c_next + kTileBytes, 64);
}

/// Rows of tiles: n of them, `next` bytes apart.
struct TileLines {
  const std::byte* data = nullptr;
  uint64_t n = 0, next = 0;
};

/// Four weight tiles against one activation tile: as many independent sums as with 2 x 2.
inline void multiply_tall(const std::byte* a, uint64_t a_next, const std::byte* b, uint64_t n_depth,
                          bool first, std::byte* c) {
  if (first) {
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
  } else {
    load_tile<0>(c, 64);
    load_tile<1>(c + kTileBytes, 64);
    load_tile<2>(c + 2 * kTileBytes, 64);
    load_tile<3>(c + 3 * kTileBytes, 64);
  }
  for (uint64_t k = 0; k < n_depth; ++k, a += kTileBytes, b += kTileBytes) {
    load_tile<6>(b, 64);
    load_tile<4>(a, 64);
    add_bf16_products<0, 4, 6>();
    load_tile<5>(a + a_next, 64);
    add_bf16_products<1, 5, 6>();
    load_tile<7>(a + 2 * a_next, 64);
    add_bf16_products<2, 7, 6>();
    load_tile<4>(a + 3 * a_next, 64);
    add_bf16_products<3, 4, 6>();
  }
  store_tile<0>(c, 64);
  store_tile<1>(c + kTileBytes, 64);
  store_tile<2>(c + 2 * kTileBytes, 64);
  store_tile<3>(c + 3 * kTileBytes, 64);
}

/// A panel of weights against all activation tiles: sums[j][i] += a[i] * b[j], both over n_depth.
inline void multiply_panel(const TileLines& a, const TileLines& b, uint64_t n_depth, bool first,
                           std::byte* sums) {
  const uint64_t c_next = a.n * kTileBytes;
  for (uint64_t j = 0; j < b.n; j += 2) {
    const std::byte* bt = b.data + j * b.next;
    uint64_t i = 0;
    for (; j + 1 == b.n && i + 4 <= a.n; i += 4) {
      std::byte* c = sums + j * c_next + i * kTileBytes;
      multiply_tall(a.data + i * a.next, a.next, bt, n_depth, first, c);
    }
    for (; i < a.n; i += 2) {
      const std::byte* at = a.data + i * a.next;
      std::byte* c = sums + j * c_next + i * kTileBytes;
      const bool two_a = i + 1 < a.n, two_b = j + 1 < b.n;
      if (two_a && two_b) {
        multiply<2, 2>(at, a.next, bt, b.next, n_depth, first, c, c_next);
      } else if (two_a) {
        multiply<2, 1>(at, a.next, bt, b.next, n_depth, first, c, c_next);
      } else if (two_b) {
        multiply<1, 2>(at, a.next, bt, b.next, n_depth, first, c, c_next);
      } else {
        multiply<1, 1>(at, a.next, bt, b.next, n_depth, first, c, c_next);
      }
    }
  }
}

/// y[n_rows][n_out] = the transposed tiles of sums.
void put_sums(const std::byte* sums, uint64_t n_rows, uint64_t n_out, float* y, uint64_t y_stride) {
  for (uint64_t r0 = 0; r0 < n_rows; r0 += 16) {
    for (uint64_t o = 0; o < n_out; o += 16, sums += kTileBytes) {
      const auto mask = static_cast<__mmask16>(n_out - o >= 16 ? 0xFFFFu : (1u << (n_out - o)) - 1);
      __m512i v[16];
      for (int i = 0; i < 16; ++i) v[i] = _mm512_load_si512(sums + 64 * i);
      transpose(v);
      float* to = y + r0 * y_stride + o;
      for (uint64_t r = 0; r < 16 && r0 + r < n_rows; ++r, to += y_stride) {
        _mm512_mask_storeu_ps(to, mask, _mm512_castsi512_ps(v[r]));
      }
    }
  }
}

/// Asks for bytes that will be expanded soon.
inline void fetch(const std::byte* p, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T0);
  }
}

/// Expands elements [k, k + n) of n_out weight rows from row o. Each row's bytes are asked for
/// kRowsAhead rows before they are needed, across the border to the next piece of the panel: the
/// hardware does not foresee these jumps.
template <class Source>
void expand_panel(const MatmulJob& job, uint64_t o, uint64_t n_out, uint64_t k, uint64_t n,
                  const TileLines& a, std::byte* panel) {
  constexpr uint64_t kRowsAhead = 8;
  const uint64_t bytes = Source::bytes(kAmxDepth), next_k = k + n < job.n_in ? k + n : 0;
  const uint64_t next_o = next_k == 0 ? o + n_out : o;
  for (uint64_t r = 0; r < n_out; ++r) {
    const uint64_t ahead = r + kRowsAhead;
    const bool here = ahead < n_out;
    fetch(job.w + (here ? o + ahead : next_o + ahead - n_out) * job.row_bytes +
              Source::bytes(here ? k : next_k),
          bytes);
    Source::expand(job.w + (o + r) * job.row_bytes, k, n, panel + r / 16 * a.next + r % 16 * 64);
  }
}

/// All of the job's weights against at most kAmxRows rows of activations that lie in `tiles`.
template <class Source>
void multiply_rows(const MatmulJob& job, const std::byte* tiles, uint64_t row0, uint64_t n_rows) {
  std::byte* const panel = job.scratch;
  std::byte* const sums = job.scratch + kAmxPanelBytes;
  const uint64_t b_next = (job.n_in + kTileDepth - 1) / kTileDepth * kTileBytes;
  for (uint64_t o = 0; o < job.n_out; o += kAmxPanelRows) {
    const uint64_t n_out = job.n_out - o < kAmxPanelRows ? job.n_out - o : kAmxPanelRows;
    for (uint64_t k = 0; k < job.n_in; k += kAmxDepth) {
      const uint64_t n = job.n_in - k < kAmxDepth ? job.n_in - k : kAmxDepth;
      const TileLines a{panel, (n_out + 15) / 16, kAmxDepth / kTileDepth * kTileBytes};
      expand_panel<Source>(job, o, n_out, k, n, a, panel);
      const TileLines b{tiles + k / kTileDepth * kTileBytes, (n_rows + 15) / 16, b_next};
      multiply_panel(a, b, (n + kTileDepth - 1) / kTileDepth, k == 0, sums);
    }
    put_sums(sums, n_rows, n_out, job.y + row0 * job.y_stride + o, job.y_stride);
  }
}

/// The tiles of rows ids[r0...r0 + n_rows), made in scratch.
const std::byte* gather_tiles(const MatmulJob& job, uint64_t r0, uint64_t n_rows, uint64_t line) {
  std::byte* const packed = job.scratch + kAmxPanelBytes + kAmxSumBytes;
  for (uint64_t r = 0; r < n_rows; r += kTileRows) {
    const float* x[kTileRows] = {};
    for (uint64_t i = 0; i < kTileRows && r + i < n_rows; ++i) {
      x[i] = reinterpret_cast<const float*>(job.x + job.ids[r0 + r + i] * job.x_stride);
    }
    pack_tiles_amx(x, job.n_in, packed + r / kTileRows * line);
  }
  return packed;
}

template <class Source>
void amx_job(const MatmulJob& job) {
  const TileConfig config;
  configure_tiles(config);
  const uint64_t line = (job.n_in + kTileDepth - 1) / kTileDepth * kTileBytes;
  uint64_t block = kAmxRows;
  if (job.ids != nullptr) {
    const uint64_t fit = kAmxPackBytes / line > 2 ? kAmxPackBytes / line : 2;
    block = fit * kTileRows < kAmxRows ? fit * kTileRows : kAmxRows;
  }
  for (uint64_t r0 = 0; r0 < job.n_rows; r0 += block) {
    const uint64_t n_rows = job.n_rows - r0 < block ? job.n_rows - r0 : block;
    const std::byte* tiles = job.ids == nullptr ? job.tiles + r0 / kTileRows * line
                                                : gather_tiles(job, r0, n_rows, line);
    multiply_rows<Source>(job, tiles, r0, n_rows);
  }
  release_tiles();
}

}  // namespace

void pack_tiles_amx(const float* const* x, uint64_t n_in, std::byte* tiles) {
  for (uint64_t k = 0; k < n_in; k += kTileDepth, tiles += kTileBytes) {
    const uint64_t left = n_in - k;
    const auto mask = left >= kTileDepth ? ~0u : (1u << left) - 1;
    __m512i v[kTileRows];
    for (uint64_t r = 0; r < kTileRows; ++r) {
      v[r] = _mm512_setzero_si512();
      if (x[r] == nullptr) continue;
      v[r] = to_bf16(_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x[r] + k),
                     _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x[r] + k + 16));
    }
    transpose(v);
    for (uint64_t p = 0; p < 16; ++p) _mm512_store_si512(tiles + 64 * p, v[p]);
  }
}

MatmulJobFn bf16_amx(GgmlType type) {
  switch (type) {
    case GgmlType::kF16:
      return amx_job<FloatSource<true>>;
    case GgmlType::kBF16:
      return amx_job<FloatSource<false>>;
    default:
      return with_format(type, MatmulJobFn{nullptr}, [](auto format) -> MatmulJobFn {
        return amx_job<BlockSource<decltype(format)>>;
      });
  }
}

}  // namespace sharpi::cpu
