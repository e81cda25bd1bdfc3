// SPDX-License-Identifier: MIT
#include "engine/recaller.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>

#include "base/checked.h"
#include "base/no_throw.h"

namespace sharpi {
namespace {

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

/// Archived rows of a head that are scored in any case: leaving out some of so few saves nothing.
constexpr uint64_t kScoredRows = 1024;

uint32_t blocks_of(const RowArchive& archive, uint32_t layer, uint32_t head) {
  return static_cast<uint32_t>(div_up(archive.positions(layer, head).size(), kArchiveBlock));
}

}  // namespace

/// Memory of one call, taken before the first row moves.
struct Recaller::Desk {
  /// What changes places in a head: slots of the archive, those of the session that their rows
  /// take, and those of the rows that go, all ascending by position; and the slots of the archive
  /// that these take, those that the others leave.
  struct Exchange {
    std::vector<uint32_t> in, slots_in, out, places;
  };
  void make_changes(uint32_t layer, uint32_t n_heads, uint32_t most) {
    changes[layer].resize(n_heads);
    for (Exchange& e : changes[layer]) {
      for (std::vector<uint32_t>* list : {&e.in, &e.slots_in, &e.out, &e.places}) list->reserve(most);
    }
  }
  std::vector<std::unique_ptr<ScoreScratch>> scratch;  // per tier, null where it has no such layers
  uint32_t most_heads = 0;                             // of a layer
  uint32_t n_blocks = 0, all_blocks = 0;               // of a head: whose rows are scored, and all
  uint32_t n_slots = 0, n_keys = 0;                    // the most of a head
  std::vector<float> terms, by_position;               // by position, and spread
  std::vector<float> bounds, wanted;                   // [head][all_blocks], [head][n_keys]
  std::vector<uint32_t> listed, n_listed;      // archived rows that are scored, of each head
  std::vector<uint32_t> blocks, order;         // one head's
  std::vector<std::vector<Exchange>> changes;  // [layer][head]
  std::vector<HeadExchange> moves;             // one layer's
  std::vector<uint32_t> positions;             // [head][n_slots], of rows as they will be
  std::vector<std::byte> rows;                 // one head's, and behind them those that come
  std::vector<float> scores;                   // of the same
};

Status Recaller::recall(const sharpi_recall_params& p, sharpi_recall_report* report) {
  const bool held_probe = observer_.holds_probe();
  const Status done = no_throw([&] { return recall_now(p, report); });
  observer_.end_probe();
  selector_.finish();
  if (!done.is_ok() && held_probe && !observer_.holds_probe()) observer_.look_again();
  return done;
}

Status Recaller::check(const sharpi_recall_params& p) const {
  if (!core_.archive.is_reserved()) {
    return Status::error(Code::kUnsupported,
                         "the session has no archive to recall rows from: archive_rows is 0");
  }
  if (core_.compactable_layers().empty()) {
    return Status::error(Code::kUnsupported, "this model has no full-attention layers to recall");
  }
  if (core_.ledger().n_tokens() == 0) return Status::error(Code::kState, "the session is empty");
  const auto given = [](uint32_t n) { return n == SHARPI_UNSET ? 0u : n; };
  const uint32_t rows = core_.ledger().max_slots();
  if (uint64_t{given(p.recency)} + given(p.sinks) < rows) return Status::ok();
  return Status::error(Code::kInvalidArgument,
                       "recency %u and sinks %u leave none of %u rows to change places",
                       given(p.recency), given(p.sinks), rows);
}

uint32_t Recaller::fullest_archive(std::span<const uint32_t> layers) const {
  uint32_t most = 0;
  for (const uint32_t l : layers) {
    for (uint32_t h = 0; h < core_.archive.n_heads(l); ++h)
      most = std::max(most, core_.archive.n_rows(l, h));
  }
  return most;
}

/// Four times as many rows as may come in are scored, in whole blocks.
ScoreShape Recaller::shape_of(const sharpi_recall_params& p, uint32_t n_queries, Desk* d) const {
  const std::vector<uint32_t> layers = core_.compactable_layers();
  ScoreShape shape;
  for (const uint32_t l : layers) {
    const uint32_t k = core_.archive.row_bytes(l, false);
    shape.key_bytes = std::max(shape.key_bytes, k);
    shape.row_bytes = std::max(shape.row_bytes, k + core_.archive.row_bytes(l, true));
    d->most_heads = std::max(d->most_heads, core_.archive.n_heads(l));
    for (uint32_t h = 0; h < core_.archive.n_heads(l); ++h)
      d->all_blocks = std::max(d->all_blocks, blocks_of(core_.archive, l, h));
  }
  const uint64_t wanted = div_up(std::max(4 * uint64_t{p.budget}, kScoredRows), kArchiveBlock);
  d->n_blocks = static_cast<uint32_t>(std::min<uint64_t>(wanted, d->all_blocks));
  d->n_slots = core_.ledger().max_slots();
  shape.n_archived = d->n_blocks * kArchiveBlock;
  d->n_keys = shape.n_slots = d->n_slots + shape.n_archived;
  shape.n_queries = n_queries;
  shape.n_positions = core_.shape.n_ctx;
  shape.n_blocks = d->all_blocks;
  shape.n_exchanged = std::min(p.budget, fullest_archive(layers));
  return shape;
}

Status Recaller::make_desk(const sharpi_recall_params& p, uint32_t n_queries, Lease* lease,
                           Desk* d) {
  const ScoreShape shape = shape_of(p, n_queries, d);
  const std::vector<uint32_t> layers = core_.compactable_layers();
  uint64_t heads = 0;
  d->scratch.resize(core_.tiers.size());
  std::vector<bool> scores(core_.tiers.size());
  for (const uint32_t l : layers) {
    heads += core_.archive.n_heads(l);
    scores[core_.tier_index(l)] = true;
  }
  HeldBytes held;
  for (size_t t = 0; t < scores.size(); ++t) {
    if (scores[t]) held += HeldBytes::of(core_.model->tiers()[t]->score_scratch_rows(shape));
  }
  const uint64_t n_ctx = core_.shape.n_ctx, n_rows = uint64_t{d->n_slots} + shape.n_exchanged;
  // Lists of a head's rows, here and there, and what there is of each head.
  const uint64_t order = uint64_t{d->n_slots} + fullest_archive(layers),
                 of_head = uint64_t{d->all_blocks} + d->n_keys + shape.n_archived + d->n_slots + 1;
  held +=
      HeldBytes::of_host(n_rows * (shape.row_bytes + sizeof(float)) +
                         sizeof(uint32_t) * (2 * n_ctx + d->most_heads * of_head + d->all_blocks +
                                             order + 4 * heads * shape.n_exchanged));
  SHARPI_TRY(lease->take(held));
  for (size_t t = 0; t < scores.size(); ++t) {
    if (!scores[t]) continue;
    SHARPI_TRY_ASSIGN(d->scratch[t], core_.model->tiers()[t]->create_score_scratch(shape));
  }
  d->terms.resize(n_ctx);
  d->by_position.resize(n_ctx);
  d->bounds.resize(uint64_t{d->most_heads} * d->all_blocks);
  d->wanted.resize(uint64_t{d->most_heads} * d->n_keys);
  d->listed.resize(uint64_t{d->most_heads} * shape.n_archived);
  d->n_listed.resize(d->most_heads);
  d->blocks.resize(d->all_blocks);
  d->order.resize(order);
  d->moves.reserve(d->most_heads);
  d->positions.resize(uint64_t{d->most_heads} * d->n_slots);
  d->rows.resize(n_rows * shape.row_bytes);
  d->scores.resize(n_rows);
  d->changes.resize(core_.spec().n_layers());
  for (const uint32_t l : layers) d->make_changes(l, core_.archive.n_heads(l), shape.n_exchanged);
  return Status::ok();
}

ScoreRequest Recaller::request(const CompactRequest& r, uint32_t layer) const {
  ScoreRequest q;
  q.layer = layer;
  q.ledger = &core_.ledger();
  q.source = r.source;
  q.n_queries = r.n_queries;
  q.first_position = r.first_position;
  q.half_life = policy_row(SHARPI_POLICY_RETRIEVAL).half_life;
  return q;
}

/// Lists the rows of a head's best blocks; how many there are.
uint32_t Recaller::list_best_blocks(uint32_t layer, uint32_t head, Desk* d) const {
  const std::span<const uint32_t> archived = core_.archive.positions(layer, head);
  const uint32_t blocks = blocks_of(core_.archive, layer, head);
  const float* bound = d->bounds.data() + uint64_t{head} * d->all_blocks;
  const auto first = d->blocks.begin(), end = first + blocks;
  std::iota(first, end, 0u);
  const uint32_t best = std::min(d->n_blocks, blocks);
  std::partial_sort(first, first + best, end, [&](uint32_t a, uint32_t b) {
    return bound[a] != bound[b] ? bound[a] > bound[b] : a < b;
  });
  uint32_t* const list = d->listed.data() + uint64_t{head} * d->n_blocks * kArchiveBlock;
  uint32_t n = 0;
  for (uint32_t i = 0; i < best; ++i) {
    const size_t from = d->blocks[i] * kArchiveBlock;
    for (size_t slot = from; slot < std::min(from + kArchiveBlock, archived.size()); ++slot) {
      if (archived[slot] != kNoRow) list[n++] = static_cast<uint32_t>(slot);
    }
  }
  return n;
}

/// The session's rows of each head and those of its archive's best blocks, in one softmax: the
/// largest terms go to their positions.
Status Recaller::score_layer(const CompactRequest& r, uint32_t layer, Desk* d) {
  RowArchive& archive = core_.archive;
  const size_t t = core_.tier_index(layer);
  const TierModel& tier = *core_.model->tiers()[t];
  TierSession& session = *core_.tiers[t];
  const ScoreRequest q = request(r, layer);
  SHARPI_TRY(
      tier.score_bounds(session, q, archive, *d->scratch[t], d->bounds.data(), d->all_blocks));
  for (uint32_t h = 0; h < archive.n_heads(layer); ++h)
    d->n_listed[h] = list_best_blocks(layer, h, d);
  const ArchivedRows archived{&archive, d->listed.data(), d->n_listed.data(),
                              d->n_blocks * kArchiveBlock};
  SHARPI_TRY(tier.score_beside(session, q, archived, *d->scratch[t], d->wanted.data(), d->n_keys));
  for (uint32_t h = 0; h < archive.n_heads(layer); ++h) {
    const std::span<const uint32_t> positions = archive.positions(layer, h);
    const uint32_t* list = d->listed.data() + uint64_t{h} * archived.stride;
    const float* term = d->wanted.data() + uint64_t{h} * d->n_keys;
    const auto count = [&](uint32_t position) {
      d->terms[position] = std::max(d->terms[position], *term++);
    };
    for (uint32_t i = 0; i < d->n_listed[h]; ++i) count(positions[list[i]]);
    for (uint32_t slot = 0; slot < core_.ledger().n_slots(layer, h); ++slot)
      count(core_.ledger().position(layer, h, slot));
  }
  return Status::ok();
}

Status Recaller::score(const CompactRequest& r, Desk* d) {
  const std::vector<uint32_t> layers = core_.compactable_layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool stop = core_.is_cancelled() ||
                      (r.progress != nullptr &&
                       r.progress(r.user_data, SHARPI_PHASE_COMPACT, i, layers.size()) != 0);
    if (stop) return Status::error(Code::kCancelled, "the recall was cancelled; nothing changed");
    SHARPI_TRY(score_layer(r, layers[i], d));
  }
  smooth_terms(r.for_layer(1), d->terms.data(), core_.ledger().n_tokens(), d->by_position.data());
  return Status::ok();
}

