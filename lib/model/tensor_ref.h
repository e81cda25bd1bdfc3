// SPDX-License-Identifier: MIT
// Weights of a model as references into its file. Thread rule: plain values.
#pragma once

#include <cstdint>

#include "gguf/gguf_file.h"

namespace sharpi {

/// A weight in the file: rows of n_in elements. Experts: n_out rows for each of n_experts slabs.
struct TensorRef {
  const GgufTensor* tensor = nullptr;  // nullptr = absent (optional weights)
  uint64_t n_in = 0, n_out = 0, n_experts = 1;
  uint64_t n_left_out = 0;  // rows of the tensor behind n_out that are not of the weight
  explicit operator bool() const { return tensor != nullptr; }
  uint64_t bytes() const { return tensor ? tensor->bytes : 0; }
  uint64_t row_bytes() const { return ggml_row_bytes(tensor->type, n_in); }
};

/// y = (x - mean) / sqrt(variance + eps) * weight + bias, of a row; f32. Absent: rows stay as they
/// are.
struct LayerNormSpec {
  TensorRef weight, bias;  // bias may be absent
  explicit operator bool() const { return static_cast<bool>(weight); }
};

}  // namespace sharpi
