// SPDX-License-Identifier: MIT
// How weights lie on the tests' device: quantised matrices with the rows of every eight in reverse,
// so that it shows whether a layout was made, and made once. Thread rule: pure functions.
#pragma once

#include <vector>

#include "gguf/ggml_type.h"
#include "model/model_spec.h"

namespace sharpi::testing {

class HostMatrix {
 public:
  static constexpr uint64_t kUnitRows = 8;
  static uint64_t unit(const TensorRef& w) {
    const bool blocks = ggml_traits(w.tensor->type).block_elements > 1;
    return blocks && (w.n_out + w.n_left_out) % kUnitRows == 0 ? kUnitRows * w.row_bytes() : 0;
  }
  static uint64_t place(uint64_t row) {
    return row / kUnitRows * kUnitRows + (kUnitRows - 1 - row % kUnitRows);
  }

  HostMatrix(const TensorRef& w, const std::byte* data)
      : HostMatrix(w, data, (w.n_out + w.n_left_out) * w.row_bytes()) {}
  /// Experts `stride` bytes from each other.
  HostMatrix(const TensorRef& w, const std::byte* data, uint64_t stride)
      : type_(w.tensor->type),
        n_in_(w.n_in),
        row_bytes_(w.row_bytes()),
        stride_(stride),
        moved_(unit(w) != 0),
        data_(data) {}
  std::vector<float> row(uint64_t expert, uint64_t r) const {
    std::vector<float> out(n_in_);
    dequantize_row(type_, data_ + expert * stride_ + (moved_ ? place(r) : r) * row_bytes_,
                   out.data(), n_in_);
    return out;
  }
  uint64_t n_in() const { return n_in_; }

 private:
  GgmlType type_;
  uint64_t n_in_, row_bytes_, stride_;
  bool moved_;
  const std::byte* data_;
};

}  // namespace sharpi::testing
