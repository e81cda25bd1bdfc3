// SPDX-License-Identifier: MIT
// What cpu/delta_net.cc and the delta net kernels of one instruction set agree on. Kernel files
// have flags of their own, so only plain data and declarations here. Thread rule: tables are
// immutable; a job is run by one thread on memory of its own.
#pragma once

#include <cstdint>

#include "cpu/short_conv.h"

namespace sharpi::cpu {

/// Tokens per chunk of the chunked form.
inline constexpr uint32_t kDeltaChunk = 64;

/// The rows of one value head. q is scaled, q and k are normalised.
struct DeltaHead {
  const float *q = nullptr, *k = nullptr, *v = nullptr;  // [n_rows][stride]
  uint64_t stride = 0;
  const float* g = nullptr;         // [n_rows] log decay, <= 0
  const float* beta = nullptr;      // [n_rows] in [0, 1]
  const float* state_in = nullptr;  // [dim][dim], row = value channel
  float* state_out = nullptr;       // may be state_in
  float* out = nullptr;             // [n_rows][out_stride]
  uint64_t out_stride = 0;
  uint32_t dim = 0, n_rows = 0;
  float* work = nullptr;  // work_floats(dim, n_rows)
  // Rows in front of these that want no outputs: what they make of their state_in is their
  // state_out, where these begin; state_in is not read then. Recurrence only.
  const DeltaHead* before = nullptr;
};

/// out = rms(out, norm) * silu(z), row by row.
struct DeltaGate {
  float* out = nullptr;
  uint64_t out_stride = 0;
  const float* z = nullptr;
  uint64_t z_stride = 0;
  const float* norm = nullptr;
  float eps = 0.0f;
  uint32_t dim = 0, n_rows = 0;
};

struct DeltaTable {
  uint32_t width;  // head_dim must be a multiple of it
  void (*conv)(const ShortConv&);
  void (*recurrence)(const DeltaHead&);
  void (*chunks)(const DeltaHead&);
  void (*gate)(const DeltaGate&);
};

/// Floats of DeltaHead::work: five [64][dim] matrices and two [64][64], or two numbers per row.
inline constexpr uint64_t kDeltaChunkMatrices = 5, kDeltaPairMatrices = 2;

}  // namespace sharpi::cpu
