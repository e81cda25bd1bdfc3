// SPDX-License-Identifier: MIT
#include "cpu/score.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "cpu/ops.h"
#include "cpu/ops_table.h"
#include "cpu/scratch_slots.h"
#include "kv/rotation.h"

namespace sharpi::cpu {
namespace {

// Rows of one work item. Sums over queries run inside an item, normalisers merge item by item in
// ascending order, so the result does not depend on who ran what.
constexpr uint32_t kSpanSlots = 512;

/// One thread's decoded rows and logits.
struct Tile {
  float* rows;     // [kTileSlots][head_dim]
  float* columns;  // [head_dim][kTileSlots]
  float* logits;   // [kTileTerms][kTileSlots]
};

uint64_t tile_floats(uint32_t head_dim) {
  return uint64_t{kTileSlots} * (2 * head_dim + kTileTerms);
}

/// Hands each work item a thread's scratch: items that run at once never share one.
class TilePool {
 public:
  TilePool(std::byte* base, uint32_t n, uint32_t head_dim)
      : base_(reinterpret_cast<float*>(base)), dim_(head_dim), slots_(n) {}
  Tile take() {
    float* at = base_ + slots_.take() * tile_floats(dim_);
    return {at, at + uint64_t{kTileSlots} * dim_, at + uint64_t{kTileSlots} * 2 * dim_};
  }
  void give(const Tile& t) {
    slots_.give(static_cast<uint32_t>(static_cast<uint64_t>(t.rows - base_) / tile_floats(dim_)));
  }

