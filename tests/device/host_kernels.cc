// SPDX-License-Identifier: MIT
// The kernels of the tests' device outside of passes, as plainly as they can be said.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/half.h"
#include "base/limits.h"
#include "device/host_device.h"
#include "device/host_matrix.h"
#include "device/kernels.h"
#include "kv/rotation.h"

namespace sharpi::testing {
namespace {

using namespace device;

/// A head's part of a stored row.
std::vector<float> head_of(const KvView& v, bool value, uint64_t slot, uint32_t head) {
  std::vector<float> out(v.head_dim);
  const Status read = kv_decode_row(
      value ? v.v_dtype : v.k_dtype, value ? v.v_row(slot) : v.k_row(slot),
      uint64_t{v.n_heads} * v.head_dim, uint64_t{head} * v.head_dim, v.head_dim, out.data());
  if (!read.is_ok()) std::fill(out.begin(), out.end(), NAN);
  return out;
}

Status score_rows_of(const ScoreParams& p) {
  const KvView& kv = p.kv;
  const uint32_t dim = kv.head_dim, group = p.n_heads / kv.n_heads;
  for (uint32_t g = 0; g < kv.n_heads; ++g) {
    float* sum = p.sum + uint64_t{g} * p.n_slots;
    float* top = p.max + uint64_t{g} * p.n_slots;
    if (!p.add) std::fill_n(sum, p.n_slots, 0.0f), std::fill_n(top, p.n_slots, 0.0f);
    std::vector<std::vector<float>> keys;
    for (uint32_t t = 0; t < p.n_slots; ++t) {
      keys.push_back(head_of(kv, false, t, g));
      kv_unrotate(keys.back().data(), dim, kv_rotation(kv.k_dtype, dim));
    }
    for (uint32_t i = 0; i < p.n_queries; ++i) {
      const uint32_t n = p.visible[uint64_t{g} * p.n_queries + i];
      for (uint32_t h = g * group; h < (g + 1) * group; ++h) {
        const uint64_t stride = p.query_stride != 0 ? p.query_stride : uint64_t{p.n_heads} * dim;
        const float* q =
            p.queries + (p.first_query + i) % p.query_rows * stride + uint64_t{h} * dim;
        std::vector<double> w(n);
        double most = -INFINITY, all = 0;
        for (uint32_t t = 0; t < n; ++t) {
          w[t] =
              std::inner_product(q, q + dim, keys[t].begin(), 0.0) * static_cast<double>(p.scale);
          most = std::max(most, w[t]);
        }
        const double sink = p.sinks == nullptr ? -INFINITY : static_cast<double>(p.sinks[h]);
        most = std::max(most, sink);
        for (double& x : w) all += x = std::exp(x - most);
        all += std::exp(sink - most);
        for (uint32_t t = 0; t < n; ++t) {
          const auto term = static_cast<float>(w[t] / all);
          sum[t] += term;
          top[t] = std::max(top[t], term * (p.weight == nullptr ? 1.0f : p.weight[i]));
        }
      }
    }
  }
  return Status::ok();
}

/// One query head of row `row`: its weights of the rows it sees, by slot. `keys`: of its KV head.
void ask_again(const ReplayParams& p, const std::vector<std::vector<float>>& keys, uint32_t row,
               uint32_t head, uint32_t low, uint32_t end) {
  const KvView& kv = p.kv;
  const uint32_t dim = kv.head_dim, g = head / (p.n_heads / kv.n_heads);
  const float* from = p.queries + (p.first_query + row) % p.query_rows * p.query_stride;
  std::vector<float> q(from + uint64_t{head} * dim, from + uint64_t{head + 1} * dim);
  if (p.rotated) kv_unrotate(q.data(), dim, kv_rotation(kv.k_dtype, dim));
  std::vector<float> turned = q;
  for (uint32_t j = 0; j < p.n_half; ++j) {
    const uint32_t a = p.neighbours ? 2 * j : j, b = p.neighbours ? 2 * j + 1 : j + p.n_half;
    turned[a] = q[a] * p.cos[j] - q[b] * p.sin[j];
    turned[b] = q[a] * p.sin[j] + q[b] * p.cos[j];
  }
  std::vector<double> again(end, -INFINITY), once = again;
  const uint32_t own = p.first_slot + row;
  for (uint32_t t = 0; t < end; ++t) {
    if (t >= kReplaySinks && t < low) continue;
    const auto product = [&](const std::vector<float>& x) {
      return std::inner_product(x.begin(), x.end(), keys[t].begin(), 0.0) *
             static_cast<double>(p.scale);
    };
    again[t] = product(turned);
    if (t >= low && t <= own) once[t] = product(q);
  }
  double most = -INFINITY, all = 0;
  for (const auto* w : {&again, &once}) {
    for (const double x : *w) most = std::max(most, x);
  }
  for (const auto* w : {&again, &once}) {
    for (const double x : *w) all += std::exp(x - most);
  }
  for (uint32_t t = std::max(low, p.first_slot); t < end; ++t) {
    float& score = p.scores[g * p.stride + t];
    score = std::max(score, static_cast<float>(std::exp(again[t] - most) / all));
  }
}

Status replay_scores_of(const ReplayParams& p) {
  for (uint32_t g = 0; !p.add && g < p.kv.n_heads; ++g)
    std::fill_n(p.scores + g * p.stride + p.first_slot, p.n_rows, 0.0f);
  const KvView& kv = p.kv;
  std::vector<std::vector<std::vector<float>>> keys(kv.n_heads);
  for (uint32_t g = 0; g < kv.n_heads; ++g) {
    for (uint32_t t = 0; t < p.first_slot + p.n_rows; ++t) {
      keys[g].push_back(head_of(kv, false, t, g));
      kv_unrotate(keys[g].back().data(), kv.head_dim, kv_rotation(kv.k_dtype, kv.head_dim));
    }
  }
  for (uint32_t row = p.first_asked; row < p.n_rows; row += p.every) {
    const int64_t first = int64_t{p.first_slot} + row - (p.first_place + row) % kReplayChunk;
    const auto low = static_cast<uint32_t>(std::max<int64_t>(first, p.tail_slot));
    const auto end = static_cast<uint32_t>(
        std::min<int64_t>(first + kReplayChunk, int64_t{p.first_slot} + p.n_rows));
    for (uint32_t h = 0; h < p.n_heads; ++h)
      ask_again(p, keys[h / (p.n_heads / kv.n_heads)], row, h, low, end);
  }
  return Status::ok();
}

/// Every head's value of a latent is its own, as is its part of `o`.
Status latent_norms_of(const NormParams& p) {
  const KvView& kv = p.kv;
  const HostMatrix o(*p.o, p.o_data), map(*p.map, p.map_data);
  const uint64_t n = p.map->n_out;
  for (uint32_t t = 0; t < p.n_slots; ++t) {
    std::vector<float> row = head_of(kv, true, t, 0), value(n);
    kv_unrotate(row.data(), kv.head_dim, kv_rotation(kv.v_dtype, kv.head_dim));
    double norm = 0;
    for (uint64_t h = 0; h < p.n_heads; ++h) {
      for (uint64_t j = 0; j < n; ++j) {
        const std::vector<float> w = map.row(h, j);
        value[j] = std::inner_product(w.begin(), w.end(), row.begin() + p.map_first, 0.0f);
      }
      for (uint64_t r = 0; r < p.n_outputs; ++r) {
        const std::vector<float> w = o.row(0, r);
        norm += std::fabs(std::inner_product(value.begin(), value.end(),
                                             w.begin() + static_cast<std::ptrdiff_t>(h * n), 0.0));
      }
    }
    p.norms[t] = static_cast<float>(norm / p.n_heads);
  }
  return Status::ok();
}

Status value_norms_of(const NormParams& p) {
  if (p.map != nullptr) return latent_norms_of(p);
  const KvView& kv = p.kv;
  const uint32_t dim = kv.head_dim, group = p.n_heads / (p.n_kv == 0 ? kv.n_heads : p.n_kv);
  const HostMatrix o(*p.o, p.o_data);
  for (uint32_t g = 0; g < kv.n_heads; ++g) {
    for (uint32_t t = 0; t < p.n_slots; ++t) {
      std::vector<float> v = head_of(kv, true, t, g);
      kv_unrotate(v.data(), dim, kv_rotation(kv.v_dtype, dim));
      double norm = 0;
      for (uint64_t r = 0; r < p.n_outputs; ++r) {
        const std::vector<float> row = o.row(0, r);
        const uint32_t first = (p.first_kv + g) * group;
        for (uint32_t h = first; h < first + group; ++h) {
          norm += std::fabs(
              std::inner_product(v.begin(), v.end(), row.data() + uint64_t{h} * dim, 0.0));
        }
      }
      p.norms[uint64_t{g} * p.n_slots + t] = static_cast<float>(norm / group);
    }
  }
  return Status::ok();
}

uint32_t position_of(const RowPositions& at, uint32_t head, uint32_t slot) {
  if (slot >= at.n_compacted) return at.tail_position + (slot - at.n_compacted);
  return at.lists[uint64_t{head} * at.stride + slot];
}

void join_head(const JoinParams& p, uint64_t first, uint32_t n) {
  double mean = 0;
  for (uint32_t t = 0; t < n; ++t) mean += static_cast<double>(p.sum[first + t] * p.scale);
  mean /= n;
  for (uint32_t t = 0; t < n; ++t) {
    const uint64_t i = first + t;
    p.out.terms[i] = p.norms != nullptr ? (p.scale * p.sum[i] + kValueFloor) * p.norms[i]
                                        : std::max(p.top[i], static_cast<float>(mean));
  }
}

void select_list(const SelectParams& p, const SelectList& l) {
  PolicyParams policy;
  policy.policy = p.smooth == Smooth::kPool ? SHARPI_POLICY_SNAPKV : SHARPI_POLICY_RETRIEVAL;
  policy.pool_kernel = policy.span = p.reach;
  std::vector<float> terms(l.terms, l.terms + l.n_slots), scores(l.n_slots);
  for (float& t : terms) t *= l.scale;
  smooth_terms(policy, terms.data(), l.n_slots, scores.data());
  // The parts say how many rows of the budget are recent, sinks and chosen.
  policy.sinks = l.parts.first;
  policy.recency = l.n_slots - l.parts.last;
  policy.budget = policy.sinks + policy.recency + l.parts.take;
  select_rows(policy, scores.data(), l.n_slots, l.keys, reinterpret_cast<uint32_t*>(l.terms));
}

void find_row(const BestParams& p, uint32_t r) {
  const float* row = p.logits + uint64_t{r} * p.n_vocab;
  std::vector<std::pair<float, int32_t>> all;
  for (uint32_t t = 0; t < p.n_vocab; ++t) {
    const bool may = p.allowed.words == nullptr ||
                     (t / 32 < p.allowed.n_words && (p.allowed.words[t / 32] >> t % 32 & 1) != 0);
    all.emplace_back(may ? row[t] : -INFINITY, static_cast<int32_t>(t));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (uint32_t i = 0; i < p.k; ++i) {
    p.values[uint64_t{r} * p.k + i] = all[i].first;
    p.ids[uint64_t{r} * p.k + i] = all[i].second;
  }
}

template <class BlockAt>
void move_job(const KvMoveJob& job, BlockAt&& block_at) {
  const auto at = [&](uint64_t slot) {
    return job.rows + block_at(slot / kKvBlockSlots) + slot % kKvBlockSlots * job.row_bytes +
           job.offset;
  };
  for (uint32_t i = 0; i < job.n_keep; ++i) std::memmove(at(i), at(job.keep[i]), job.bytes);
}

void copy_job(const RowCopyJob& j) {
  for (uint32_t i = 0; i < j.n; ++i) {
    const uint64_t slot = j.slots == nullptr ? i : j.slots[i], block = slot / kKvBlockSlots;
    std::byte* row =
        j.rows + ((j.flags & RowCopyJob::kByHead) != 0 ? j.table[block] : block * j.block_stride) +
        slot % kKvBlockSlots * j.row_bytes;
    std::byte* flat = j.flat + uint64_t{i} * j.flat_bytes;
    const bool to_rows = (j.flags & RowCopyJob::kToRows) != 0;
    std::memcpy(to_rows ? row : flat, to_rows ? flat : row, j.bytes);
  }
}

void bound_keys_of(const KeyBoundsParams& p, const KeyBoundsJob& j) {
  const uint32_t dim = p.head_dim, rotation = kv_rotation(p.dtype, dim);
  std::vector<float> key(dim);
  for (uint32_t i = 0; i < j.n; ++i) {
    const std::byte* row = j.keys + uint64_t{i} * j.row_bytes;
    if (!kv_decode_row(p.dtype, row, dim, 0, dim, key.data()).is_ok()) return;
    if (rotation != 0) kv_unrotate(key.data(), dim, rotation);
    for (uint32_t e = 0; e < dim; ++e) {
      const bool begins = i == 0 && j.begins != 0;
      if (begins || key[e] < f32_from_bf16(j.bounds[e])) j.bounds[e] = bf16_beyond(key[e], false);
      if (begins || key[e] > f32_from_bf16(j.bounds[dim + e]))
        j.bounds[dim + e] = bf16_beyond(key[e], true);
    }
  }
}

void bound_head(const BoundsParams& p, uint32_t g) {
  const uint32_t dim = p.head_dim, group = p.n_heads / p.n_kv;
  float* out = p.out + uint64_t{g} * p.n_blocks;
  if (!p.add) std::fill_n(out, p.n_blocks, -INFINITY);
  for (uint32_t b = 0; b < p.n_blocks; ++b) {
    const uint16_t *low = p.bounds + (uint64_t{g} * p.stride + b) * 2 * dim, *high = low + dim;
    for (uint32_t i = 0; i < p.n_queries * group; ++i) {
      const uint64_t row = (p.first_query + i / group) % p.query_rows;
      const float* q = p.queries + (row * p.n_heads + g * group + i % group) * dim;
      float most = 0;
      for (uint32_t e = 0; e < dim; ++e)
        most += std::max(q[e] * f32_from_bf16(low[e]), q[e] * f32_from_bf16(high[e]));
      out[b] = std::max(out[b], most * p.scale + std::log(p.weight[i / group]));
    }
  }
}

/// A layer's part of a block: rows of K, then of V, to K and V of every head.
void take_layer_apart(const ApartParams& p, const ApartLayer& l, std::byte* at) {
  const uint64_t bytes = uint64_t{kKvBlockSlots} * (l.row_bytes[0] + l.row_bytes[1]);
  std::memcpy(p.desks, at, bytes);
  const std::byte* rows = p.desks;
  for (uint32_t value = 0; value < 2; ++value) {
    const uint32_t row = l.row_bytes[value], own = row / l.n_heads;
    for (uint32_t i = 0; i < kKvBlockSlots; ++i) {
      for (uint32_t h = 0; h < l.n_heads; ++h) {
        std::byte* to = at + h * (bytes / l.n_heads) + i * own +
                        (value == 0 ? 0 : uint64_t{kKvBlockSlots} * (l.row_bytes[0] / l.n_heads));
        uint64_t plane = 0;
        for (const uint32_t part : l.part_bytes[value]) {
          std::memcpy(to, rows + i * uint64_t{row} + plane + h * part, part);
          plane += uint64_t{l.n_heads} * part;
          to += part;
        }
      }
    }
    rows += uint64_t{kKvBlockSlots} * row;
  }
}

class HostKernels final : public DeviceKernels {
 public:
  uint64_t layout_unit(const TensorRef& w) const override { return HostMatrix::unit(w); }
  uint64_t most_layout_unit(uint64_t row_bytes) const override {
    return HostMatrix::kUnitRows * row_bytes;
  }
  Status lay_out(const TensorRef& w, const std::byte* from, std::byte* to, uint64_t bytes,
                 const Queue& queue) const override {
    give(queue, [=, row = w.row_bytes()] {
      for (uint64_t at = 0; at < bytes; at += row) {
        const uint64_t r = at / row;
        const uint64_t moved = host_faults().keeps_layout ? r : HostMatrix::place(r);
        std::memcpy(to + moved * row, from + at, row);
      }
    });
    return Status::ok();
  }
  uint32_t max_gathered() const override { return 256; }
  Status gather(const GatherParams& p, const Queue& queue) const override {
    std::vector<GatherParams::Pair> pairs(p.pairs.begin(), p.pairs.end());
    give(queue, [p, pairs = std::move(pairs)] {
      for (const GatherParams::Pair& x : pairs)
        std::memcpy(p.to + x.expert * p.bytes, p.slots + x.slot * p.stride, p.bytes);
    });
    return Status::ok();
  }
  Status move_rows(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t,
                   const Queue& queue) const override {
    give(queue, [=] {
      for (uint32_t j = 0; j < n_jobs; ++j) {
        const uint64_t stride = jobs[j].block_stride;
        move_job(jobs[j], [=](uint64_t block) { return block * stride; });
      }
    });
    return Status::ok();
  }
  bool keeps_by_head() const override { return true; }
  Status move_head_rows(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t,
                        const Queue& queue) const override {
    give(queue, [=] {
      for (uint32_t j = 0; j < n_jobs; ++j) {
        const uint64_t* table = jobs[j].table;
        move_job(jobs[j], [=](uint64_t block) { return table[block]; });
      }
    });
    return Status::ok();
  }
  Status take_apart(const ApartParams& p, const Queue& queue) const override {
    give(queue, [p] {
      for (uint32_t b = 0; b < p.most_blocks; ++b) {
        for (uint32_t l = 0; l < p.n_layers; ++l) {
          if (b < p.layers[l].n_blocks)
            take_layer_apart(p, p.layers[l], p.base + b * p.block_stride + p.layers[l].offset);
        }
      }
    });
    return Status::ok();
  }
  Status move_units(const UnitMoveParams& p, const Queue& queue) const override {
    give(queue, [p] {
      std::vector<std::byte> held(UnitMoves::kBatch * p.unit_bytes);
      const auto unit = [&](uint32_t i) {
        return i == p.n_units ? p.room : p.base + i * p.unit_bytes;
      };
      for (uint32_t first = 0; first < p.n_moves; first += UnitMoves::kBatch) {
        const uint32_t n = std::min(UnitMoves::kBatch, p.n_moves - first);
        for (uint32_t i = 0; i < n; ++i) {
          const UnitMove& m = p.moves[first + i];
          if (m.from != kNoUnit)
            std::memcpy(held.data() + i * p.unit_bytes, unit(m.from), p.unit_bytes);
        }
        for (uint32_t i = 0; i < n; ++i) {
          const UnitMove& m = p.moves[first + i];
          if (m.from != kNoUnit)
            std::memcpy(unit(m.to), held.data() + i * p.unit_bytes, p.unit_bytes);
        }
      }
    });
    return Status::ok();
  }

  Status copy_rows(const RowCopyParams& p, const Queue& queue) const override {
    give(queue, [p] {
      for (uint32_t j = 0; j < p.n_jobs; ++j) copy_job(p.jobs[j]);
    });
    return Status::ok();
  }
  Status bound_keys(const KeyBoundsParams& p, const Queue& queue) const override {
    give(queue, [p] {
      for (uint32_t j = 0; j < p.n_jobs; ++j) bound_keys_of(p, p.jobs[j]);
    });
    return Status::ok();
  }
  Status score_bounds(const BoundsParams& p, const Queue& queue) const override {
    give(queue, [p] {
      for (uint32_t g = 0; g < p.n_kv; ++g) bound_head(p, g);
    });
    return Status::ok();
  }

  uint32_t most_best(uint32_t n_vocab) const override { return std::min(n_vocab, 64u); }
  uint64_t best_bytes(uint32_t, uint32_t, uint32_t) const override { return 256; }
  Status find_best(const BestParams& p, const Queue& queue) const override {
    give(queue, [p] {
      for (uint32_t r = 0; r < p.n_rows; ++r) find_row(p, r);
    });
    return Status::ok();
  }

  uint64_t score_bytes(uint32_t, uint32_t, uint32_t, uint32_t, uint32_t) const override {
    return 256;
  }
  Status score(const ScoreParams& p, const Queue& queue) const override {
    host_queue(queue).give([p] { return score_rows_of(p); });
    return Status::ok();
  }
  Status replay_scores(const ReplayParams& p, const Queue& queue) const override {
    host_queue(queue).give([p] { return replay_scores_of(p); });
    return Status::ok();
  }
  uint64_t norm_bytes(uint32_t, uint32_t, uint32_t) const override { return 256; }
  Status value_norms(const NormParams& p, const Queue& queue) const override {
    host_queue(queue).give([p, o = *p.o, map = p.map == nullptr ? TensorRef() : *p.map]() mutable {
      NormParams own = p;
      own.o = &o;
      if (p.map != nullptr) own.map = &map;
      return value_norms_of(own);
    });
    return Status::ok();
  }
  Status join_terms(const JoinParams& p, const Queue& queue) const override {
    give(queue, [p] {
      for (uint32_t h = 0; h < p.out.n_heads; ++h)
        join_head(p, uint64_t{h} * p.out.n_slots, p.out.n_slots);
    });
    return Status::ok();
  }
  Status share_hits(const HeldTerms& t, const RowPositions& at, float* shared,
                    const Queue& queue) const override {
    give(queue, [=] {
      each_term(t, at, [&](float& term, uint32_t p) { shared[p] = std::max(shared[p], term); });
    });
    return Status::ok();
  }
  Status take_hits(const HeldTerms& t, const RowPositions& at, const float* shared,
                   const Queue& queue) const override {
    give(queue, [=] {
      each_term(t, at, [&](float& term, uint32_t p) { term = std::max(term, shared[p]); });
    });
    return Status::ok();
  }
  Status select(const SelectParams& p, const Queue& queue) const override {
    give(queue, [p] {
      for (uint32_t i = 0; i < p.n_lists; ++i) select_list(p, p.lists[i]);
    });
    return Status::ok();
  }

 private:
  template <class F>
  static void give(const Queue& queue, F&& f) {
    host_queue(queue).give([f = std::forward<F>(f)] {
      f();
      return Status::ok();
    });
  }
  template <class F>
  static void each_term(const HeldTerms& t, const RowPositions& at, F&& f) {
    for (uint32_t h = 0; h < t.n_heads; ++h) {
      for (uint32_t i = 0; i < t.n_slots; ++i) {
        if (const uint32_t position = position_of(at, h, i); position != kNoPosition)
          f(t.terms[uint64_t{h} * t.n_slots + i], position);
      }
    }
  }
};

}  // namespace

std::unique_ptr<DeviceKernels> make_host_kernels() {
  return std::make_unique<HostKernels>();
}

}  // namespace sharpi::testing
