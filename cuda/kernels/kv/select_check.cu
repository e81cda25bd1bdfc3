// SPDX-License-Identifier: MIT
// The part of attention_check that concerns choosing rows: lists equal to those of policy.cc, to
// the row.
#include <cstring>

#include "cuda/kernels/check_util.h"
#include "cuda/kernels/kv/kv_select.h"

namespace sharpi::cuda::check {
namespace {

constexpr uint32_t kHeads = 3, kQueries = 24;

struct SelectCase {
  sharpi_policy policy;
  uint32_t n_slots, budget, recency, sinks, pool, span;
  uint32_t n_compacted = 0;  // rows with positions of their own
  bool same_lists = false;   // for all heads
};

/// A softmax's masses: few large ones, many small ones, some equal.
std::vector<float> masses(size_t n, float scale) {
  std::vector<float> v = random_floats(n, 4.0f);
  for (float& f : v) f = random_below(9) == 0 ? 0.125f * scale : std::exp(f - 9.0f) * scale;
  return v;
}

struct Positions {
  std::vector<uint32_t> lists;
  RowPositions at;
  uint32_t of(uint32_t head, uint32_t slot) const {
    if (slot >= at.n_compacted) return at.tail_position + (slot - at.n_compacted);
    return lists[uint64_t{head} * at.stride + slot];
  }
  uint32_t n() const { return at.tail_position; }
};

Positions make_positions(const SelectCase& c) {
  Positions p;
  p.at.n_compacted = c.n_compacted;
  p.at.stride = c.same_lists ? 0 : c.n_compacted;
  uint32_t last = 0;
  for (uint32_t h = 0; c.n_compacted != 0 && h < (c.same_lists ? 1 : kHeads); ++h) {
    for (uint32_t i = 0, at = random_below(4); i < c.n_compacted; ++i, at += 1 + random_below(4)) {
      p.lists.push_back(at);
      last = std::max(last, at + 1);
    }
  }
  p.at.tail_position = last;
  return p;
}

/// What the engine's host path keeps: [head][list].
std::vector<std::vector<uint32_t>> host_lists(const PolicyParams& p, const LayerScores& all,
                                              const Positions& at,
                                              const std::vector<float>& shared) {
  std::vector<std::vector<uint32_t>> out;
  const uint32_t n = all.n_slots;
  std::vector<float> scores(n), scratch(n), row(n);
  std::vector<uint32_t> keys(n);
  for (uint32_t h = 0; h < kHeads; ++h) {
    LayerScores s = all;
    for (uint32_t t = 0; t < n; ++t) row[t] = shared[at.of(h, t)];
    if (policy_shares_hits(p.policy)) s.shared = row.data();
    policy_scores(p, s, h, scores.data(), scratch.data());
    out.emplace_back(n);
    out.back().resize(select_rows(p, scores.data(), n, keys.data(), out.back().data()));
  }
  return out;
}

void check_selection(const SelectCase& c) {
  const uint32_t n = c.n_slots;
  const uint64_t all = uint64_t{kHeads} * n;
  PolicyParams p;
  p.policy = c.policy;
  p.budget = c.budget;
  p.recency = c.recency;
  p.sinks = c.sinks;
  p.pool_kernel = c.pool;
  p.span = c.span;
  const std::vector<float> sum = masses(all, 20.0f), top = masses(all, 1.0f),
                           norms = masses(all, 50.0f);
  Positions at = make_positions(c);
  const uint32_t n_positions = at.n() + n - c.n_compacted;
  std::vector<float> shared = masses(n_positions, 0.5f);
  Buffer<float> dsum(sum), dtop(top), dnorms(norms), held(all), dshared(shared);
  const Buffer<uint32_t> dlists(at.lists.empty() ? std::vector<uint32_t>(1) : at.lists);
  at.at.lists = dlists.p;
  Buffer<uint32_t> keys(all);
  const float scale = 1.0f / kQueries;
  HeldTerms terms = {held.p, kHeads, n};
  const bool means = c.policy == SHARPI_POLICY_SNAPKV || c.policy == SHARPI_POLICY_SPAN;
  if (means) {
    terms.terms = dsum.p;
  } else if (c.policy == SHARPI_POLICY_RETRIEVAL) {
    terms.terms = dtop.p;
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t t = 0; t < n; ++t) {
        float& f = shared[at.of(h, t)];
        f = std::max(f, top[uint64_t{h} * n + t]);
      }
    }
    must(launch_share_hits(terms, at.at, dshared.p, nullptr), "share_hits");
    must(launch_take_hits(terms, at.at, dshared.p, nullptr), "take_hits");
  } else {
    JoinParams j;
    j.out = terms;
    j.sum = dsum.p;
    j.top = dtop.p;
    j.norms = c.policy == SHARPI_POLICY_VALUE ? dnorms.p : nullptr;
    j.scale = scale;
    must(launch_join_terms(j, nullptr), "join_terms");
  }
  std::vector<SelectList> lists(kHeads);
  for (uint32_t h = 0; h < kHeads; ++h) {
    lists[h].terms = terms.terms + uint64_t{h} * n;
    lists[h].keys = keys.p + uint64_t{h} * n;
    lists[h].scale = means ? scale : 1.0f;
    lists[h].n_slots = n;
    lists[h].parts = keep_parts(p, n);
  }
  const Buffer<SelectList> dl(lists);
  const bool spreads = c.policy == SHARPI_POLICY_SPAN || c.policy == SHARPI_POLICY_RETRIEVAL;
  must(launch_select(
           {dl.p, kHeads, spreads ? Smooth::kSpread : Smooth::kPool, spreads ? c.span : c.pool},
           nullptr),
       "select");
  must(cudaDeviceSynchronize(), "select");
  LayerScores s;
  s.n_kv_heads = kHeads;
  s.n_slots = n;
  s.n_observed = kQueries;
  s.sum = sum.data();
  s.max = top.data();
  s.value_norm = norms.data();
  const auto want = host_lists(p, s, at, shared);
  const std::string name = "select policy " + std::to_string(c.policy) + " rows " +
                           std::to_string(n) + " budget " + std::to_string(c.budget) + " recency " +
                           std::to_string(c.recency) + " sinks " + std::to_string(c.sinks) +
                           " compacted " + std::to_string(c.n_compacted);
  for (uint32_t h = 0; h < kHeads; ++h) {
    std::vector<uint32_t> got(want[h].size());
    must(cudaMemcpy(got.data(), lists[h].terms, got.size() * sizeof(uint32_t),
                    cudaMemcpyDeviceToHost),
         "download");
    expect(got == want[h], name + " head " + std::to_string(h));
  }
}

}  // namespace