/// The best rows of the archive for the worst of the session, as long as they are better.
void Recaller::choose_head(const CompactRequest& r, uint32_t budget, const HeadRows& rows,
                           uint32_t layer, uint32_t head, Desk* d) const {
  const std::span<const uint32_t> archived = core_.archive.positions(layer, head);
  const uint32_t n = rows.n_rows(), first = std::min(r.sinks, n),
                 last = n - std::min(r.recency, n - first);
  const uint32_t n_in = core_.archive.n_rows(layer, head), n_out = last - first;
  const uint32_t most = std::min({budget, n_in, n_out});
  if (most == 0) return;
  const auto in = d->order.begin(), out = in + n_in;
  for (uint32_t slot = 0, at = 0; slot < archived.size(); ++slot) {
    if (archived[slot] != kNoRow) in[at++] = slot;
  }
  std::iota(out, out + n_out, first);
  const auto score_in = [&](uint32_t slot) { return d->by_position[archived[slot]]; };
  const auto score_out = [&](uint32_t slot) { return d->by_position[rows.position(slot)]; };
  const auto earlier = [&](uint32_t a, uint32_t b) { return archived[a] < archived[b]; };
  std::partial_sort(in, in + most, out, [&](uint32_t a, uint32_t b) {
    return score_in(a) != score_in(b) ? score_in(a) > score_in(b) : earlier(a, b);
  });
  std::partial_sort(out, out + most, out + n_out, [&](uint32_t a, uint32_t b) {
    return score_out(a) != score_out(b) ? score_out(a) < score_out(b) : a > b;
  });
  Desk::Exchange& e = d->changes[layer][head];
  for (uint32_t i = 0; i < most && score_in(in[i]) > score_out(out[i]); ++i) {
    e.in.push_back(in[i]);
    e.out.push_back(out[i]);
  }
  e.places = e.in;
  std::sort(e.places.begin(), e.places.end());
  std::sort(e.in.begin(), e.in.end(), earlier);
  std::sort(e.out.begin(), e.out.end());
}

