// SPDX-License-Identifier: MIT
#include "cpu/matmul.h"

#include <algorithm>
#include <atomic>
#include <cassert>

#include "base/checked.h"
#include "cpu/matmul_kernels.h"
#include "cpu/row_peaks.h"

namespace sharpi::cpu {
namespace {

// Few rows (GEMV): reading the weights is the cost. The part that a thread takes at once must be
// long compared with the prefetch distance of the kernels, and so short that other threads can take
// parts from a thread that is slowed down. Threads help each other with the smallest parts, so that
// they finish together.
constexpr uint64_t kMinUnitBytes = 8 * 1024, kMaxUnitBytes = 64 * 1024, kMaxTakeBytes = 256 * 1024;
constexpr uint64_t kUnitsPerThread = 32;
// Panels: parts must be large, because each passes over all activations.
constexpr uint64_t kMinChunkBytes = 64 * 1024, kChunksPerThread = 4;
// Rows that the kernels take together.
constexpr uint64_t kRowUnit = 4;
// Rows that cost about as much arithmetic as reading their weights costs time.
constexpr uint64_t kRowsPerRead = 4;

const MatmulKernels& kernels_of(const MatmulConfig& config) {
  return config.kernels->matmul();
}

bool is_float(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16;
}

// From how many activation rows on it pays to expand weights to bf16 tiles, and to round rows for
// weights in bf16.
constexpr uint32_t kMinTileRows = 20;
static_assert(kPanelUnit == kInt8PanelRows);

MatmulPath choose_path(const MatmulConfig& config, GgmlType type, uint32_t n_rows, bool force_f32) {
  if (config.exact || force_f32 || type == GgmlType::kF32 ||
      kernels_of(config).quantize_row == nullptr) {
    return MatmulPath::kF32;
  }
  if (kernels_of(config).pack_tiles != nullptr && !config.deterministic && n_rows >= kMinTileRows) {
    return MatmulPath::kBf16Tiles;
  }
  if (type == GgmlType::kBF16 && kernels_of(config).bf16_scratch_bytes != nullptr &&
      !config.deterministic && n_rows >= kMinTileRows) {
    return MatmulPath::kBf16Rows;
  }
  if (is_float(type)) return MatmulPath::kF32;
  return !config.deterministic && n_rows >= kMinPanelRows ? MatmulPath::kInt8Panel
                                                          : MatmulPath::kInt8Dot;
}

/// Where the parts of MatmulInput::prepared lie.
struct Prepared {
  uint64_t int8_row_bytes = 0;                // 0: no int8 rows
  uint64_t tiles_at = 0, tile_row_bytes = 0;  // tile_row_bytes = 0: no tiles
  uint64_t bytes = 0;
};

Prepared prepared_layout(const MatmulConfig& config, uint64_t n_in, uint32_t n_rows) {
  Prepared p;
  if (config.exact) return p;
  const MatmulKernels& kernels = kernels_of(config);
  if (kernels.quantize_row != nullptr) {
    p.int8_row_bytes = div_up(n_in, kInt8RowUnit) * kInt8UnitBytes + sizeof(Int8Peaks);
    p.bytes = p.int8_row_bytes * n_rows;
  }
  if (kernels.pack_tiles != nullptr && !config.deterministic && n_rows >= kMinTileRows) {
    p.tiles_at = p.bytes;
    p.tile_row_bytes = div_up(n_in, kTileDepth) * kTileBytes;
    p.bytes += p.tile_row_bytes * div_up(n_rows, kTileRows);
  }
  return p;
}

/// One row of in.x in int8, to in.prepared.
void quantize(const MatmulConfig& config, const Prepared& p, const MatmulInput& in, uint64_t r) {
  quantize_with_peaks(kernels_of(config).quantize_row, in.x + r * in.stride, in.n_in,
                      in.prepared + r * p.int8_row_bytes);
}

bool is_panel(MatmulPath path) {
  switch (path) {
    case MatmulPath::kF32:
    case MatmulPath::kInt8Dot:
      return false;
    case MatmulPath::kInt8Panel:
    case MatmulPath::kBf16Tiles:
    case MatmulPath::kBf16Rows:
      return true;
  }
  return false;
}

/// What a product costs: bytes of weights, read for up to kRowsPerRead rows.
uint64_t output_cost(const MatmulTask& task) {
  return task.w.row_bytes * std::max<uint64_t>(1, task.n_rows / kRowsPerRead);
}

/// Output rows of all tasks, one task after the other, cut into units. Results do not depend on
/// how.
struct Run {
  const MatmulConfig& config;
  std::span<const MatmulTask> tasks;
  uint64_t unit_cost = 0;
  uint64_t most = 1;  // units that a thread takes at once

