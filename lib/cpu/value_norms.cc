// SPDX-License-Identifier: MIT
#include "cpu/value_norms.h"

#include <algorithm>
#include <atomic>

#include "base/checked.h"
#include "cpu/ops.h"
#include "cpu/ops_table.h"
#include "cpu/scratch_slots.h"
#include "kv/codec.h"
#include "kv/rotation.h"

namespace sharpi::cpu {
namespace {

// Rows of one work item, whose values lie side by side in tiles.
constexpr uint32_t kNormTiles = 8, kNormRows = kNormTiles * kTileSlots;

/// One thread's scratch.
struct NormDesk {
  float* row;      // [max_dim] one decoded row
  float* stored;   // [kNormTiles][max_dim][kTileSlots]
  float* mapped;   // the same of values that a map makes
  float* weights;  // [kTileTerms] expanded rows, of all heads
  float* sums;     // [kNormRows]
};

uint64_t norm_desk_floats(uint32_t max_heads, uint32_t max_dim) {
  return uint64_t{max_dim} * (1 + 2 * kNormRows + kTileTerms * uint64_t{max_heads}) + kNormRows;
}

NormDesk norm_desk_at(float* at, uint32_t max_heads, uint32_t max_dim) {
  const uint64_t tiles = uint64_t{max_dim} * kNormRows;
  NormDesk d{};
  d.sums = at;
  d.stored = at + kNormRows;
  d.mapped = d.stored + tiles;
  d.weights = d.mapped + tiles;
  d.row = d.weights + uint64_t{kTileTerms} * max_heads * max_dim;
  return d;
}

/// Some rows of a matrix, kTileTerms at a time, each from a column on: as f32.
class ExpandedRows {
 public:
  /// Elements [first, first + n) of rows that have n_in in all.
  ExpandedRows(GgmlType type, uint64_t n_in, uint64_t first, uint64_t n, float* to)
      : type_(type), to_(to) {
    const uint64_t block = ggml_traits(type).block_elements;
    const uint64_t from = first / block * block;
    stride_ = std::min(n_in, round_up(first + n, block)) - from;
    skip_bytes_ = ggml_row_bytes(type, from);
    skip_ = first - from;
  }
  /// Of rows `row` to row + kTileTerms of n_rows; null-valued rows stand for those behind the end.
  void expand(const std::byte* data, uint64_t row_bytes, uint64_t row, uint64_t n_rows) {
    for (uint32_t t = 0; t < kTileTerms; ++t) {
      float* to = to_ + t * stride_;
      if (row + t < n_rows) {
        dequantize_row(type_, data + (row + t) * row_bytes + skip_bytes_, to, stride_);
      } else {
        std::fill(to, to + stride_, 0.0f);
      }
    }
  }
  /// The part from element `at` of what was asked for, of every row.
  void point(uint64_t at, const float** q) const {
    for (uint32_t t = 0; t < kTileTerms; ++t) q[t] = to_ + t * stride_ + skip_ + at;
  }

