// SPDX-License-Identifier: MIT
// The steps of a recall in host memory, for tiers that only score; what they choose, and which of
// equal ones, is what device/recall_choice.cc chooses.
#include <algorithm>
#include <numeric>

#include "tier/recall_tables.h"
#include "tier/tier.h"

namespace sharpi {

Status TierModel::recall_blocks(TierSession& session, const ScoreRequest& request,
                                const RowArchive& archive, ScoreScratch& scratch,
                                RecallTables& tables) const {
  SHARPI_TRY(
      score_bounds(session, request, archive, scratch, tables.bounds.data(), tables.all_blocks));
  for (uint32_t h = 0; h < archive.n_heads(request.layer); ++h) {
    const uint32_t n = archived_blocks(archive, request.layer, h),
                   best = std::min(tables.n_blocks, n);
    const float* bound = tables.bounds.data() + uint64_t{h} * tables.all_blocks;
    const auto first = tables.order.begin();
    std::iota(first, first + n, 0u);
    std::partial_sort(first, first + best, first + n, [&](uint32_t a, uint32_t b) {
      return bound[a] != bound[b] ? bound[a] > bound[b] : a < b;
    });
    const RecallTables::List blocks = tables.blocks(request.layer, h);
    *blocks.n = best;
    std::copy(first, first + best, blocks.at);
    std::sort(blocks.at, blocks.at + best);
  }
  return Status::ok();
}

/// The session's rows of each head and those of its archive's best blocks, in one softmax: the
/// largest terms go to their positions.
Status TierModel::recall_terms(TierSession& session, const ScoreRequest& request,
                               const RowArchive& archive, ScoreScratch& scratch,
                               RecallTables& tables) const {
  const uint32_t layer = request.layer;
  for (uint32_t h = 0; h < archive.n_heads(layer); ++h) tables.list_rows(archive, layer, h);
  const ArchivedRows archived{&archive, tables.listed.data(), tables.n_listed.data(),
                              tables.n_archived()};
  SHARPI_TRY(
      score_beside(session, request, archived, scratch, tables.wanted.data(), tables.n_keys()));
  for (uint32_t h = 0; h < archive.n_heads(layer); ++h) {
    const std::span<const uint32_t> positions = archive.positions(layer, h);
    const uint32_t* list = tables.listed.data() + uint64_t{h} * archived.stride;
    const float* term = tables.wanted.data() + uint64_t{h} * tables.n_keys();
    const auto count = [&](uint32_t position) {
      tables.shared[position] = std::max(tables.shared[position], *term++);
    };
    for (uint32_t i = 0; i < tables.n_listed[h]; ++i) count(positions[list[i]]);
    for (uint32_t slot = 0; slot < request.ledger->n_slots(layer, h); ++slot)
      count(request.ledger->position(layer, h, slot));
  }
  return Status::ok();
}

Status TierModel::recall_rows(TierSession&, const ScoreRequest& request, const RowArchive& archive,
                              ScoreScratch&, RecallTables& tables) const {
  for (uint32_t h = 0; h < archive.n_heads(request.layer); ++h) {
    const uint32_t layer = request.layer;
    const std::span<const uint32_t> archived = archive.positions(layer, h);
    const ExchangeParts p = exchange_parts(tables, *request.ledger, archive, layer, h);
    const RecallTables::List in = tables.in(layer, h), out = tables.out(layer, h);
    *in.n = p.most;
    uint32_t *const first = tables.order.data(), *end = first;
    for (uint32_t slot = 0; slot < archived.size(); ++slot) {
      if (archived[slot] != kNoRow) *end++ = slot;
    }
    const auto best = [&](const auto& score, uint32_t* to) {
      std::partial_sort(first, first + p.most, end, [&](uint32_t a, uint32_t b) {
        return score(a) != score(b) ? score(a) > score(b) : a < b;
      });
      std::copy(first, first + p.most, to);
      std::sort(to, to + p.most);
    };
    best([&](uint32_t slot) { return tables.by_position[archived[slot]]; }, in.at);
    end = first + (p.last - p.first);
    std::iota(first, end, p.first);
    best(
        [&](uint32_t slot) {
          return -tables.by_position[request.ledger->position(layer, h, slot)];
        },
        out.at);
  }
  return Status::ok();
}

Status TierModel::take_recalled(RecallStep, ScoreScratch&, RecallTables&) const {
  return Status::ok();
}

}  // namespace sharpi
