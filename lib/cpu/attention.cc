// SPDX-License-Identifier: MIT
#include "cpu/attention.h"

#include <atomic>
#include <limits>

#include "base/checked.h"
#include "cpu/attention_keys.h"
#include "cpu/attention_select.h"
#include "cpu/carver.h"
#include "cpu/ops.h"
#include "kv/rotation.h"

namespace sharpi::cpu {
namespace {

// Calls of up to this many rows (decode, verification of drafts) spread spans over the threads;
// larger ones have enough row blocks.
constexpr uint32_t kSplitRows = 16;
// Rows whose span results are held at one time: four drafted tokens, or four sessions.
constexpr uint32_t kHeldRows = 4;
// Work items per thread that even out unequal spans and row blocks.
constexpr uint32_t kItemsPerThread = 4;
// Query heads of a KV head that stay together: fewer would read its rows for too little work.
constexpr uint32_t kLeastShare = 4;
// The same for spans: at 16K of context there are few of them, and the last thread is waited for.
constexpr uint32_t kSplitItemsPerThread = 16;
constexpr uint64_t kAlign = 64;

constexpr uint32_t min_u32(uint64_t a, uint64_t b) {
  return static_cast<uint32_t>(a < b ? a : b);
}
constexpr uint32_t max_u32(uint64_t a, uint64_t b) {
  return static_cast<uint32_t>(a > b ? a : b);
}

SoftmaxState take_state(Carver& c, uint64_t n, uint32_t padded) {
  return {c.take<float>(n), c.take<float>(n), c.take<float>(n * padded)};
}

/// One thread's memory.
struct Worker {
  std::byte *q, *work;
  SoftmaxState part, total;
  uint32_t *lo, *hi;
  const std::byte **k_rows, **v_rows;
  const float** vectors;
};

/// Blocks hold whole rows: at least one, whatever the size of the group.
uint32_t vector_cap(const AttentionTable& t, uint32_t heads) {
  return max_u32(t.max_vectors, heads);
}

Worker take_worker(Carver& c, const AttentionTable& t, uint32_t heads, uint32_t rows,
                   uint32_t padded) {
  const uint32_t n = vector_cap(t, heads);
  const uint64_t split_q = heads * t.q_bytes(min_u32(rows, kHeldRows), padded);
  const uint64_t block_q = t.q_bytes(n, padded);
  Worker w{};
  w.q = c.take<std::byte>(split_q > block_q ? split_q : block_q);
  w.work = c.take<std::byte>(t.work_bytes(n, padded));
  w.part = take_state(c, n, padded);
  w.total = take_state(c, n, padded);
  w.lo = c.take<uint32_t>(n);
  w.hi = c.take<uint32_t>(n);
  w.k_rows = c.take<const std::byte*>(kTileKeys);
  w.v_rows = c.take<const std::byte*>(kTileKeys);
  w.vectors = c.take<const float*>(n);
  return w;
}

/// Bytes of the span results of `rows` rows, and their arrival counters.
uint64_t held_bytes(uint64_t rows, uint32_t heads, uint32_t padded, uint64_t n_spans) {
  Carver c(nullptr);
  for (uint64_t i = 0; i < n_spans; ++i) take_state(c, rows * heads, padded);
  c.take<uint32_t>(heads);
  return c.used();
}

/// What all tasks of a call have in common. Where there is too little work for the threads, the
/// query heads of a KV head are in several shares, each of which is computed as if it had one.
struct Geometry {
  const AttentionTable* table = nullptr;
  KvDtype k_dtype = KvDtype::kF32, v_dtype = KvDtype::kF32;
  uint32_t n_kv = 0, group = 0, dim = 0, padded = 0;
  uint32_t shares = 1;  // n_kv counts them, group the query heads of one
  uint64_t row_elems = 0;
  const KernelSet* kernels = nullptr;
  uint32_t k_rotation = 0, v_rotation = 0;  // of stored rows; 0 = they are as they were
};

struct Block {
  const AttentionTask* task = nullptr;
  uint32_t row0 = 0, n_rows = 0;
};

uint64_t block_begin(const Block& b) {
  return keys_begin(*b.task, b.row0);
}
uint64_t block_end(const Block& b) {
  return keys_end(*b.task, b.row0 + b.n_rows - 1);
}
uint64_t first_span(const Block& b) {
  return block_begin(b) / kSpanKeys;
}
uint64_t n_spans_of(const Block& b) {
  return div_up(block_end(b), kSpanKeys) - first_span(b);
}

void clear(const SoftmaxState& s, uint64_t n, uint32_t padded) {
  for (uint64_t i = 0; i < n; ++i) s.m[i] = -std::numeric_limits<float>::infinity();
  for (uint64_t i = 0; i < n; ++i) s.l[i] = 0.0f;
  for (uint64_t i = 0; i < n * padded; ++i) s.o[i] = 0.0f;
}

/// What spans are merged into: nothing, or each head's sink, for the vectors of KV head kv.
void begin_total(const Geometry& g, const Block& b, uint32_t kv, const SoftmaxState& s) {
  const uint32_t n = b.n_rows * g.group;
  clear(s, n, g.padded);
  if (b.task->sinks == nullptr) return;
  for (uint32_t i = 0; i < n; ++i) {
    s.m[i] = b.task->sinks[uint64_t{kv} * g.group + i % g.group];
    s.l[i] = 1.0f;
  }
}

SoftmaxState at_vector(const SoftmaxState& s, uint64_t i, uint32_t padded) {
  return {s.m + i, s.l + i, s.o + i * padded};
}

uint64_t q_stride_bytes(const Geometry& g, const Block& b) {
  return g.table->q_bytes(b.n_rows * g.group, g.padded);
}

/// Queries of KV heads [kv0, kv1), one prepared set per head; vector r * group + j is query head
/// kv * group + j of row r.
void prepare_queries(const Geometry& g, const Block& b, const Worker& w, uint32_t kv0,
                     uint32_t kv1) {
  const AttentionTask& t = *b.task;
  const float* q = g.k_rotation != 0 ? t.o : t.q;
  const uint64_t stride = g.k_rotation != 0 ? t.o_stride : t.q_stride;
  for (uint32_t kv = kv0; kv < kv1; ++kv) {
    for (uint32_t i = 0; i < b.n_rows * g.group; ++i) {
      const uint32_t head = kv * g.group + i % g.group;
      w.vectors[i] = q + (b.row0 + i / g.group) * stride + uint64_t{head} * g.dim;
    }
    g.table->prepare_q(w.vectors, b.n_rows * g.group, g.dim, g.padded, t.scale,
                       w.q + (kv - kv0) * q_stride_bytes(g, b));
  }
}

/// Row pointers of a tile and what each vector sees of it, to job->k, v, lo and hi.
void map_tile(const Geometry& g, const Block& b, const Worker& w, uint64_t tile,
              AttentionTile* job) {
  const AttentionTask& t = *b.task;
  const uint64_t key0 = tile * kTileKeys, begin = block_begin(b), end = block_end(b);
  TileRows rows{};
  rows.begin = begin > key0 ? static_cast<uint32_t>(begin - key0) : 0;
  rows.end = min_u32(end - key0, kTileKeys);
  rows.row_elems = g.row_elems;
  rows.dim = g.dim;
  const bool one_view = reads_one_view(t);
  const std::byte *k = nullptr, *v = nullptr;  // a tile of slots is a block of the store
  if (one_view) k = t.kv.k_row(key0), v = t.kv.v_row(key0);
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    if (one_view) {
      w.k_rows[i] = k + uint64_t{i} * t.kv.k_row_bytes;
      w.v_rows[i] = v + uint64_t{i} * t.kv.v_row_bytes;
      continue;
    }
    uint64_t slot = 0;
    const KvView& view = source_of(t, key0 + i, &slot);
    w.k_rows[i] = view.k_row(slot);
    w.v_rows[i] = view.v_row(slot);
  }
  for (uint32_t i = 0; i < b.n_rows * g.group; ++i) {
    const uint64_t from = keys_begin(t, b.row0 + i / g.group);
    const uint64_t to = keys_end(t, b.row0 + i / g.group);
    w.lo[i] = from > key0 ? min_u32(from - key0, kTileKeys) : 0;
    w.hi[i] = to > key0 ? min_u32(to - key0, kTileKeys) : 0;
  }
  job->lo = w.lo;
  job->hi = w.hi;
  job->k = job->v = rows;
  job->k.rows = w.k_rows;
  job->v.rows = w.v_rows;
  job->k.dtype = g.k_dtype;
  job->v.dtype = g.v_dtype;
  if (one_view) {
    job->k.pitch = t.kv.k_row_bytes;
    job->v.pitch = t.kv.v_row_bytes;
  }
}

/// The share of the next tile's rows that the job of KV head kv asks for: heads of a row lie
/// together in memory but are used far apart.
void look_ahead(const Geometry& g, const Block& b, uint64_t tile, uint32_t kv, uint32_t kv0,
                uint32_t kv1, AttentionTile* job) {
  const AttentionTask& t = *b.task;
  const uint32_t share = kv - kv0, n_shares = kv1 - kv0;
  const uint64_t first = tile * kTileKeys + uint64_t{kTileKeys} * share / n_shares;
  uint64_t last = tile * kTileKeys + uint64_t{kTileKeys} * (share + 1) / n_shares;
  last = last < block_end(b) ? last : block_end(b);
  if (first < block_begin(b) || first >= last) return;
  uint64_t slot = 0;
  const KvView& view = source_of(t, first, &slot);
  const uint32_t n_rows = min_u32(last - first, kKvBlockSlots - slot % kKvBlockSlots);
  const auto part = [&](const std::byte* row, uint32_t row_bytes) {
    const uint32_t first_head = kv0 / g.shares, last_head = (kv1 - 1) / g.shares;
    const uint32_t head = row_bytes / view.n_heads;
    return Ahead{row + head * first_head, row_bytes, head * (last_head - first_head + 1), n_rows};
  };
  job->ahead_k = part(view.k_row(slot), view.k_row_bytes);
  job->ahead_v = part(view.v_row(slot), view.v_row_bytes);
}

/// Asks for all rows of the first tile of a span, which no tile before it does.
void fetch_tile(const Geometry& g, const Block& b, uint64_t tile, uint32_t kv0, uint32_t kv1) {
  constexpr uint32_t kLine = 64;
  for (uint32_t kv = kv0; kv < kv1; ++kv) {
    AttentionTile job{};
    look_ahead(g, b, tile, kv, kv0, kv1, &job);
    for (const Ahead& a : {job.ahead_k, job.ahead_v}) {
      for (uint32_t r = 0; r < a.n_rows; ++r) {
        for (uint32_t at = 0; at < a.bytes; at += kLine) {
          __builtin_prefetch(a.row + r * a.pitch + at, 0, 2);
        }
      }
    }
  }
}

/// Folds the span's keys into `state`, which holds the vectors of KV heads [kv0, kv1) one after the
/// other and is empty on entry. ahead = the rows come from memory rather than from a cache.
void run_span(const Geometry& g, const Block& b, const Worker& w, uint32_t kv0, uint32_t kv1,
              uint64_t span, bool ahead, const SoftmaxState& state) {
  constexpr uint64_t kTilesPerSpan = kSpanKeys / kTileKeys;
  const uint32_t n_vectors = b.n_rows * g.group;
  const uint64_t lowest = block_begin(b) / kTileKeys, end = div_up(block_end(b), kTileKeys);
  const uint64_t tile0 = span * kTilesPerSpan > lowest ? span * kTilesPerSpan : lowest;
  const uint64_t tile1 = (span + 1) * kTilesPerSpan < end ? (span + 1) * kTilesPerSpan : end;
  if (ahead && tile0 < tile1) fetch_tile(g, b, tile0, kv0, kv1);
  for (uint64_t tile = tile0; tile < tile1; ++tile) {
    AttentionTile job{};
    map_tile(g, b, w, tile, &job);
    job.n_vectors = n_vectors;
    job.padded = g.padded;
    job.work = w.work;
    for (uint32_t kv = kv0; kv < kv1; ++kv) {
      job.ahead_k = job.ahead_v = {};
      if (ahead && tile + 1 < tile1) look_ahead(g, b, tile + 1, kv, kv0, kv1, &job);
      job.q = w.q + (kv - kv0) * q_stride_bytes(g, b);
      job.k.first = job.v.first = uint64_t{kv / g.shares} * g.dim;
      job.state = at_vector(state, uint64_t{kv - kv0} * n_vectors, g.padded);
      g.table->add_tile(job);
    }
  }
}

void write_rows(const Geometry& g, const Block& b, uint32_t kv, const SoftmaxState& total) {
  const AttentionTask& t = *b.task;
  for (uint32_t i = 0; i < b.n_rows * g.group; ++i) {
    const uint64_t head = uint64_t{kv} * g.group + i % g.group;
    float* out = t.o + (b.row0 + i / g.group) * t.o_stride + head * g.dim;
    g.table->finish(total.o + uint64_t{i} * g.padded, total.l[i], g.dim, out);
    unrotate(*g.kernels, out, g.dim, g.v_rotation);
  }
}

/// All keys of one KV head for a block of rows, span after span.
void run_block(const Geometry& g, const Block& b, const Worker& w, uint32_t kv) {
  const uint32_t n = b.n_rows * g.group;
  prepare_queries(g, b, w, kv, kv + 1);
  begin_total(g, b, kv, w.total);
  for (uint64_t s = first_span(b); s < first_span(b) + n_spans_of(b); ++s) {
    clear(w.part, n, g.padded);
    run_span(g, b, w, kv, kv + 1, s, g.table->blocks_ask, w.part);
    g.table->merge(w.total, w.part, n, g.padded);
  }
  write_rows(g, b, kv, w.total);
}

/// A block of a split call: its spans are independent items, the last one to arrive merges.
struct SplitBlock {
  Block block;
  std::byte* states = nullptr;  // one SoftmaxState per span, all heads
  uint32_t* arrived = nullptr;  // per range of KV heads
};

SoftmaxState held_state(const Geometry& g, const SplitBlock& s, uint64_t i_span) {
  const uint64_t n = uint64_t{s.block.n_rows} * g.group * g.n_kv;
  Carver size(nullptr);
  take_state(size, n, g.padded);
  Carver c(s.states + i_span * size.used());
  return take_state(c, n, g.padded);
}

void merge_spans(const Geometry& g, const SplitBlock& s, const Worker& w, uint32_t kv) {
  const uint32_t n = s.block.n_rows * g.group;
  begin_total(g, s.block, kv, w.total);
  for (uint64_t i = 0; i < n_spans_of(s.block); ++i) {
    g.table->merge(w.total, at_vector(held_state(g, s, i), uint64_t{kv} * n, g.padded), n,
                   g.padded);
  }
  write_rows(g, s.block, kv, w.total);
}

void run_split_item(const Geometry& g, const SplitBlock& s, const Worker& w, uint64_t i_span,
                    uint32_t i_range, uint32_t n_ranges) {
  const Block& b = s.block;
  const uint32_t kv0 = g.n_kv * i_range / n_ranges, kv1 = g.n_kv * (i_range + 1) / n_ranges;
  const uint32_t n = b.n_rows * g.group;
  const SoftmaxState state = at_vector(held_state(g, s, i_span), uint64_t{kv0} * n, g.padded);
  prepare_queries(g, b, w, kv0, kv1);
  clear(state, uint64_t{kv1 - kv0} * n, g.padded);
  run_span(g, b, w, kv0, kv1, first_span(b) + i_span, true, state);
  std::atomic_ref<uint32_t> arrived(s.arrived[i_range]);
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != n_spans_of(b)) return;
  for (uint32_t kv = kv0; kv < kv1; ++kv) merge_spans(g, s, w, kv);
}

