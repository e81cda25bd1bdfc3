// SPDX-License-Identifier: MIT
// Small dense products over the vectors V of vec_<isa>.h, register blocked. An element's bits do
// not depend on the block it was computed in:
//   dots   out[a][b] = sum_i A[a][i] * B[b][i]   one accumulator per pair, i ascending by W lanes,
//          then the tree of V::sum_each
//   axpy   O[a][:] += sum_t P[a][t] * B[t][:]    one accumulator per element, t ascending
// Thread rule: pure functions with internal linkage.
#pragma once

#include <cstdint>

namespace sharpi::cpu {
namespace {

/// A rows by W / A rows of B; d a multiple of W.
template <uint32_t A>
inline void dots_block(const float* a, uint64_t a_stride, const float* b, uint64_t b_stride,
                       uint32_t d, float* out, uint64_t out_stride) {
  constexpr uint32_t kB = V::kWidth / A;
  V::R acc[V::kWidth];
#pragma GCC unroll 16
  for (uint32_t i = 0; i < V::kWidth; ++i) acc[i] = V::zero();
  for (uint32_t c = 0; c < d; c += V::kWidth) {
    V::R av[A];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < A; ++i) av[i] = V::load(a + i * a_stride + c);
#pragma GCC unroll 16
    for (uint32_t j = 0; j < kB; ++j) {
      const V::R bv = V::load(b + j * b_stride + c);
#pragma GCC unroll 4
      for (uint32_t i = 0; i < A; ++i) acc[i * kB + j] = V::fma(av[i], bv, acc[i * kB + j]);
    }
  }
  if constexpr (A == 1) {
    V::store(out, V::sum_each(acc));
  } else {
    alignas(64) float sums[V::kWidth];
    V::store(sums, V::sum_each(acc));
    for (uint32_t i = 0; i < A; ++i) {
      __builtin_memcpy(out + i * out_stride, sums + i * kB, kB * sizeof(float));
    }
  }
}

/// The same of vectors of one lane, whose sums need no tree: A rows by B rows, so that additions do
/// not wait for one another.
template <uint32_t A, uint32_t B>
inline void dots_of_scalars(const float* a, uint64_t a_stride, const float* b, uint64_t b_stride,
                            uint32_t d, float* out, uint64_t out_stride) {
  V::R acc[A][B];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < A; ++i) {
#pragma GCC unroll 4
    for (uint32_t j = 0; j < B; ++j) acc[i][j] = V::zero();
  }
  for (uint32_t c = 0; c < d; ++c) {
#pragma GCC unroll 4
    for (uint32_t j = 0; j < B; ++j) {
      const V::R bv = V::load(b + j * b_stride + c);
#pragma GCC unroll 4
      for (uint32_t i = 0; i < A; ++i)
        acc[i][j] = V::fma(V::load(a + i * a_stride + c), bv, acc[i][j]);
    }
  }
#pragma GCC unroll 4
  for (uint32_t i = 0; i < A; ++i) {
#pragma GCC unroll 4
    for (uint32_t j = 0; j < B; ++j) V::store(out + i * out_stride + j, acc[i][j]);
  }
}

/// What dots and axpy call between blocks of 16 or more FMAs; here nothing.
struct NoPause {
  void operator()() const {}
};

/// out[a][b] for a < n_a, b in [b0, b1). b0 is rounded down and b1 up to multiples of W: those rows
/// of B must be readable, those columns of out writable.
template <class Pause = NoPause>
inline void dots(const float* a, uint64_t a_stride, uint32_t n_a, const float* b, uint64_t b_stride,
                 uint32_t b0, uint32_t b1, uint32_t d, float* out, uint64_t out_stride,
                 Pause&& pause = {}) {
  constexpr uint32_t kW = V::kWidth;
  b0 = b0 / kW * kW;
  b1 = (b1 + kW - 1) / kW * kW;
  uint32_t i = 0;
  if constexpr (kW == 1) {
    for (; i + 4 <= n_a; i += 4) {
      uint32_t j = b0;
      for (; j + 2 <= b1; j += 2) {
        dots_of_scalars<4, 2>(a + i * a_stride, a_stride, b + j * b_stride, b_stride, d,
                              out + i * out_stride + j, out_stride);
        pause();
      }
      if (j < b1) {
        dots_of_scalars<4, 1>(a + i * a_stride, a_stride, b + j * b_stride, b_stride, d,
                              out + i * out_stride + j, out_stride);
      }
    }
  }
  if constexpr (kW >= 4) {
    for (; i + 4 <= n_a; i += 4) {
      for (uint32_t j = b0; j < b1; j += kW / 4) {
        dots_block<4>(a + i * a_stride, a_stride, b + j * b_stride, b_stride, d,
                      out + i * out_stride + j, out_stride);
        pause();
      }
    }
    for (; i + 2 <= n_a; i += 2) {
      for (uint32_t j = b0; j < b1; j += kW / 2) {
        dots_block<2>(a + i * a_stride, a_stride, b + j * b_stride, b_stride, d,
                      out + i * out_stride + j, out_stride);
        pause();
      }
    }
  }
  for (; i < n_a; ++i) {
    for (uint32_t j = b0; j < b1; j += kW) {
      dots_block<1>(a + i * a_stride, a_stride, b + j * b_stride, b_stride, d,
                    out + i * out_stride + j, out_stride);
      pause();
    }
  }
}

