// SPDX-License-Identifier: MIT
// The arguments that every operation of a forward pass on the CPU gets, and the functions by which
// operations multiply rows with weights.
// Thread rule: one thread has a pass; the work of its products is spread over the pool.
#pragma once

#include <cassert>

#include "cpu/cpu_workspace.h"
#include "cpu/matmul.h"
#include "model/model_spec.h"
#include "tier/tier.h"

namespace sharpi::cpu {

/// One pass of one submission over one segment.
struct Pass {
  const Submission& rows;
  CpuWorkspace& ws;
  /// Rows that an FFN's operations share: x under its norm. The first of them (kFfnIn, kRoute)
  /// makes them.
  MatmulInput normed = {};

  const Matmul& matmul() const { return ws.matmul(); }
  /// The first n_rows rows of a buffer, made ready for products in the buffer `prepared`.
  MatmulInput input(Buf rows_of, uint64_t width, uint32_t n_rows, Buf prepared) const;
  /// One product of all rows of `in`.
  void product(const TensorRef& w, const MatmulInput& in, float* y, uint64_t y_stride,
               bool force_f32 = false) const;
};

/// A product of all rows of `in`, which the task refers to.
MatmulTask matmul_task(const TensorRef& w, const MatmulInput& in, float* y, uint64_t y_stride,
                       bool force_f32 = false);

/// A tensor that every file stores as f32; null where the model has none. One that it has is in
/// memory: CpuModel::create() refuses to begin without.
inline const float* f32_weights(const TensorRef& w) {
  assert(!w || w.tensor->data != nullptr);
  return w ? reinterpret_cast<const float*>(w.tensor->data) : nullptr;
}
/// The row of expert `e` of vectors that every expert has one of; null where there are none.
inline const float* expert_row(const TensorRef& w, uint64_t e) {
  return w ? f32_weights(w) + e * w.n_in : nullptr;
}

}  // namespace sharpi::cpu