/// A call's memory and where its items run.
struct Call {
  ThreadPool& pool;
  const Geometry& g;
  std::span<const AttentionTask> tasks;
  uint32_t n_heads;
  uint32_t n_rows;        // of all tasks
  uint64_t worker_bytes;  // per thread, from the start of the scratch
  std::byte* scratch;
  std::byte* held;  // the rest of it
  uint64_t n_held;

  Worker worker(uint32_t i) const {
    Carver c(scratch + i * worker_bytes);
    return take_worker(c, *g.table, n_heads, n_rows, g.padded);
  }
  /// Runs body(item, worker) for n items in ascending order over the pool.
  template <class Body>
  void spread(uint64_t n, Body body) const {
    std::atomic<uint64_t> next{0};
    pool.run(min_u32(n, pool.size()), [&](uint32_t i) {
      const Worker w = worker(i);
      for (uint64_t item = next.fetch_add(1); item < n; item = next.fetch_add(1)) body(item, w);
    });
  }
};

void run_blocks(const Call& c) {
  const Geometry& g = c.g;
  const uint64_t want = div_up(uint64_t{c.pool.size()} * kItemsPerThread, g.n_kv);
  const uint32_t fit = max_u32(1, g.table->max_vectors / g.group);
  const uint32_t block_rows = max_u32(1, min_u32(fit, c.n_rows / want));
  uint64_t n_blocks = 0;
  for (const AttentionTask& t : c.tasks) n_blocks += div_up(t.n_rows, block_rows);
  c.spread(n_blocks * g.n_kv, [&](uint64_t item, const Worker& w) {
    // The last blocks see the most keys: they go first.
    uint64_t i = n_blocks - 1 - item / g.n_kv;
    const AttentionTask* t = c.tasks.data();
    while (i >= div_up(t->n_rows, block_rows)) i -= div_up(t++->n_rows, block_rows);
    const uint32_t row0 = static_cast<uint32_t>(i) * block_rows;
    run_block(g, {t, row0, min_u32(t->n_rows - row0, block_rows)}, w,
              static_cast<uint32_t>(item % g.n_kv));
  });
}

