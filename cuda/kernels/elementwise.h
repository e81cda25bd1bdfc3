// SPDX-License-Identifier: MIT
// The small kernels between the large ones: norms of picked rows, residual adds behind a norm,
// logits to their sessions, per-layer embeddings. Fixed reduction orders: a row's
// result depends on nothing but the row. Launchers allocate nothing and can be captured.
// Thread rule: pure functions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/epilogue.h"

namespace sharpi::cuda {

/// Where a small kernel runs, and whether it may start before the preceding grid has ended.
struct OnStream {
  cudaStream_t stream = nullptr;
  bool pdl = false;
};

/// y[i] = rms_norm(x[ids[i]]) * weight; ids null = i.
struct NormRowsParams {
  const float* x = nullptr;
  const uint32_t* ids = nullptr;  // device
  uint32_t n_rows = 0, width = 0;
  const float* weight = nullptr;
  float eps = 0.0f;
  float* y = nullptr;
};
Status launch_norm_rows(const NormRowsParams& p, const OnStream& on);

/// y[r] = {rms_norm(first[r]) * first_weight, rms_norm(second[r]) * second_weight}, a row of twice
/// the width.
struct PairRowsParams {
  const float *first = nullptr, *second = nullptr;
  const float *first_weight = nullptr, *second_weight = nullptr;
  uint32_t n_rows = 0, width = 0;
  float eps = 0.0f;
  float* y = nullptr;
};
Status launch_pair_rows(const PairRowsParams& p, const OnStream& on);

/// to[r] = scale * (x[r] + share * y[r]), y RMS-normalised first when there is a weight.
struct ResidualParams {
  const float* x = nullptr;  // nullptr: zeros, if there is y
  float* to = nullptr;       // may be x or y
  const float* y = nullptr;  // nullptr: x is scaled only
  uint32_t n_rows = 0, width = 0;
  const float* weight = nullptr;
  float eps = 0.0f, scale = 1.0f, share = 1.0f;
};
Status launch_residual(const ResidualParams& p, const OnStream& on);

/// to[i][v] = softcap(scale * logits[i][v]); rows without a target are dropped.
struct LogitRowsParams {
  const float* logits = nullptr;  // [n_rows][n_vocab]
  float* const* to = nullptr;     // device: [n_rows]
  uint32_t n_rows = 0, n_vocab = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0 = none
};
Status launch_logit_rows(const LogitRowsParams& p, const OnStream& on);

/// Per-layer embeddings of a token: c = (rms_norm(c * to_unit) * weight + table * table_scale) *
/// half, slice by slice of `width`.
struct PleCombineParams {
  float* c = nullptr;             // [n_rows][n_slices * width]: the projection, replaced
  const float* table = nullptr;   // the same shape
  const float* weight = nullptr;  // [width]
  uint32_t n_rows = 0, n_slices = 0, width = 0;
  float eps = 0.0f, to_unit = 1.0f, table_scale = 1.0f, half = 1.0f;
};
Status launch_ple_combine(const PleCombineParams& p, const OnStream& on);

/// t[r][i] = gelu_tanh(t[r][i]) * c[r * stride + i].
struct PleGateParams {
  float* t = nullptr;  // [n_rows][width]
  const float* c = nullptr;
  uint64_t stride = 0;
  uint32_t n_rows = 0, width = 0;
};
Status launch_ple_gate(const PleGateParams& p, const OnStream& on);

/// x[i] = max(x[i], 0)^2.
struct SquareParams {
  float* x = nullptr;
  uint64_t n = 0;
};
Status launch_square(const SquareParams& p, const OnStream& on);

/// gate[i] = act(gate[i]) * up[i], by a gated epilogue's number.
struct GateParams {
  float* gate = nullptr;
  const float* up = nullptr;
  uint64_t n = 0;
  device::Epilogue epilogue = device::Epilogue::kSwiGlu;
};
Status launch_gate(const GateParams& p, const OnStream& on);

/// Reads a block once; what it sums goes to *sink so that the reads are not dropped.
Status launch_read_stream(const std::byte* data, uint64_t bytes, uint32_t* sink, int n_sm,
                          cudaStream_t stream);

}  // namespace sharpi::cuda
