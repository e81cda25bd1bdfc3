// SPDX-License-Identifier: MIT
#include "cpu/replay.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "base/limits.h"
#include "cpu/carver.h"
#include "cpu/ops.h"
#include "cpu/ops_table.h"
#include "cpu/scratch_slots.h"
#include "kv/codec.h"
#include "kv/rotation.h"
#include "tier/rope_tables.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t kBlockQueries = 64;  // of a work item
constexpr uint32_t kBlocks = kReplayChunk / kBlockQueries;
constexpr uint32_t kTiles = (kReplayChunk + kReplaySinks + kTileSlots - 1) / kTileSlots;

/// Scratch of one thread.
struct Desk {
  float* row;      // [head_dim], decoded
  float* columns;  // [kTiles][head_dim][kTileSlots] rows that are seen, side by side
  float* turned;   // [kTileTerms][head_dim]
  float* weights;  // [kTiles][kTileTerms][kTileSlots] of turned queries
  float* own;      // [kTileTerms][kTileSlots] of the same queries unturned
};

uint64_t carve(std::byte* base, uint32_t d, Desk* out) {
  Carver c(base);
  out->row = c.take<float>(d);
  out->columns = c.take<float>(uint64_t{kTiles} * d * kTileSlots);
  out->turned = c.take<float>(uint64_t{kTileTerms} * d);
  out->weights = c.take<float>(uint64_t{kTiles} * kTileTerms * kTileSlots);
  out->own = c.take<float>(uint64_t{kTileTerms} * kTileSlots);
  return c.used();
}

uint32_t chunks_of(uint64_t first_position, uint32_t n_rows) {
  return static_cast<uint32_t>((first_position + n_rows - 1) / kReplayChunk -
                               first_position / kReplayChunk + 1);
}

/// Slots of one chunk: seen from `low` on, scored (and asked) from `own` on.
struct Chunk {
  uint32_t low, own, end, n_sinks;
};

Chunk chunk_at(const ReplayTask& t, uint32_t index) {
  const uint64_t begin = (t.first_position / kReplayChunk + index) * kReplayChunk;
  const int64_t low = int64_t{t.first_slot} + static_cast<int64_t>(begin - t.first_position);
  Chunk c{};
  c.low = static_cast<uint32_t>(std::max<int64_t>(low, t.tail_slot));
  c.own = std::max(c.low, t.first_slot);
  c.end = static_cast<uint32_t>(
      std::min<int64_t>(low + kReplayChunk, int64_t{t.first_slot} + t.n_rows));
  c.n_sinks = std::min(kReplaySinks, c.low);
  return c;
}

/// Four terms, each a query and a query head, that are computed together.
struct Terms {
  const float* q[kTileTerms];
  uint32_t slot[kTileTerms];
  uint32_t n = 0;
};

class Item {
 public:
  Item(const ReplayTask& t, const KernelSet& kernels, const Chunk& c, uint32_t kv, const Desk& desk)
      : t_(t), kernels_(kernels), c_(c), kv_(kv), d_(t.kv.head_dim), desk_(desk) {}

  /// Raises top[slot - own] by the queries of slots [first, last).
  Status run(uint32_t first, uint32_t last, float* top) {
    SHARPI_TRY(decode());
    const uint32_t group = t_.n_heads / t_.kv.n_heads;
    Terms terms;
    for (uint32_t slot = first; slot < last; ++slot) {
      if ((t_.first_position + (slot - t_.first_slot)) % t_.every != 0) continue;
      for (uint32_t h = 0; h < group; ++h) {
        terms.q[terms.n] =
            t_.q + (slot - t_.first_slot) * t_.q_stride + (uint64_t{kv_} * group + h) * d_;
        terms.slot[terms.n++] = slot;
        if (terms.n == kTileTerms) ask(&terms, top);
      }
    }
    if (terms.n != 0) ask(&terms, top);
    return Status::ok();
  }

 private:
  uint32_t n_seen() const { return c_.n_sinks + (c_.end - c_.low); }
  const float* tile(uint32_t i) const { return desk_.columns + uint64_t{i} * d_ * kTileSlots; }