/// In how many shares the query heads of every KV head go: as many as give each thread a span.
uint32_t shares_of(std::span<const AttentionTask> tasks, uint32_t n_threads) {
  const uint32_t group = tasks[0].n_heads / tasks[0].kv.n_heads;
  uint64_t n_spans = 0;
  for (const AttentionTask& t : tasks) n_spans += t.n_rows == 0 ? 0 : n_spans_of({&t, 0, t.n_rows});
  const uint64_t there = n_spans * tasks[0].kv.n_heads;
  uint32_t shares = 1;
  for (uint32_t s = 2; there * shares < n_threads && group / s >= kLeastShare; ++s) {
    if (group % s == 0) shares = s;
  }
  return shares;
}

/// Runs `blocks` as one round. Their results fit the held memory.
void run_round(const Call& c, SplitBlock* blocks, uint32_t n) {
  uint64_t n_spans = 0;
  for (uint32_t i = 0; i < n; ++i) n_spans += n_spans_of(blocks[i].block);
  const uint64_t want = div_up(uint64_t{c.pool.size()} * kSplitItemsPerThread, n_spans);
  const uint32_t n_ranges = min_u32(c.g.n_kv, want);
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t r = 0; r < n_ranges; ++r) blocks[i].arrived[r] = 0;
  }
  c.spread(n_spans * n_ranges, [&](uint64_t item, const Worker& w) {
    uint64_t span = item / n_ranges;
    const SplitBlock* s = blocks;
    while (span >= n_spans_of(s->block)) span -= n_spans_of(s++->block);
    run_split_item(c.g, *s, w, span, static_cast<uint32_t>(item % n_ranges), n_ranges);
  });
}