/// P as axpy reads it: element (a, t) at p[a * row + t * col].
struct AxpyWeights {
  const float* p;
  uint64_t row, col;
};

template <uint32_t A, uint32_t C, class Pause>
inline void axpy_block(const AxpyWeights& w, const float* b, uint64_t b_stride, uint32_t t0,
                       uint32_t t1, float* o, uint64_t o_stride, Pause& pause) {
  constexpr uint32_t kW = V::kWidth;
  V::R acc[A][C];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < A; ++i) {
#pragma GCC unroll 8
    for (uint32_t c = 0; c < C; ++c) acc[i][c] = V::load(o + i * o_stride + c * kW);
  }
  for (uint32_t t = t0; t < t1; ++t) {
    V::R bv[C];
#pragma GCC unroll 8
    for (uint32_t c = 0; c < C; ++c) bv[c] = V::load(b + t * b_stride + c * kW);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < A; ++i) {
      const V::R pv = V::set1(w.p[i * w.row + t * w.col]);
#pragma GCC unroll 8
      for (uint32_t c = 0; c < C; ++c) acc[i][c] = V::fma(pv, bv[c], acc[i][c]);
    }
    pause();
  }
#pragma GCC unroll 4
  for (uint32_t i = 0; i < A; ++i) {
#pragma GCC unroll 8
    for (uint32_t c = 0; c < C; ++c) V::store(o + i * o_stride + c * kW, acc[i][c]);
  }
}

template <uint32_t A, class Pause>
inline void axpy_rows(const AxpyWeights& w, const float* b, uint64_t b_stride, uint32_t t0,
                      uint32_t t1, uint32_t d, float* o, uint64_t o_stride, Pause& pause) {
  constexpr uint32_t kW = V::kWidth;
  // Accumulators and one row of B in the registers there are (16, or 32 with 16 lanes). Of single
  // lanes compilers make vectors.
  constexpr uint32_t kRegs = kW == 1 ? 32 : kW == 16 ? 16 : 8;
  constexpr uint32_t kC = kRegs / A < 8 ? kRegs / A : 8;
  uint32_t c = 0;
  for (; c + kC * kW <= d; c += kC * kW) {
    axpy_block<A, kC>(w, b + c, b_stride, t0, t1, o + c, o_stride, pause);
  }
  for (; c + 2 * kW <= d; c += 2 * kW) {
    axpy_block<A, 2>(w, b + c, b_stride, t0, t1, o + c, o_stride, pause);
  }
  for (; c < d; c += kW) axpy_block<A, 1>(w, b + c, b_stride, t0, t1, o + c, o_stride, pause);
}

/// O[a][0, d) += sum over t in [t0, t1) of P[a][t] * B[t][0, d), for a < n_a; d a multiple of W.
template <class Pause = NoPause>
inline void axpy(AxpyWeights w, uint32_t n_a, const float* b, uint64_t b_stride, uint32_t t0,
                 uint32_t t1, uint32_t d, float* o, uint64_t o_stride, Pause&& pause = {}) {
  uint32_t i = 0;
  const auto skip = [&](uint32_t n) {
    w.p += n * w.row;
    o += n * o_stride;
  };
  for (; i + 4 <= n_a; i += 4) {
    axpy_rows<4>(w, b, b_stride, t0, t1, d, o, o_stride, pause);
    skip(4);
  }
  for (; i + 2 <= n_a; i += 2) {
    axpy_rows<2>(w, b, b_stride, t0, t1, d, o, o_stride, pause);
    skip(2);
  }
  for (; i < n_a; ++i) {
    axpy_rows<1>(w, b, b_stride, t0, t1, d, o, o_stride, pause);
    skip(1);
  }
}

}  // namespace
}  // namespace sharpi::cpu