  Status decode() const {
    const uint64_t row = uint64_t{t_.kv.n_heads} * d_;
    const uint32_t rotation = kv_rotation(t_.kv.k_dtype, d_), n = n_seen();
    std::memset(desk_.columns, 0, uint64_t{kTiles} * d_ * kTileSlots * sizeof(float));
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t slot = i < c_.n_sinks ? i : c_.low + (i - c_.n_sinks);
      SHARPI_TRY(
          kv_decode_row(t_.kv.k_dtype, t_.kv.k_row(slot), row, uint64_t{kv_} * d_, d_, desk_.row));
      unrotate(kernels_, desk_.row, d_, rotation);
      float* column = desk_.columns + uint64_t{i / kTileSlots} * d_ * kTileSlots + i % kTileSlots;
      for (uint32_t e = 0; e < d_; ++e) column[uint64_t{e} * kTileSlots] = desk_.row[e];
    }
    return Status::ok();
  }

  void ask(Terms* terms, float* top) const {
    for (uint32_t i = terms->n; i < kTileTerms; ++i) terms->q[i] = terms->q[terms->n - 1];
    float high[kTileTerms][kTiles], sum[kTileTerms], most[kTileTerms];
    std::fill(sum, sum + kTileTerms, 0.0f);
    std::fill(most, most + kTileTerms, -std::numeric_limits<float>::infinity());
    weigh(*terms, high, sum, most);
    weigh_own(*terms, sum, most);
    for (uint32_t i = 0; i < terms->n; ++i) {
      for (uint32_t t = 0; t * kTileSlots < n_seen(); ++t) {
        const float factor = std::exp(high[i][t] - most[i]) / sum[i];
        raise(desk_.weights + (t * kTileTerms + i) * kTileSlots, t * kTileSlots, factor, top);
      }
    }
    terms->n = 0;
  }

  /// The softmax terms of the turned queries, each tile's below its own maximum `high`.
  void weigh(const Terms& terms, float (*high)[kTiles], float* sum, float* most) const {
    const float* q[kTileTerms];
    for (uint32_t i = 0; i < kTileTerms; ++i) {
      float* to = desk_.turned + uint64_t{i} * d_;
      std::memcpy(to, terms.q[i], d_ * sizeof(float));
      if (t_.cos != nullptr)
        rope_apply(kernels_, t_.rope->pairs, to, 1, d_, t_.rope->n_rot, t_.cos, t_.sin);
      q[i] = to;
    }
    const uint32_t n = n_seen();
    for (uint32_t t = 0; t * kTileSlots < n; ++t) {
      float* out = desk_.weights + uint64_t{t} * kTileTerms * kTileSlots;
      kernels_.ops.tile_dots(q, tile(t), d_, t_.scale, out);
      for (uint32_t i = 0; i < terms.n; ++i) {
        high[i][t] = -std::numeric_limits<float>::infinity();
        const float part = kernels_.ops.exp_sum(
            out + i * kTileSlots, std::min(kTileSlots, n - t * kTileSlots), &high[i][t]);
        merge_softmax(part, high[i][t], &sum[i], &most[i]);
      }
    }
  }

  /// What the queries see without being turned: the chunk's rows up to their own.
  void weigh_own(const Terms& terms, float* sum, float* most) const {
    const uint32_t last = *std::max_element(terms.slot, terms.slot + terms.n);
    const uint32_t n = c_.n_sinks + (last - c_.low) + 1;
    for (uint32_t t = 0; t * kTileSlots < n; ++t) {
      kernels_.ops.tile_dots(terms.q, tile(t), d_, t_.scale, desk_.own);
      const uint32_t skip = t == 0 ? c_.n_sinks : 0;
      for (uint32_t i = 0; i < terms.n; ++i) {
        const uint32_t seen = c_.n_sinks + (terms.slot[i] - c_.low) + 1;
        if (seen <= t * kTileSlots + skip) continue;
        const uint32_t count = std::min(seen - t * kTileSlots, kTileSlots) - skip;
        float high = -std::numeric_limits<float>::infinity();
        const float part = kernels_.ops.exp_sum(desk_.own + i * kTileSlots + skip, count, &high);
        merge_softmax(part, high, &sum[i], &most[i]);
      }
    }
  }

  /// Seen rows [first, first + kTileSlots) weigh factor * x.
  void raise(const float* x, uint32_t first, float factor, float* top) const {
    const uint32_t skipped = c_.n_sinks + (c_.own - c_.low);  // seen rows that are not scored
    const uint32_t begin = std::max(first, skipped), end = std::min(first + kTileSlots, n_seen());
    for (uint32_t s = begin; s < end; ++s) {
      float& at = top[s - skipped];
      at = std::max(at, factor * x[s - first]);
    }
  }

  const ReplayTask& t_;
  const KernelSet& kernels_;
  const Chunk c_;
  const uint32_t kv_, d_;
  const Desk desk_;
};