/// Few rows: rounds of blocks whose span results fit the held memory.
Status run_split(const Call& c) {
  const uint32_t fit = max_u32(1, min_u32(kHeldRows, c.g.table->max_vectors / c.g.group));
  SplitBlock round[kSplitRows];
  uint32_t n = 0;
  uint64_t used = 0;
  for (const AttentionTask& t : c.tasks) {
    for (uint32_t row0 = 0; row0 < t.n_rows;) {
      const Block b{&t, row0, min_u32(t.n_rows - row0, fit)};
      const uint64_t bytes = held_bytes(b.n_rows, c.n_heads, c.g.padded, n_spans_of(b));
      if (used + bytes > c.n_held && n > 0) {
        run_round(c, round, n);
        n = 0;
        used = 0;
      }
      if (bytes > c.n_held)
        return Status::error(Code::kInternal, "the scratch of attention is too small");
      round[n++] = {b, c.held + used,
                    reinterpret_cast<uint32_t*>(c.held + used + bytes -
                                                round_up(c.n_heads * sizeof(uint32_t), kAlign))};
      used += bytes;
      row0 += b.n_rows;
    }
  }
  if (n > 0) run_round(c, round, n);
  return {};
}

}  // namespace

uint64_t attention_scratch_bytes(const KernelSet& kernels, uint32_t n_threads, uint32_t max_rows,
                                 uint32_t max_heads, uint32_t max_head_dim, uint64_t max_slots) {
  uint64_t most = 0;
  for (const AttentionTable* table : attention_tables(kernels)) {
    const AttentionTable& t = *table;
    const uint32_t padded = static_cast<uint32_t>(round_up(max_head_dim, t.pad_to));
    Carver c(nullptr);
    take_worker(c, t, max_heads, max_rows, padded);
    // A block may begin and end inside a span.
    const uint64_t n_spans = div_up(max_slots + min_u32(max_rows, kHeldRows), kSpanKeys) + 1;
    const uint64_t held = held_bytes(min_u32(max_rows, kHeldRows), max_heads, padded, n_spans);
    const uint64_t bytes = kAlign + c.used() * n_threads + held;
    most = bytes > most ? bytes : most;
  }
  return most;
}

