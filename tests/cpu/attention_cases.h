// SPDX-License-Identifier: MIT
// What the attention tests are made of: runs over stored conversations in any chunks, and the plain
// double loops that they are held against.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention_sequence.h"
#include "cpu/attention.h"
#include "isas.h"

namespace sharpi::cpu {
namespace {

constexpr double kUlp = 0x1p-24;
constexpr auto& kCodecs = kAllKvCodecs;

ThreadPool& pool_of(uint32_t n_threads) {
  static std::unique_ptr<ThreadPool> pools[5];
  if (pools[n_threads] == nullptr) pools[n_threads] = ThreadPool::create(n_threads).take();
  return *pools[n_threads];
}

/// Rows in the layout of KvView: blocks of 64 slots, K rows then V rows, a gap of its own after
/// each block. Everything that was not written is NaN in every codec.
class Store {
 public:
  Store(const Shape& s, uint64_t n_slots) {
    view_.k_row_bytes = static_cast<uint32_t>(kv_row_bytes(s.k, s.row()));
    view_.v_row_bytes = static_cast<uint32_t>(kv_row_bytes(s.v, s.row()));
    const uint64_t v_bytes = s.one_row ? 0 : view_.v_row_bytes;
    view_.block_stride = kKvBlockSlots * (view_.k_row_bytes + v_bytes) + 192;
    const uint64_t n_blocks = (n_slots + kKvBlockSlots - 1) / kKvBlockSlots;
    bytes_.assign(n_blocks * view_.block_stride, std::byte{0xFF});
    view_.k = bytes_.data();
    view_.v = s.one_row ? view_.k : view_.k + uint64_t{kKvBlockSlots} * view_.k_row_bytes;
    view_.one_row = s.one_row;
    view_.k_dtype = s.k;
    view_.v_dtype = s.v;
    view_.n_heads = s.n_kv;
    view_.head_dim = s.dim;
  }
  const KvView& view() const { return view_; }
  void put(uint64_t slot, const Sequence& s, uint64_t position) {
    const auto &k = s.k_row(position).bytes, &v = s.v_row(position).bytes;
    std::copy(k.begin(), k.end(), view_.k_row(slot));
    std::copy(v.begin(), v.end(), view_.v_row(slot));
  }

