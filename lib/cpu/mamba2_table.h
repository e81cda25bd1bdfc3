// SPDX-License-Identifier: MIT
// What cpu/mamba2.cc and the Mamba-2 kernels of one instruction set agree on. Kernel files have
// flags of their own, so only plain data and declarations here. Thread rule: tables are immutable;
// a job is run by one thread on memory of its own.
#pragma once

#include <cstdint>

#include "cpu/short_conv.h"

namespace sharpi::cpu {

/// Tokens per chunk of the chunked form.
inline constexpr uint32_t kMambaChunk = 64;

/// The rows of one head; x, B and C are convolved.
struct MambaHead {
  const float *x = nullptr, *b = nullptr, *c = nullptr;  // [n_rows][stride]
  uint64_t stride = 0;
  const float* dt = nullptr;  // [n_rows][dt_stride]: steps, above 0
  uint64_t dt_stride = 0;
  float a = 0.0f, skip = 0.0f;      // log decay per step, <= 0; what x itself counts in an output
  const float* state_in = nullptr;  // [dim][state_dim], row = channel of x
  float* state_out = nullptr;       // may be state_in
  float* out = nullptr;             // [n_rows][out_stride]
  uint64_t out_stride = 0;
  uint32_t dim = 0, state_dim = 0, n_rows = 0;
  float* work = nullptr;  // [2][n_rows], of the recurrence
  // Rows in front of these that want no outputs: what they make of their state_in is their
  // state_out, where these begin; state_in is not read then. Recurrence only.
  const MambaHead* before = nullptr;
};

/// Heads of one group, which share b, c, stride and all sizes.
struct MambaHeads {
  const MambaHead* heads = nullptr;
  uint32_t n_heads = 0;
  float* work = nullptr;  // mamba_chunk_floats(dim, state_dim)
};

struct Mamba2Table {
  uint32_t width;  // head_dim and state_dim must be multiples of it
  void (*conv)(const ShortConv&);
  void (*recurrence)(const MambaHead&);
  void (*chunks)(const MambaHeads&);
};

/// Two [64][state_dim] matrices, one [64][dim] and two [64][64].
inline constexpr uint64_t mamba_chunk_floats(uint32_t dim, uint32_t state_dim) {
  return uint64_t{kMambaChunk} * (2 * uint64_t{state_dim} + dim + 2 * kMambaChunk);
}

}  // namespace sharpi::cpu