Status attention(ThreadPool& pool, const KernelSet& kernels, bool exact,
                 std::span<const AttentionTask> tasks, std::byte* scratch, uint64_t scratch_bytes,
                 bool by_rows) {
  uint64_t n_rows = 0;
  for (const AttentionTask& t : tasks) {
    n_rows += t.n_rows;
  }
  if (n_rows == 0) return {};
  Geometry g;
  g.table = &attention_kernels(kernels, exact, tasks[0].kv).table;
  SHARPI_TRY(check_attention(*g.table, tasks));
  if (by_rows && !exact) g.table = &attention_call_kernels(kernels, tasks).table;
  SHARPI_TRY(check_attention(*g.table, tasks));
  const KvView& kv = tasks[0].kv;
  g.k_dtype = kv.k_dtype;
  g.v_dtype = kv.v_dtype;
  g.shares = n_rows <= kSplitRows ? shares_of(tasks, pool.size()) : 1;
  g.n_kv = kv.n_heads * g.shares;
  g.group = tasks[0].n_heads / g.n_kv;
  g.dim = kv.head_dim;
  g.padded = static_cast<uint32_t>(round_up(g.dim, g.table->pad_to));
  g.row_elems = uint64_t{kv.n_heads} * g.dim;
  g.kernels = &kernels;
  g.k_rotation = kv_rotation(g.k_dtype, g.dim);
  g.v_rotation = kv_rotation(g.v_dtype, g.dim);

  Carver one(nullptr);
  take_worker(one, *g.table, tasks[0].n_heads, min_u32(n_rows, UINT32_MAX), g.padded);
  const auto address = reinterpret_cast<uintptr_t>(scratch);
  const uint64_t skip = round_up(address, kAlign) - address;
  const uint64_t fixed = skip + one.used() * pool.size();
  if (fixed > scratch_bytes)
    return Status::error(Code::kInternal, "the scratch of attention is too small");
  const Call call{pool,
                  g,
                  tasks,
                  tasks[0].n_heads,
                  min_u32(n_rows, UINT32_MAX),
                  one.used(),
                  scratch + skip,
                  scratch + fixed,
                  scratch_bytes - fixed};
  if (g.k_rotation != 0) {
    const auto rotate_one = [&](uint64_t i) { rotate_query(kernels, tasks, i, g.k_rotation); };
    if (n_rows == 1) {
      rotate_one(0);  // sooner done than handed out
    } else {
      call.spread(n_rows, [&](uint64_t i, const Worker&) { rotate_one(i); });
    }
  }
  if (n_rows <= kSplitRows) return run_split(call);
  run_blocks(call);
  return {};
}

}  // namespace sharpi::cpu