/// Where the rows of a head will be, by position.
void Recaller::place_head(uint32_t layer, uint32_t head, Desk* d) const {
  const KvLedger& ledger = core_.ledger();
  Desk::Exchange& e = d->changes[layer][head];
  const std::span<const uint32_t> archived = core_.archive.positions(layer, head);
  const uint32_t n = ledger.n_slots(layer, head);
  uint32_t* to = d->positions.data() + uint64_t{head} * d->n_slots;
  size_t in = 0, out = 0;
  for (uint32_t slot = 0, from = 0; slot < n; ++slot) {
    while (out < e.out.size() && e.out[out] == from) ++out, ++from;
    const bool comes =
        in < e.in.size() && (from == n || archived[e.in[in]] < ledger.position(layer, head, from));
    if (comes) e.slots_in.push_back(slot);
    to[slot] = comes ? archived[e.in[in++]] : ledger.position(layer, head, from++);
  }
}

/// The rows of a head change places, in host memory.
void Recaller::exchange_head(uint32_t layer, uint32_t head, Desk* d) noexcept {
  RowArchive& archive = core_.archive;
  HeadRows rows(core_, layer, head);
  const Desk::Exchange& e = d->changes[layer][head];
  const uint32_t n = rows.n_rows(), n_in = static_cast<uint32_t>(e.in.size());
  const uint32_t k = rows.row_bytes(false), bytes = k + archive.row_bytes(layer, true);
  const auto place = [&](uint32_t i, bool value) {
    return d->rows.data() + uint64_t{i} * bytes + (value ? k : 0);
  };
  // The rows that stay, then those that come in.
  uint32_t at = 0;
  for (uint32_t slot = 0, o = 0; slot < n; ++slot) {
    if (o < n_in && e.out[o] == slot) {
      ++o;
      continue;
    }
    d->scores[at] = rows.scores() == nullptr ? 0.0f : rows.scores()[slot];
    for (const bool value : rows.sides()) rows.read(slot, value, place(at, value));
    ++at;
  }
  for (const uint32_t i : e.in) {
    d->scores[at] = archive.score(layer, head, i);
    for (const bool value : rows.sides())
      std::copy_n(archive.row(layer, head, value, i), archive.row_bytes(layer, value),
                  place(at, value));
    ++at;
  }
  archive.replace(layer, head, e.places, RowsAtSlots(rows, e.out));
  for (uint32_t slot = 0, stayed = 0, came = 0; slot < n; ++slot) {
    const bool comes = came < n_in && e.slots_in[came] == slot;
    const uint32_t from = comes ? n - n_in + came++ : stayed++;
    for (const bool value : rows.sides()) rows.write(slot, value, place(from, value));
    if (rows.scores() != nullptr) rows.scores()[slot] = d->scores[from];
  }
}

