// SPDX-License-Identifier: MIT
// Matrix products of quantised weights with f32 rows: y[r][o] = sum_i W[o][i] * x[r][i]. Weights
// are read in place, in the file's block format.
//   exact  f32 activations, weights dequantised to f32.
//   fast   activations quantised to int8 per 32 elements but for a row's few largest, which stay in
//          f32 (few rows: row-dot kernels that stream the weights once for up to 8 rows), or many
//          rows: weight panels unpacked once into a packed tile (int8 with AVX2 or VNNI, bf16 with
//          AMX) and multiplied with all rows.
// F32 weights, and any matrix flagged `force_f32` (routers), always use f32 activations.
// deterministic: one kernel family and reduction order for every row count, so a row's result does
// not depend on the other rows, on chunking, or on the number of threads.
// Without it a row's result still does not depend on the number of threads.
// Thread rule: one call at a time per Matmul; the work is spread over the pool.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/thread_pool.h"
#include "cpu/kernel_set.h"
#include "gguf/ggml_type.h"

namespace sharpi::cpu {

struct WeightMatrix {
  GgmlType type = GgmlType::kF32;
  const std::byte* data = nullptr;
  uint64_t n_in = 0, n_out = 0;  // n_out rows of n_in elements
  uint64_t row_bytes = 0;
};

struct MatmulConfig {
  const KernelSet* kernels = &kScalarKernels;
  bool exact = false;
  bool deterministic = false;
};

/// Rows prepared for products: several matrices may read one input. Memory is the caller's.
struct MatmulInput {
  const float* x = nullptr;  // [n_rows][stride]
  uint64_t stride = 0;       // floats between rows
  uint32_t n_rows = 0;
  uint64_t n_in = 0;
  std::byte* prepared = nullptr;  // prepared_bytes(config, n_in, n_rows) bytes, 64-byte aligned
};

/// One product. Rows of the input are x[row_ids[r]], r < n_rows, or x[r] when row_ids is null.
struct MatmulTask {
  WeightMatrix w;
  const MatmulInput* in = nullptr;
  const uint32_t* row_ids = nullptr;
  uint32_t n_rows = 0;
  float* y = nullptr;  // [n_rows][y_stride]
  uint64_t y_stride = 0;
  bool force_f32 = false;
};

/// Products of at least kMinPanelRows activation rows go by panels, which take weight rows in
/// blocks of kPanelUnit: from so many rows on a panel pays for its expansion.
constexpr uint32_t kMinPanelRows = 5, kPanelUnit = 32;

class Matmul {
 public:
  /// Bytes of MatmulInput::prepared for up to n_rows rows of n_in elements. 0 is possible (exact).
  static uint64_t prepared_bytes(const MatmulConfig& config, uint64_t n_in, uint32_t n_rows);
  /// Bytes of scratch for products of up to max_rows rows of up to max_in elements.
  static uint64_t scratch_bytes(const MatmulConfig& config, uint32_t n_threads, uint64_t max_in,
                                uint32_t max_rows);

  Matmul(const MatmulConfig& config, ThreadPool* pool, std::byte* scratch, uint64_t scratch_bytes);
  const MatmulConfig& config() const { return config_; }

  /// Fills in.prepared from in.x (a no-op in exact arithmetic).
  void prepare(const MatmulInput& in) const;
  /// Runs all tasks in one parallel region; y of different tasks must not overlap. Allocates
  /// nothing. One call at a time: threads share their parts of the tasks in the object.
  void run(std::span<const MatmulTask> tasks) const;
  /// Parts of the same, on the calling thread: rows [first, first + n) of in.prepared (no tiles, so
  /// for products of less than kMinTileRows rows); outputs [first, first + n) of a task, with the
  /// scratch of `worker`, one of the pool's threads at a time. Products by panels: `first` must be
  /// a multiple of kPanelUnit.
  void prepare_rows(const MatmulInput& in, uint32_t first, uint32_t n) const;
  void run_outputs(const MatmulTask& task, uint64_t first, uint64_t n, uint32_t worker) const;
  /// Asks for the first weights of run_outputs() to come, as far as the kernels ask ahead.
  static void prefetch(const MatmulTask& task, uint64_t first, uint64_t n,
                       uint64_t max_bytes = 8192);
  /// Which path a product of n_rows rows of this type takes, for statistics: "f32-dot", "int8-dot",
  /// "int8-panel", "bf16-amx", "f32-panel", ...
  const char* path(GgmlType type, uint32_t n_rows, bool force_f32) const;

 private:
  /// The part of a run that a thread works off first; then it helps others. Each thread counts in a
  /// cache line of its own: a line that two cores write travels between them for as long as
  /// reading some kilobytes takes.
  struct alignas(64) Share {
    std::atomic<uint64_t> next{0};
    uint64_t end = 0;
    bool take(bool own, uint64_t most, uint64_t* first, uint64_t* n);
  };

  MatmulConfig config_;
  ThreadPool* pool_;
  std::byte* scratch_;
  uint64_t scratch_bytes_;
  std::unique_ptr<Share[]> shares_;  // one for each thread of the pool
};

}  // namespace sharpi::cpu