 private:
  float* base_;
  uint32_t dim_;
  ScratchSlots slots_;
};

struct Job {
  const ScoreTask& t;
  uint32_t group, n_terms, n_spans;
  float* part_max;  // [n_spans][n_kv][n_terms], then merged into span 0
  float* part_sum;
  const OpsTable& ops;
  uint32_t rotation;  // of stored keys; queries come as they are
  float* pmax(uint32_t span, uint32_t kv) const {
    return part_max + (uint64_t{span} * t.kv.n_heads + kv) * n_terms;
  }
  float* psum(uint32_t span, uint32_t kv) const {
    return part_sum + (uint64_t{span} * t.kv.n_heads + kv) * n_terms;
  }
};

/// The tile's rows, side by side: columns past n are zero.
Status decode_tile(const Job& j, uint32_t kv, uint32_t first, uint32_t n, const Tile& tile) {
  const ScoreTask& t = j.t;
  const uint64_t row = uint64_t{t.kv.n_heads} * t.kv.head_dim;
  const uint32_t d = t.kv.head_dim;
  for (uint32_t i = 0; i < n; ++i) {
    SHARPI_TRY(kv_decode_row(t.kv.k_dtype, t.kv.k_row(first + i), row, uint64_t{kv} * d, d,
                             tile.rows + uint64_t{i} * d));
    if (j.rotation != 0) j.ops.unrotate(tile.rows + uint64_t{i} * d, d, j.rotation);
  }
  for (uint32_t e = 0; e < d; ++e) {
    float* column = tile.columns + uint64_t{e} * kTileSlots;
    for (uint32_t i = 0; i < n; ++i) column[i] = tile.rows[uint64_t{i} * d + e];
    std::fill(column + n, column + kTileSlots, 0.0f);
  }
  return Status::ok();
}

/// Rows of the tile that a term (query head of the group, query) sees.
uint32_t term_count(const Job& j, uint32_t kv, uint32_t term, uint32_t first, uint32_t n) {
  const uint32_t query = term % j.t.n_queries;
  const uint32_t visible = j.t.visible[uint64_t{kv} * j.t.n_queries + query];
  return visible > first ? std::min(visible - first, n) : 0;
}

/// Calls body(term, rows seen, logits) for every term that sees rows of the tile.
template <class Body>
void each_term(const Job& j, uint32_t kv, uint32_t first, uint32_t n, const Tile& tile,
               Body&& body) {
  const uint32_t d = j.t.kv.head_dim;
  for (uint32_t term = 0; term < j.n_terms; term += kTileTerms) {
    const float* q[kTileTerms];
    for (uint32_t i = 0; i < kTileTerms; ++i) {
      const uint32_t at = std::min(term + i, j.n_terms - 1);
      const uint32_t head = kv * j.group + at / j.t.n_queries;
      q[i] = j.t.q + at % j.t.n_queries * j.t.q_stride + uint64_t{head} * d;
    }
    j.ops.tile_dots(q, tile.columns, d, j.t.scale, tile.logits);
    for (uint32_t i = 0; i < kTileTerms && term + i < j.n_terms; ++i) {
      const uint32_t count = term_count(j, kv, term + i, first, n);
      if (count != 0) body(term + i, count, tile.logits + i * kTileSlots);
    }
  }
}

Status sweep_normalisers(const Job& j, uint32_t span, uint32_t kv, const Tile& tile) {
  float* m = j.pmax(span, kv);
  float* l = j.psum(span, kv);
  std::fill(m, m + j.n_terms, -std::numeric_limits<float>::infinity());
  std::fill(l, l + j.n_terms, 0.0f);
  const uint32_t end = std::min(j.t.n_slots, (span + 1) * kSpanSlots);
  for (uint32_t first = span * kSpanSlots; first < end; first += kTileSlots) {
    const uint32_t n = std::min(kTileSlots, end - first);
    SHARPI_TRY(decode_tile(j, kv, first, n, tile));
    each_term(j, kv, first, n, tile, [&](uint32_t term, uint32_t count, float* logits) {
      float high = m[term];
      const float sum = j.ops.exp_sum(logits, count, &high);
      l[term] = l[term] * std::exp(m[term] - high) + sum;
      m[term] = high;
    });
  }
  return Status::ok();
}

void merge_normalisers(const Job& j, uint32_t kv) {
  float* m0 = j.pmax(0, kv);
  float* l0 = j.psum(0, kv);
  for (uint32_t span = 1; span < j.n_spans; ++span) {
    const float* m = j.pmax(span, kv);
    const float* l = j.psum(span, kv);
    for (uint32_t i = 0; i < j.n_terms; ++i) {
      if (l[i] == 0.0f) continue;
      merge_softmax(l[i], m[i], &l0[i], &m0[i]);
    }
  }
  if (j.t.sinks == nullptr) return;
  for (uint32_t i = 0; i < j.n_terms; ++i) {
    const float sink = j.t.sinks[uint64_t{kv} * j.group + i / j.t.n_queries];
    merge_softmax(1.0f, sink, &l0[i], &m0[i]);
  }
}

Status sweep_masses(const Job& j, uint32_t span, uint32_t kv, const Tile& tile) {
  const float* m = j.pmax(0, kv);
  const float* l = j.psum(0, kv);
  float* sum = j.t.sum + uint64_t{kv} * j.t.n_slots;
  float* top = j.t.max + uint64_t{kv} * j.t.n_slots;
  const uint32_t end = std::min(j.t.n_slots, (span + 1) * kSpanSlots);
  for (uint32_t first = span * kSpanSlots; first < end; first += kTileSlots) {
    const uint32_t n = std::min(kTileSlots, end - first);
    SHARPI_TRY(decode_tile(j, kv, first, n, tile));
    each_term(j, kv, first, n, tile, [&](uint32_t term, uint32_t count, const float* logits) {
      const float scale = l[term] == 0.0f ? 0.0f : 1.0f / l[term];
      const float weight = j.t.weight == nullptr ? 1.0f : j.t.weight[term % j.t.n_queries];
      j.ops.add_mass(logits, count, m[term], scale, weight, sum + first, top + first);
    });
  }
  return Status::ok();
}

/// Runs sweep(span, kv head, tile) for all, any thread; the first failure is returned.
template <class F>
Status run_items(ThreadPool& pool, const Job& j, TilePool& tiles, F&& sweep) {
  std::atomic<bool> failed{false};
  pool.run(j.n_spans * j.t.kv.n_heads, [&](uint32_t item) {
    const Tile tile = tiles.take();
    if (!sweep(item / j.t.kv.n_heads, item % j.t.kv.n_heads, tile).is_ok()) {
      failed.store(true, std::memory_order_relaxed);
    }
    tiles.give(tile);
  });
  return failed.load() ? Status::error(Code::kInternal, "scoring met an unknown KV codec")
                       : Status::ok();
}

}  // namespace

uint64_t score_scratch_bytes(uint32_t n_threads, uint32_t max_queries, uint32_t max_heads,
                             uint32_t max_head_dim, uint32_t max_slots) {
  const uint64_t spans = div_up(max_slots, kSpanSlots);
  const uint64_t terms = uint64_t{max_heads} * max_queries;
  return (n_threads * tile_floats(max_head_dim) + 2 * spans * terms) * sizeof(float);
}

Status score_rows(ThreadPool& pool, const KernelSet& kernels, const ScoreTask& task,
                  std::byte* scratch, uint64_t scratch_bytes) {
  if (kv_codec(task.kv.k_dtype) == nullptr) {
    return Status::error(Code::kInternal, "scoring does not know KV codec %u",
                         static_cast<uint32_t>(task.kv.k_dtype));
  }
  if (task.n_slots == 0) return Status::ok();
  if (scratch_bytes < score_scratch_bytes(pool.size(), task.n_queries, task.n_heads,
                                          task.kv.head_dim, task.n_slots)) {
    return Status::error(Code::kInternal, "the scratch of scoring, %llu bytes, is too small",
                         static_cast<unsigned long long>(scratch_bytes));
  }
  const uint32_t group = task.n_heads / task.kv.n_heads;
  const uint32_t n_terms = group * task.n_queries;
  const auto n_spans = static_cast<uint32_t>(div_up(task.n_slots, kSpanSlots));
  auto* parts = reinterpret_cast<float*>(scratch) + pool.size() * tile_floats(task.kv.head_dim);
  const Job job{task,        group,
                n_terms,     n_spans,
                parts,       parts + uint64_t{n_spans} * task.kv.n_heads * n_terms,
                kernels.ops, kv_rotation(task.kv.k_dtype, task.kv.head_dim)};
  TilePool tiles(scratch, pool.size(), task.kv.head_dim);
  SHARPI_TRY(run_items(pool, job, tiles, [&](uint32_t span, uint32_t kv, const Tile& tile) {
    return sweep_normalisers(job, span, kv, tile);
  }));
  for (uint32_t kv = 0; kv < task.kv.n_heads; ++kv) merge_normalisers(job, kv);
  return run_items(pool, job, tiles, [&](uint32_t span, uint32_t kv, const Tile& tile) {
    return sweep_masses(job, span, kv, tile);
  });
}

}  // namespace sharpi::cpu