/// The rows of a layer change places; those of the session stay ascending by position.
void Recaller::exchange_layer(uint32_t layer, Desk* d) noexcept {
  d->moves.clear();
  for (uint32_t h = 0; h < core_.archive.n_heads(layer); ++h) {
    place_head(layer, h, d);
    const Desk::Exchange& e = d->changes[layer][h];
    if (!e.in.empty())
      d->moves.push_back({h, core_.ledger().n_slots(layer, h), e.in, e.slots_in, e.out, e.places});
  }
  const size_t t = core_.tier_index(layer);
  if (RemoteRows* remote = core_.tiers[t]->remote_rows(); remote != nullptr) {
    for (const HeadExchange& m : d->moves) {
      uint32_t* places = d->changes[layer][m.head].places.data();
      const PositionsAtSlots rows(core_.ledger(), layer, m.head, m.slots_out);
      core_.archive.replace(layer, m.head, m.places, rows, places);
    }
    remote->exchange(layer, d->moves, core_.archive, *d->scratch[t]);
  } else {
    for (const HeadExchange& m : d->moves) exchange_head(layer, m.head, d);
  }
  // From the last head to the first, which may have one list of positions until then.
  for (uint32_t h = core_.archive.n_heads(layer); h-- > 0;)
    core_.transcript.set_positions(
        layer, h,
        {d->positions.data() + uint64_t{h} * d->n_slots, core_.ledger().n_slots(layer, h)});
}

