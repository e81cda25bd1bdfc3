// SPDX-License-Identifier: MIT
// A weight of the model as kernels take it. How a tensor lies follows from all of its rows, also
// where a weight is only the first of them (the head that the MTP block drafts with).
// Thread rule: pure functions.
#pragma once

#include "base/limits.h"
#include "cuda/kernels/products/weight_layout.h"
#include "model/model_spec.h"

namespace sharpi::cuda {

static_assert(kDraftVocabStep % kPanelRows == 0);

inline WeightLayout layout_of(const TensorRef& w) {
  return weight_layout(w.tensor->type, w.n_in, w.n_out + w.n_left_out);
}

/// `data`: where the tensor is.
inline DeviceMatrix matrix_of(const TensorRef& w, const void* data) {
  const DeviceMatrix all =
      make_device_matrix(w.tensor->type, w.n_in, w.n_out + w.n_left_out, w.n_experts, data);
  return w.n_left_out == 0 ? all : output_slice(all, 0, static_cast<uint32_t>(w.n_out));
}

}  // namespace sharpi::cuda