 private:
  GgmlType type_;
  float* to_;
  uint64_t stride_ = 0, skip_bytes_ = 0, skip_ = 0;
};

/// Values of n rows of a KV head from `first` on, side by side: columns past the last are zero.
Status decode_norm_rows(const ValueNormTask& t, const KernelSet& kernels, uint32_t kv,
                        uint32_t first, uint32_t n, const NormDesk& desk) {
  const uint32_t d = t.kv.head_dim, rotation = kv_rotation(t.kv.v_dtype, d);
  const uint64_t row = uint64_t{t.kv.n_heads} * d;
  std::fill(desk.stored, desk.stored + uint64_t{div_up(n, kTileSlots)} * kTileSlots * d, 0.0f);
  for (uint32_t s = 0; s < n; ++s) {
    SHARPI_TRY(
        kv_decode_row(t.kv.v_dtype, t.kv.v_row(first + s), row, uint64_t{kv} * d, d, desk.row));
    unrotate(kernels, desk.row, d, rotation);
    float* column = desk.stored + uint64_t{s / kTileSlots} * d * kTileSlots + s % kTileSlots;
    for (uint32_t e = 0; e < d; ++e) column[uint64_t{e} * kTileSlots] = desk.row[e];
  }
  return Status::ok();
}

/// Values of one query head of n_tiles tiles: [tile][value_dim][kTileSlots].
void map_norm_values(const ValueNormTask& t, const KernelSet& kernels, uint64_t head,
                     uint32_t n_tiles, const NormDesk& desk) {
  const ValueNormTask::Map& m = t.map;
  const uint64_t row_bytes = ggml_row_bytes(m.type, m.n_in);
  ExpandedRows rows(m.type, m.n_in, 0, m.n_in, desk.weights);
  const float* q[kTileTerms];
  float dots[kTileTerms * kTileSlots];
  for (uint64_t o = 0; o < m.n_out; o += kTileTerms) {
    rows.expand(m.data + head * m.n_out * row_bytes, row_bytes, o, m.n_out);
    rows.point(0, q);
    const uint64_t n = std::min<uint64_t>(kTileTerms, m.n_out - o);
    for (uint32_t i = 0; i < n_tiles; ++i) {
      const float* from = desk.stored + (uint64_t{i} * t.kv.head_dim + m.first) * kTileSlots;
      kernels.ops.tile_dots(q, from, m.n_in, 1.0f, dots);
      std::copy_n(dots, n * kTileSlots, desk.mapped + (i * m.n_out + o) * kTileSlots);
    }
  }
}

/// Adds |w . v| over all rows of W_o, for query heads [head, head + n_heads), which read the same
/// values, to the sums of n_tiles tiles.
void add_norms(const ValueNormTask& t, const KernelSet& kernels, uint64_t head, uint32_t n_heads,
               const float* values, uint32_t n_tiles, const NormDesk& desk) {
  const uint64_t d = t.value_dim();
  ExpandedRows rows(t.o_type, t.n_heads * d, head * d, n_heads * d, desk.weights);
  const float* q[kTileTerms];
  for (uint64_t o = 0; o < t.n_outputs; o += kTileTerms) {
    rows.expand(t.o_data, t.o_row_bytes, o, t.n_outputs);
    for (uint32_t h = 0; h < n_heads; ++h) {
      rows.point(h * d, q);
      for (uint32_t i = 0; i < n_tiles; ++i)
        kernels.ops.tile_magnitudes(q, values + i * d * kTileSlots, d, desk.sums + i * kTileSlots);
    }
  }
}

Status norms_of_item(const ValueNormTask& t, const KernelSet& kernels, uint32_t span, uint32_t kv,
                     const NormDesk& desk) {
  const uint32_t first = span * kNormRows, n = std::min(t.n_slots - first, kNormRows);
  const auto n_tiles = static_cast<uint32_t>(div_up(n, kTileSlots));
  std::fill(desk.sums, desk.sums + kNormRows, 0.0f);
  SHARPI_TRY(decode_norm_rows(t, kernels, kv, first, n, desk));
  const uint64_t head = (uint64_t{t.first_kv} + kv) * t.group;
  if (t.map.data == nullptr) add_norms(t, kernels, head, t.group, desk.stored, n_tiles, desk);
  for (uint32_t h = 0; t.map.data != nullptr && h < t.group; ++h) {
    map_norm_values(t, kernels, head + h, n_tiles, desk);
    add_norms(t, kernels, head + h, 1, desk.mapped, n_tiles, desk);
  }
  float* norms = t.norms + uint64_t{kv} * t.n_slots + first;
  for (uint32_t s = 0; s < n; ++s) norms[s] = desk.sums[s] / static_cast<float>(t.group);
  return Status::ok();
}

}  // namespace

uint64_t value_norm_scratch_bytes(uint32_t n_threads, uint32_t max_heads, uint32_t max_dim) {
  return n_threads * norm_desk_floats(max_heads, max_dim) * sizeof(float);
}

Status value_norms(ThreadPool& pool, const KernelSet& kernels, const ValueNormTask& task,
                   std::byte* scratch, uint64_t scratch_bytes) {
  const auto dim = static_cast<uint32_t>(std::max<uint64_t>(task.kv.head_dim, task.value_dim()));
  if (scratch_bytes < value_norm_scratch_bytes(pool.size(), task.n_heads, dim)) {
    return Status::error(Code::kInternal, "the scratch of value norms, %llu bytes, is too small",
                         static_cast<unsigned long long>(scratch_bytes));
  }
  ScratchSlots slots(pool.size());
  const auto n_spans = static_cast<uint32_t>(div_up(task.n_slots, kNormRows));
  std::atomic<bool> failed{false};
  pool.run(n_spans * task.kv.n_heads, [&](uint32_t item) {
    const uint32_t slot = slots.take();
    float* at = reinterpret_cast<float*>(scratch) + slot * norm_desk_floats(task.n_heads, dim);
    const uint32_t span = item / task.kv.n_heads, kv = item % task.kv.n_heads;
    if (!norms_of_item(task, kernels, span, kv, norm_desk_at(at, task.n_heads, dim)).is_ok())
      failed.store(true, std::memory_order_relaxed);
    slots.give(slot);
  });
  return failed.load() ? Status::error(Code::kInternal, "value norms met an unknown KV codec")
                       : Status::ok();
}

}  // namespace sharpi::cpu