Status Recaller::recall_now(const sharpi_recall_params& p, sharpi_recall_report* report) {
  SHARPI_TRY(core_.begin_call());
  SHARPI_TRY(check(p));
  const auto start = std::chrono::steady_clock::now();
  if (core_.shape.replay_every != 0) SHARPI_TRY(selector_.score_waiting());
  CompactRequest r;
  r.policy = SHARPI_POLICY_RETRIEVAL;
  SHARPI_TRY_ASSIGN(const FixedRows fixed,
                    resolve_fixed_rows(p.recency, p.sinks, core_.ledger().max_slots()));
  r.recency = fixed.recency;
  r.sinks = fixed.sinks;
  r.progress = p.progress;
  r.user_data = p.user_data;
  SHARPI_TRY(p.n_probe != 0 ? observer_.use_probe({p.probe, p.n_probe}, &r)
                            : observer_.use_captured(p.window, &r));
  Lease lease(core_.share);
  Desk desk;
  SHARPI_TRY(make_desk(p, r.n_queries, &lease, &desk));
  const std::vector<uint32_t> layers = core_.compactable_layers();  // nothing allocates later
  if (desk.n_blocks != 0) SHARPI_TRY(score(r, &desk));
  report->n_blocks = desk.n_blocks;
  for (const uint32_t l : layers) {
    bool changes = false;
    for (uint32_t h = 0; h < core_.archive.n_heads(l); ++h) {
      choose_head(r, p.budget, HeadRows(core_, l, h), l, h, &desk);
      const size_t n = desk.changes[l][h].in.size();
      changes = changes || n != 0;
      report->rows_in = std::max(report->rows_in, static_cast<uint32_t>(n));
      report->total_rows += n;
    }
    if (!changes) desk.changes[l].clear();
    report->n_layers += changes ? 1 : 0;
  }
  report->score_ms = ms_since(start);
  const auto moving = std::chrono::steady_clock::now();
  if (report->total_rows != 0) {
    SHARPI_TRY(core_.take_positions());
    SHARPI_TRY(memory_.own_rows([](uint32_t) { return 0u; }));
  }
  if (core_.shape.replay_every != 0) core_.transcript.mark_scored();
  for (const uint32_t l : layers) {
    if (!desk.changes[l].empty()) exchange_layer(l, &desk);
  }
  report->archived = fullest_archive(layers);
  report->move_ms = ms_since(moving);
  return Status::ok();
}

}  // namespace sharpi