 private:
  std::vector<std::byte> bytes_;
  KvView view_;
};

/// How a run is asked for.
struct Run {
  Isa isa = Isa::kScalar;
  bool exact = true;
  uint32_t n_threads = 1;
  bool by_rows = false;  // tasks of one row and chunks may take kernels of their own
};

Status call(const Run& r, std::span<const AttentionTask> tasks) {
  uint32_t rows = 0;
  uint64_t slots = 0;
  for (const AttentionTask& t : tasks) {
    rows += t.n_rows;
    slots = std::max(slots, (t.window != 0 ? t.window : t.n_past) + t.n_rows);
  }
  const uint64_t bytes = attention_scratch_bytes(kernels_of(r.isa), r.n_threads, rows,
                                                 tasks[0].n_heads, tasks[0].kv.head_dim, slots);
  std::vector<float> scratch(bytes / 4 + 16, std::nanf(""));
  return attention(pool_of(r.n_threads), kernels_of(r.isa), r.exact, tasks,
                   reinterpret_cast<std::byte*>(scratch.data()), bytes, r.by_rows);
}

/// Rows and results of one task, with gaps between rows that must stay as they are.
struct Rows {
  uint64_t stride;
  std::vector<float> q, o;
  Rows(const Sequence& s, uint64_t first, uint64_t n) : stride(s.shape.n_heads * s.shape.dim + 5) {
    q.assign(n * stride, std::nanf(""));
    o.assign(n * stride, 77.0f);
    for (uint64_t i = 0; i < n; ++i)
      std::copy(s.q[first + i].begin(), s.q[first + i].end(), &q[i * stride]);
  }
  std::vector<float> row(uint64_t i, const Shape& s) const {
    for (uint64_t g = i * stride + s.n_heads * s.dim; g < (i + 1) * stride; ++g)
      EXPECT_EQ(o[g], 77.0f);
    return {o.begin() + static_cast<ptrdiff_t>(i * stride),
            o.begin() + static_cast<ptrdiff_t>(i * stride + s.n_heads * s.dim)};
  }
};

AttentionTask task_of(const Sequence& s, Rows& rows, uint64_t n) {
  AttentionTask t;
  t.q = rows.q.data();
  t.o = rows.o.data();
  t.q_stride = t.o_stride = rows.stride;
  t.n_rows = static_cast<uint32_t>(n);
  t.n_heads = s.shape.n_heads;
  t.scale = s.scale;
  t.sinks = s.sinks.empty() ? nullptr : s.sinks.data();
  return t;
}

using Output = std::vector<std::vector<float>>;

/// Full attention over positions [first, end), read in chunks that end where `cuts` say.
[[maybe_unused]] Output run_full(const Run& r, const Sequence& s, uint64_t first,
                                 const std::vector<uint64_t>& cuts) {
  Store store(s.shape, cuts.back());
  for (uint64_t i = 0; i < first; ++i) store.put(i, s, i);
  Output out;
  for (const uint64_t cut : cuts) {
    const uint64_t n = cut - first;
    for (uint64_t i = first; i < cut; ++i) store.put(i, s, i);
    Rows rows(s, first, n);
    AttentionTask t = task_of(s, rows, n);
    t.kv = store.view();
    t.n_past = first;
    EXPECT_TRUE(call(r, {&t, 1}).is_ok());
    for (uint64_t i = 0; i < n; ++i) out.push_back(rows.row(i, s.shape));
    first = cut;
  }
  return out;
}

/// Windowed attention: a ring of window + rewind slots, the chunk apart.
[[maybe_unused]] Output run_windowed(const Run& r, const Sequence& s, uint32_t window,
                                     uint32_t rewind, uint64_t first,
                                     const std::vector<uint64_t>& cuts) {
  const uint32_t ring = window + rewind;
  Store store(s.shape, ring);
  for (uint64_t i = first > ring ? first - ring : 0; i < first; ++i) store.put(i % ring, s, i);
  Output out;
  for (const uint64_t cut : cuts) {
    const uint64_t n = cut - first;
    Store chunk(s.shape, n);
    for (uint64_t i = 0; i < n; ++i) chunk.put(i, s, first + i);
    Rows rows(s, first, n);
    AttentionTask t = task_of(s, rows, n);
    t.kv = store.view();
    t.chunk = chunk.view();
    t.window = window;
    t.pos0 = first;
    t.ring_slots = ring;
    EXPECT_TRUE(call(r, {&t, 1}).is_ok());
    for (uint64_t i = 0; i < n; ++i) out.push_back(rows.row(i, s.shape));
    for (uint64_t i = first; i < cut; ++i) store.put(i % ring, s, i);
    first = cut;
  }
  return out;
}

/// How large the elements of a stored row of values are to what rounds them: where rows are stored
/// rotated, what one element was rounded by is spread over its block when the sum is rotated back.
std::vector<double> sizes_of_values(const Shape& h, const std::vector<float>& back) {
  std::vector<double> size(back.size());
  for (size_t i = 0; i < back.size(); ++i) size[i] = std::fabs(back[i]);
  const uint32_t block = kv_rotation(h.v, h.dim);
  for (size_t from = 0; block != 0 && from < back.size(); from += block) {
    double squares = 0;  // the rotation keeps the sum
    for (size_t i = from; i < from + block; ++i) squares += double{back[i]} * back[i];
    for (size_t i = from; i < from + block; ++i)
      size[i] = std::max(size[i], std::sqrt(squares / block));
  }
  return size;
}

/// Plain double loops over the stored values of positions [from, to], and the bound on |error|.
void expect_row(const Sequence& s, uint64_t from, uint64_t to, const std::vector<float>& q,
                const std::vector<float>& got, double relative) {
  const Shape& h = s.shape;
  std::vector<const float*> keys, values;
  std::vector<std::vector<double>> sizes;
  for (uint64_t t = from; t <= to; ++t) {
    keys.push_back(s.k_row(t).back.data());
    values.push_back(s.v_row(t).back.data());
    sizes.push_back(sizes_of_values(h, s.v_row(t).back));
  }
  for (uint32_t head = 0; head < h.n_heads; ++head) {
    const size_t kv = head / (h.n_heads / h.n_kv) * h.dim;
    std::vector<double> p;
    double top = -1e300, worst = 0;
    for (const float* key : keys) {
      double score = 0, size = 0;
      for (size_t i = 0; i < h.dim; ++i) {
        const double x = double{q[head * h.dim + i]} * key[kv + i] * s.scale;
        score += x;
        size += std::fabs(x);
      }
      p.push_back(score);
      top = std::max(top, score);
      worst = std::max(worst, size);
    }
    if (!s.sinks.empty()) top = std::max(top, double{s.sinks[head]});
    double sum = s.sinks.empty() ? 0 : std::exp(s.sinks[head] - top);
    for (double& x : p) sum += x = std::exp(x - top);
    for (double& x : p) x /= sum;
    // A score is off by at most (dim + 3) roundings of its terms, or by `relative` of them; a
    // weight by twice that plus the exponential's 4 ulp and the shift; the sums by one rounding per
    // key.
    const double score_error = worst * (std::max((h.dim + 3) * kUlp, relative) + 2 * kUlp);
    const double weight_error =
        2 * score_error + relative +
        (8 + static_cast<double>(std::min<size_t>(keys.size(), 1100))) * kUlp;
    for (size_t i = 0; i < h.dim; ++i) {
      double want = 0, size = 0;
      for (size_t t = 0; t < keys.size(); ++t) {
        want += p[t] * values[t][kv + i];
        size += p[t] * sizes[t][kv + i];
      }
      ASSERT_NEAR(got[head * h.dim + i], want, 2 * weight_error * size)
          << "head " << head << " element " << i << " of keys [" << from << ", " << to << "]";
    }
  }
}

[[maybe_unused]] void expect_full(const Sequence& s, uint64_t first, const Output& out,
                                  double relative) {
  for (uint64_t i = 0; i < out.size(); ++i)
    expect_row(s, 0, first + i, s.q[first + i], out[i], relative);
}

}  // namespace
}  // namespace sharpi::cpu
