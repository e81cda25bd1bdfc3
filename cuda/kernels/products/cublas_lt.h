// SPDX-License-Identifier: MIT
// cuBLASLt, opened at run time: nothing links to it, and without it own kernels run. One product:
// y (f32) = alpha * x (f16) * W^T (f16) + beta * y, row-major, alpha and beta in device memory.
// Owner: the CUDA model. Thread rule: methods may be called by several threads; a workspace is one
// stream's at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace sharpi::cuda {

/// Workspace that the library may use for one product.
constexpr uint64_t kCublasWorkspaceBytes = 32ull << 20;

struct CublasProduct {
  uint32_t n_rows = 0, n_in = 0, n_out = 0;  // n_in a multiple of 8
  const void* x = nullptr;                   // [n_rows][n_in] f16
  const void* w = nullptr;                   // [n_out][n_in] f16
  float* y = nullptr;                        // [n_rows][y_stride]
  uint64_t y_stride = 0;
  const float* alpha = nullptr;  // device
  const float* beta = nullptr;   // device
  void* workspace = nullptr;     // kCublasWorkspaceBytes, aligned to 256
};

class CublasLt {
 public:
  /// Looks for the library under its usual names. kNotFound: there is none; the text says what was
  /// tried. `context` is a number that the current CUDA context has alone in this process: it has
  /// one handle, which stays until the process ends.
  static Result<std::unique_ptr<CublasLt>> open(uint64_t context);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  /// Chooses and remembers the algorithm of a shape: the first call of a shape must not be the one
  /// that is timed, but may be inside a capture.
  Status run(const CublasProduct& p, cudaStream_t stream);
  /// Name and version, for statistics.
  const std::string& text() const { return text_; }

 private:
  struct Impl;
  explicit CublasLt(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
  std::string text_;
};

}  // namespace sharpi::cuda
