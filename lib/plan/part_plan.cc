// SPDX-License-Identifier: MIT
#include "plan/part_plan.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/limits.h"
#include "plan/layer_bytes.h"
#include "plan/placement.h"

namespace sharpi {
namespace {

Status check_counts(const ModelSpec& spec, const ModelPart& part,
                    std::span<const uint32_t> layers) {
  uint64_t all = 0;
  for (const uint32_t n : layers) all += n;
  const bool none = std::find(layers.begin(), layers.end(), 0u) != layers.end();
  if (layers.size() != part.n_ranks || none || all != spec.n_layers()) {
    return Status::error(Code::kInvalidArgument,
                         "rank_layers has %zu counts with a sum of %llu; a group of %u ranks needs "
                         "one of at least 1 each, and together the model's %u layers",
                         layers.size(), static_cast<unsigned long long>(all), part.n_ranks,
                         spec.n_layers());
  }
  uint32_t at = 0;
  for (const uint32_t n : layers) {
    at += n;
    if (is_layer_split(spec, at)) continue;
    return Status::error(Code::kUnsupported,
                         "rank_layers would put layers that share KV rows on different ranks: no "
                         "rank may end with layer %u",
                         at - 1);
  }
  return Status::ok();
}

/// Ends of the ranks' runs of layers, each where its share of the bytes is nearest.
Result<std::vector<uint32_t>> share_layers(const ModelSpec& spec, uint32_t n_ranks) {
  std::vector<double> until{0};
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerBytes b = layer_bytes(spec, l);
    until.push_back(until.back() + static_cast<double>(b.mixer + b.ffn + b.experts_read));
  }
  const double all = until.back() + static_cast<double>(spec.output.bytes());
  std::vector<uint32_t> counts;
  uint32_t at = 0;
  for (uint32_t r = 0; r < n_ranks; ++r) {
    const uint32_t behind = n_ranks - r - 1;  // each of them has a layer at least
    uint32_t best = 0;
    double least = 0;
    for (uint32_t e = at + 1; e + behind <= spec.n_layers(); ++e) {
      if (!is_layer_split(spec, e) || (behind == 0 && e != spec.n_layers())) continue;
      const double off = std::abs(until[e] - all * (r + 1) / n_ranks);
      if (best != 0 && off >= least) continue;
      best = e;
      least = off;
    }
    if (best == 0) {
      return Status::error(Code::kUnsupported,
                           "the model's %u layers cannot be shared among %u ranks, each with a "
                           "layer of its own and without parting layers that share KV rows",
                           spec.n_layers(), n_ranks);
    }
    counts.push_back(best - at);
    at = best;
  }
  return counts;
}

Status no_group(const char* what) {
  return Status::error(Code::kUnsupported, "%s cannot be had with a group of processes", what);
}

}  // namespace

Result<std::shared_ptr<const ModelSpec>> make_part(const ModelSpec& spec, const ModelPart& part,
                                                   std::span<const uint32_t> layers) {
  if (spec.is_encoder()) return no_group("an encoder");
  if (spec.d_ple != 0)
    return no_group("a model with per-layer embeddings, which every layer takes from the tokens,");
  std::vector<uint32_t> counts(layers.begin(), layers.end());
  if (counts.empty()) {
    SHARPI_TRY_ASSIGN(counts, share_layers(spec, part.n_ranks));
  }
  SHARPI_TRY(check_counts(spec, part, counts));
  ModelPart own = part;
  own.n_all = spec.n_layers();
  own.first = std::accumulate(counts.begin(), counts.begin() + part.rank, 0u);
  return make_part_spec(spec, own, counts[part.rank]);
}

Status check_part_request(const sharpi_plan_params& p) {
  if (p.max_concurrent != 1) return no_group("max_concurrent above 1 (one call at a time)");
  if (p.draft_path != nullptr) return no_group("a model that drafts (draft_path)");
  if (p.session->n_checkpoints != 0) return no_group("checkpoints (n_checkpoints)");
  if (p.n_adapters != 0 || (p.adapter_rank != SHARPI_UNSET && p.adapter_rank != 0))
    return no_group("adapters");
  return Status::ok();
}