/// What the blocks of a chunk's queries have found goes to the scores.
void merge(const ReplayTask& t, const Chunk& c, uint32_t kv, const float* parts) {
  float* to = t.scores + kv * t.stride + c.own;
  for (uint32_t i = 0; i < c.end - c.own; ++i) {
    float most = t.add ? to[i] : 0.0f;
    for (uint32_t b = 0; b < kBlocks; ++b) most = std::max(most, parts[b * kReplayChunk + i]);
    to[i] = most;
  }
}

}  // namespace

ReplayTurns::ReplayTurns(const ModelSpec& spec) {
  for (const RopeTable& t : make_rope_tables(spec, &table_of_layer_)) {
    const uint32_t half = t.spec.n_rot / 2;
    cos_.emplace_back(half);
    sin_.emplace_back(half);
    rope_angles(t.inv_freq.data(), half, kReplayDistance, 1.0f, cos_.back().data(),
                sin_.back().data());
  }
}

uint64_t replay_scratch_bytes(uint32_t n_threads, uint32_t max_rows, uint32_t max_kv_heads,
                              uint32_t max_head_dim) {
  Desk desk{};
  const uint64_t chunks = max_rows / kReplayChunk + 2;
  return n_threads * carve(nullptr, max_head_dim, &desk) +
         chunks * max_kv_heads * kBlocks * kReplayChunk * sizeof(float);
}

Status score_replay(ThreadPool& pool, const KernelSet& kernels, const ReplayTask& task,
                    std::byte* scratch, uint64_t scratch_bytes) {
  if (task.n_rows == 0) return Status::ok();
  const uint32_t n_kv = task.kv.n_heads, d = task.kv.head_dim;
  if (scratch_bytes < replay_scratch_bytes(pool.size(), task.n_rows, n_kv, d))
    return Status::error(Code::kInternal, "the scratch of replay scores is too small");
  Desk desk{};
  const uint64_t each = carve(nullptr, d, &desk);
  auto* parts = reinterpret_cast<float*>(scratch + pool.size() * each);
  const uint32_t n_chunks = chunks_of(task.first_position, task.n_rows);
  std::memset(parts, 0, uint64_t{n_chunks} * n_kv * kBlocks * kReplayChunk * sizeof(float));
  std::atomic<bool> failed{false};
  ScratchSlots slots(pool.size());
  pool.run(n_chunks * n_kv * kBlocks, [&](uint32_t item) {
    const uint32_t kv = item / kBlocks % n_kv, block = item % kBlocks;
    const Chunk c = chunk_at(task, item / kBlocks / n_kv);
    const uint32_t first = c.own + block * kBlockQueries;
    if (first >= c.end) return;
    const uint32_t mine = slots.take();
    Desk own{};
    carve(scratch + mine * each, d, &own);
    Item one(task, kernels, c, kv, own);
    const Status done = one.run(first, std::min(first + kBlockQueries, c.end),
                                parts + uint64_t{item} * kReplayChunk);
    if (!done.is_ok()) failed.store(true, std::memory_order_relaxed);
    slots.give(mine);
  });
  if (failed.load()) return Status::error(Code::kInternal, "replay scores met an unknown KV codec");
  for (uint32_t i = 0; i < n_chunks * n_kv; ++i)
    merge(task, chunk_at(task, i / n_kv), i % n_kv, parts + uint64_t{i} * kBlocks * kReplayChunk);
  return Status::ok();
}

}  // namespace sharpi::cpu