  MatmulPath path_of(const MatmulTask& t) const {
    return choose_path(config, t.w.type, t.n_rows, t.force_f32);
  }
  uint64_t unit_outputs(const MatmulTask& t) const {
    const uint64_t whole = is_panel(path_of(t)) ? kPanelUnit : kRowUnit;
    return std::max(whole, unit_cost / std::max<uint64_t>(1, output_cost(t)) / whole * whole);
  }
  uint64_t n_units(const MatmulTask& t) const {
    return t.n_rows == 0 ? 0 : div_up(t.w.n_out, unit_outputs(t));
  }
  /// Chooses unit_cost and most; how many units there are.
  uint64_t cut(uint64_t n_threads);
  /// Units [first, first + n). The same thread most likely takes those up to `end` then.
  void run_units(uint64_t first, uint64_t n, uint64_t end, std::byte* scratch) const;
  void run_outputs(const MatmulTask& t, uint64_t first, uint64_t n, uint64_t n_behind,
                   std::byte* scratch) const;
};

uint64_t Run::cut(uint64_t n_threads) {
  uint64_t cost = 0;
  bool panels = false;
  for (const MatmulTask& t : tasks) {
    if (t.n_rows == 0) continue;
    cost += output_cost(t) * t.w.n_out;
    panels = panels || is_panel(path_of(t));
  }
  if (panels) {
    unit_cost = std::max(cost / (n_threads * kChunksPerThread), kMinChunkBytes);
  } else {
    unit_cost = std::clamp(cost / (n_threads * kUnitsPerThread), kMinUnitBytes, kMaxUnitBytes);
    most = kMaxTakeBytes / unit_cost;
  }
  uint64_t n = 0;
  for (const MatmulTask& t : tasks) n += n_units(t);
  return n;
}

void Run::run_units(uint64_t first, uint64_t n, uint64_t end, std::byte* scratch) const {
  for (const MatmulTask& t : tasks) {
    const uint64_t here = n_units(t);
    if (first < here) {
      const uint64_t step = unit_outputs(t), row = first * step, part = std::min(n, here - first);
      const uint64_t row_end = std::min((first + part) * step, t.w.n_out);
      const uint64_t after = std::min(std::max(end, first + part) * step, t.w.n_out);
      run_outputs(t, row, row_end - row, after - row_end, scratch);
      n -= part;
      if (n == 0) return;
      first += part;
    }
    first -= here;
    end = end < here ? 0 : end - here;
  }
}

void Run::run_outputs(const MatmulTask& t, uint64_t first, uint64_t n, uint64_t n_behind,
                      std::byte* scratch) const {
  const MatmulPath path = path_of(t);
  const MatmulInput& in = *t.in;
  const Prepared prepared = prepared_layout(config, in.n_in, in.n_rows);
  MatmulJob job;
  job.type = t.w.type;
  job.w = t.w.data + first * t.w.row_bytes;
  job.row_bytes = t.w.row_bytes;
  job.n_in = t.w.n_in;
  job.n_out = n;
  job.n_behind = n_behind;
  job.ids = t.row_ids;
  job.n_rows = t.n_rows;
  job.y = t.y + first;
  job.y_stride = t.y_stride;
  job.scratch = scratch;
  job.ask_once = processor().asks_once;
  if (path == MatmulPath::kInt8Dot || path == MatmulPath::kInt8Panel) {
    job.x = in.prepared;
    job.x_stride = prepared.int8_row_bytes;
  } else {
    job.x = reinterpret_cast<const std::byte*>(in.x);
    job.x_stride = in.stride * sizeof(float);
    job.tiles = in.prepared + prepared.tiles_at;
  }
  const MatmulJobFn fn = kernels_of(config).job(path, t.w.type);
  assert(fn != nullptr && t.w.n_in == in.n_in);
  fn(job);
}

}  // namespace

uint64_t Matmul::prepared_bytes(const MatmulConfig& config, uint64_t n_in, uint32_t n_rows) {
  return prepared_layout(config, n_in, n_rows).bytes;
}

uint64_t Matmul::scratch_bytes(const MatmulConfig& config, uint32_t n_threads, uint64_t max_in,
                               uint32_t max_rows) {
  const MatmulKernels& kernels = kernels_of(config);
  if (config.exact || kernels.quantize_row == nullptr) return 0;
  uint64_t bytes =
      round_up(max_in, kInt8RowUnit) * std::min<uint64_t>(max_rows, kernels.dot_scratch_rows);
  if (config.deterministic) return n_threads * bytes;
  if (max_rows >= kMinPanelRows)
    bytes = std::max(bytes, round_up(max_in, kInt8RowUnit) * kInt8PanelBytes);
  if (kernels.pack_tiles != nullptr && max_rows >= kMinTileRows)
    bytes = std::max(bytes, kernels.tile_scratch_bytes(max_in));
  if (kernels.bf16_scratch_bytes != nullptr && max_rows >= kMinTileRows)
    bytes = std::max(bytes, kernels.bf16_scratch_bytes(max_in));
  return n_threads * bytes;
}

Matmul::Matmul(const MatmulConfig& config, ThreadPool* pool, std::byte* scratch,
               uint64_t scratch_bytes)
    : config_(config),
      pool_(pool),
      scratch_(scratch),
      scratch_bytes_(scratch_bytes),
      shares_(new Share[pool->size()]) {}

void Matmul::prepare(const MatmulInput& in) const {
  const Prepared p = prepared_layout(config_, in.n_in, in.n_rows);
  const MatmulKernels& kernels = kernels_of(config_);
  if (p.bytes == 0) return;
  // Rows of a tile together, so that they are read from memory once.
  pool_->for_range(in.n_rows, kTileRows, [&](uint64_t begin, uint64_t end) {
    for (uint64_t r = begin; p.int8_row_bytes != 0 && r < end; ++r) {
      quantize(config_, p, in, r);
    }
    for (uint64_t r = begin; p.tile_row_bytes != 0 && r < end; r += kTileRows) {
      const float* x[kTileRows] = {};
      for (uint64_t i = 0; i < kTileRows && r + i < end; ++i) x[i] = in.x + (r + i) * in.stride;
      kernels.pack_tiles(x, in.n_in, in.prepared + p.tiles_at + r / kTileRows * p.tile_row_bytes);
    }
  });
}

void Matmul::run(std::span<const MatmulTask> tasks) const {
  const uint64_t n_threads = pool_->size();
  Run run{config_, tasks};
  const uint64_t n_units = run.cut(n_threads);
  const uint64_t n = std::min(n_threads, n_units);
  for (uint64_t i = 0; i < n; ++i) {
    shares_[i].next.store(n_units * i / n, std::memory_order_relaxed);
    shares_[i].end = n_units * (i + 1) / n;
  }
  const uint64_t scratch_each = scratch_bytes_ / n_threads / 64 * 64;
  pool_->run(static_cast<uint32_t>(n), [&](uint32_t worker) {
    std::byte* const scratch = scratch_ + worker * scratch_each;
    for (uint64_t i = 0; i < n; ++i) {
      Share& share = shares_[(worker + i) % n];
      uint64_t first = 0, count = 0;
      while (share.take(i == 0, run.most, &first, &count)) {
        run.run_units(first, count, i == 0 ? share.end : 0, scratch);
      }
    }
  });
}

/// The owner takes most of what is left, others a quarter: towards the end of a share parts are
/// small.
bool Matmul::Share::take(bool own, uint64_t most, uint64_t* first, uint64_t* n) {
  const uint64_t at = next.load(std::memory_order_relaxed);
  if (at >= end) return false;
  const uint64_t left = end - at;
  const uint64_t want = std::clamp<uint64_t>(own ? left - left / 4 : left / 4, 1, most);
  *first = next.fetch_add(want, std::memory_order_relaxed);
  if (*first >= end) return false;
  *n = std::min(want, end - *first);
  return true;
}

void Matmul::prepare_rows(const MatmulInput& in, uint32_t first, uint32_t n) const {
  const Prepared p = prepared_layout(config_, in.n_in, in.n_rows);
  if (p.int8_row_bytes == 0) return;
  for (uint64_t r = first; r < uint64_t{first} + n; ++r) quantize(config_, p, in, r);
}

void Matmul::run_outputs(const MatmulTask& task, uint64_t first, uint64_t n,
                         uint32_t worker) const {
  const Run run{config_, {&task, 1}};
  run.run_outputs(task, first, n, 0,
                  scratch_ + worker * (scratch_bytes_ / pool_->size() / 64 * 64));
}

void Matmul::prefetch(const MatmulTask& task, uint64_t first, uint64_t n, uint64_t max_bytes) {
  if (first >= task.w.n_out) return;
  const std::byte* from = task.w.data + first * task.w.row_bytes;
  const uint64_t bytes = std::min(max_bytes, std::min(n, task.w.n_out - first) * task.w.row_bytes);
  for (uint64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

const char* Matmul::path(GgmlType type, uint32_t n_rows, bool force_f32) const {
  switch (choose_path(config_, type, n_rows, force_f32)) {
    case MatmulPath::kF32:
      return n_rows <= 8 ? "f32-dot" : "f32-panel";
    case MatmulPath::kInt8Dot:
      return "int8-dot";
    case MatmulPath::kInt8Panel:
      return "int8-panel";
    case MatmulPath::kBf16Tiles:
      return kernels_of(config_).tiles_name;
    case MatmulPath::kBf16Rows:
      return kernels_of(config_).bf16_name;
  }
  return "";
}

}  // namespace sharpi::cpu