Status check_part_session(const SessionShape& s) {
  if (s.n_ctx == SHARPI_UNSET) {
    return Status::error(Code::kInvalidArgument,
                         "n_ctx is UNSET, but ranks with unlike memory would choose unlike "
                         "contexts; with a group it has to be named");
  }
  if (s.kv_budget != 0 || s.prompt_budget != 0) return no_group("a bounded session (kv_budget)");
  if (s.capture_window != 0) return no_group("compaction (capture_window)");
  if (!s.probe.empty()) return no_group("a probe (n_probe)");
  if (s.replay_every != 0) return no_group("replay scores (replay)");
  if (s.archive_rows != 0) return no_group("an archive of evicted rows (archive_rows)");
  if (s.n_draft != 0 || s.drafters != 0) return no_group("drafts (n_draft, drafters)");
  return Status::ok();
}

RankCost rank_cost(const ModelSpec& spec, const SessionShape& session) {
  RankCost c;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerBytes b = layer_bytes(spec, l);
    c.weights += b.mixer + b.ffn;
    c.experts += b.experts;
    c.experts_read += b.experts_read;
    const uint64_t rows = row_bytes_read(spec, l, session, nullptr);
    const bool full = spec.layers[l].mixer == MixerKind::kAttention && spec.layers[l].window() == 0;
    (full ? c.token : c.session) += full ? rows / session.n_ctx : rows;
  }
  if (spec.part.has_head()) c.weights += (spec.tied_output ? spec.token_embd : spec.output).bytes();
  return c;
}

void cut_batch(std::span<const uint32_t> lengths, uint32_t n_parts, uint32_t* ends) {
  uint64_t all = 0, before = 0;
  for (const uint32_t n : lengths) all += uint64_t{n} + 1;
  uint32_t at = 0;
  for (uint32_t p = 0; p < n_parts; ++p) {
    const auto most = static_cast<uint32_t>(lengths.size()) - (n_parts - p - 1);
    // A session belongs to the part that its middle falls into.
    do {
      before += uint64_t{lengths[at++]} + 1;
    } while (at < most &&
             (p + 1 == n_parts || (2 * before + lengths[at] + 1) * n_parts <= 2 * all * (p + 1)));
    ends[p] = at;
  }
}

namespace {

double read_for(const RankCost& c, std::span<const uint32_t> lengths) {
  double unread = 1, tokens = 0;  // the share of the experts that no session uses
  for (const uint32_t n : lengths) {
    if (c.experts != 0)
      unread *= 1 - static_cast<double>(c.experts_read) / static_cast<double>(c.experts);
    tokens += n;
  }
  return static_cast<double>(c.weights) + static_cast<double>(c.experts) * (1 - unread) +
         static_cast<double>(c.session) * static_cast<double>(lengths.size()) +
         static_cast<double>(c.token) * tokens;
}

/// Bytes that one rank could read until the last rank is done.
double time_of(std::span<const RankCost> ranks, std::span<const uint32_t> lengths,
               uint32_t n_parts) {
  std::array<uint32_t, kMaxBatch> ends{};
  std::array<double, kMaxBatch> done{};  // of each part, on the rank before
  cut_batch(lengths, n_parts, ends.data());
  for (const RankCost& rank : ranks) {
    double before = 0;
    for (uint32_t p = 0, first = 0; p < n_parts; first = ends[p++])
      before = done[p] =
          std::max(done[p], before) + read_for(rank, lengths.subspan(first, ends[p] - first));
  }
  return done[n_parts - 1];
}

}  // namespace

uint32_t parts_of_batch(std::span<const RankCost> ranks, std::span<const uint32_t> lengths) {
  constexpr size_t kMostParts = 16;  // more bring little, and each has a message
  uint32_t best = 1;
  double least = 0.9 * time_of(ranks, lengths, 1);
  for (uint32_t n = 2; n <= std::min(lengths.size(), kMostParts); ++n) {
    const double time = time_of(ranks, lengths, n);
    if (time >= least) continue;
    best = n;
    least = time;
  }
  return best;
}

uint64_t rank_message_bytes(const ModelSpec& spec, const ModelShape& model) {
  return kRankHeaderBytes + uint64_t{model.max_rows()} * spec.n_embd * sizeof(float) +
         spec.part.n_ranks * kRankWordBytes;
}

std::vector<MemoryRow> part_rows(const ModelSpec& spec, const ModelShape& model) {
  if (!spec.part.is_part()) return {};
  const uint64_t bytes = rank_message_bytes(spec, model);
  return {make_row(TierId::kCpu, 0, SHARPI_ROW_STAGING, SHARPI_ROW_ANONYMOUS,
                   "hidden rows between ranks", bytes, bytes)};
}

}  // namespace sharpi