void check_selections(bool small) {
  for (const sharpi_policy policy :
       {SHARPI_POLICY_SNAPKV, SHARPI_POLICY_DEFENSIVE, SHARPI_POLICY_VALUE, SHARPI_POLICY_SPAN,
        SHARPI_POLICY_RETRIEVAL}) {
    check_selection({policy, 1, 1, 0, 0, 13, 12});
    check_selection({policy, 33, 7, 3, 2, 13, 12});
    check_selection({policy, 1000, 999, 64, 0, 1, 0, 300, true});
    check_selection({policy, 1024, 64, 64, 0, 13, 12});
    check_selection({policy, 2500, 1025, 64, 5, 13, 12, 2500});
    check_selection({policy, 5000, 1, 0, 0, 5, 40, 1777, true});
    check_selection({policy, 5000, 3000, 64, 4, 31, 12, 4000});
    if (!small) check_selection({policy, 65000, 1024, 64, 0, 13, 12});
    if (!small) check_selection({policy, 65000, 32500, 64, 0, 13, 12, 30000});
  }
}

/// All lists of a session of the 27B model: as compaction by the default policy launches it.
void bench_selections() {
  constexpr uint32_t kLayers = 16, kKvHeads = 4, kSlots = 65000;
  constexpr uint64_t kLists = kLayers * kKvHeads;
  const Buffer<float> store(masses(kLists * kSlots, 1.0f));
  Buffer<float> shared(kSlots, 0);
  Buffer<uint32_t> keys(kLists * kSlots);
  PolicyParams p;
  p.budget = 1024;
  std::vector<SelectList> lists(kLists);
  for (uint64_t i = 0; i < kLists; ++i) {
    lists[i].terms = store.p + i * kSlots;
    lists[i].keys = keys.p + i * kSlots;
    lists[i].n_slots = kSlots;
    lists[i].parts = keep_parts(p, kSlots);
  }
  const Buffer<SelectList> dl(lists);
  const RowPositions at = {nullptr, 0, 0, 0};
  const double hits =
      1000 * time_graph([&](cudaStream_t s) {
        for (uint32_t l = 0; l < kLayers; ++l) {
          const HeldTerms t = {store.p + uint64_t{l} * kKvHeads * kSlots, kKvHeads, kSlots};
          must(launch_share_hits(t, at, shared.p, s), "share_hits");
          must(launch_take_hits(t, at, shared.p, s), "take_hits");
        }
      });
  const double spread = 1000 * time_graph([&](cudaStream_t s) {
                          must(launch_select({dl.p, kLists, Smooth::kSpread, 12}, s), "select");
                        });
  const double pool = 1000 * time_graph([&](cudaStream_t s) {
                        must(launch_select({dl.p, kLists, Smooth::kPool, 13}, s), "select");
                      });
  std::printf(
      "choose 27B 64K, 64 lists: shared hits %.1f us, spread and select %.1f us, pool and "
      "select %.1f us\n",
      hits, spread, pool);
}

}  // namespace sharpi::cuda::check
