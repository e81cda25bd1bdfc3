// SPDX-License-Identifier: MIT
#include "engine/recaller.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <memory>

#include "base/checked.h"
#include "base/no_throw.h"
#include "tier/recall_tables.h"

namespace sharpi {
namespace {

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

/// Archived rows of a head that are scored in any case: leaving out some of so few saves nothing.
constexpr uint64_t kScoredRows = 1024;

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
      for (std::vector<uint32_t>* list : {&e.in, &e.slots_in, &e.out, &e.places})
        list->reserve(most);
    }
  }
  std::vector<std::unique_ptr<ScoreScratch>> scratch;  // per tier, null where it has no such layers
  RecallTables tables;
  std::vector<std::vector<Exchange>> changes;  // [layer][head]
  std::vector<HeadExchange> moves;             // one layer's
  std::vector<uint32_t> own;                   // one head's positions, as they are
  std::vector<uint32_t> positions, from;       // [head][n_slots]: as they will be; HeadExchange's
  std::vector<uint32_t> slot_at;               // of archived rows that come in, by position
  std::vector<uint64_t> comes;                 // a bit for each position: one does
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
ScoreShape Recaller::shape_of(const sharpi_recall_params& p, const CompactRequest& r,
                              RecallTables* t) const {
  const std::vector<uint32_t> layers = core_.compactable_layers();
  const RowArchive& archive = core_.archive;
  ScoreShape shape;
  t->first_list.resize(core_.spec().n_layers());
  for (const uint32_t l : layers) {
    const uint32_t k = archive.row_bytes(l, false);
    shape.key_bytes = std::max(shape.key_bytes, k);
    shape.row_bytes = std::max(shape.row_bytes, k + archive.row_bytes(l, true));
    t->first_list[l] = t->n_lists;
    t->n_lists += archive.n_heads(l);
    t->most_heads = std::max(t->most_heads, archive.n_heads(l));
    for (uint32_t h = 0; h < archive.n_heads(l); ++h)
      t->all_blocks = std::max(t->all_blocks, archived_blocks(archive, l, h));
  }
  t->budget = p.budget;
  t->recency = r.recency;
  t->sinks = r.sinks;
  const uint64_t wanted = div_up(std::max(4 * uint64_t{p.budget}, kScoredRows), kArchiveBlock);
  t->n_blocks = static_cast<uint32_t>(std::min<uint64_t>(wanted, t->all_blocks));
  t->n_slots = core_.ledger().max_slots();
  t->n_ctx = core_.shape.n_ctx;
  t->n_exchanged = std::min(p.budget, fullest_archive(layers));
  shape.n_archived = t->n_archived();
  shape.n_slots = t->n_keys();
  shape.n_queries = r.n_queries;
  shape.n_positions = t->n_ctx;
  shape.n_blocks = t->all_blocks;
  shape.n_exchanged = t->n_exchanged;
  return shape;
}

Status Recaller::make_desk(const sharpi_recall_params& p, const CompactRequest& r, Lease* lease,
                           Desk* d) {
  RecallTables& tables = d->tables;
  const ScoreShape shape = shape_of(p, r, &tables);
  const std::vector<uint32_t> layers = core_.compactable_layers();
  d->scratch.resize(core_.tiers.size());
  std::vector<bool> scores(core_.tiers.size());
  for (const uint32_t l : layers) scores[core_.tier_index(l)] = true;
  HeldBytes held;
  for (size_t t = 0; t < scores.size(); ++t) {
    if (scores[t]) held += HeldBytes::of(core_.model->tiers()[t]->score_scratch_rows(shape));
  }
  const uint64_t n_rows = uint64_t{tables.n_slots} + tables.n_exchanged,
                 n_words = div_up(tables.n_ctx, 64);
  held += HeldBytes::of_host(
      n_rows * (shape.row_bytes + sizeof(float)) + tables.bytes() + n_words * sizeof(uint64_t) +
      sizeof(uint32_t) * (tables.n_ctx + (2 * uint64_t{tables.most_heads} + 1) * tables.n_slots +
                          4 * uint64_t{tables.n_lists} * tables.n_exchanged));
  SHARPI_TRY(lease->take(held));
  for (size_t t = 0; t < scores.size(); ++t) {
    if (!scores[t]) continue;
    SHARPI_TRY_ASSIGN(d->scratch[t], core_.model->tiers()[t]->create_score_scratch(shape));
  }
  tables.reserve();
  d->moves.reserve(tables.most_heads);
  d->own.resize(tables.n_slots);
  d->positions.resize(uint64_t{tables.most_heads} * tables.n_slots);
  d->from.resize(d->positions.size());
  d->slot_at.resize(tables.n_ctx);
  d->comes.resize(n_words);
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

/// A step of all layers.
Status Recaller::step(const CompactRequest& r, RecallStep which, Desk* d) {
  const std::vector<uint32_t> layers = core_.compactable_layers();
  const bool tells = which == RecallStep::kTerms && r.progress != nullptr;
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool stop =
        core_.is_cancelled() ||
        (tells && r.progress(r.user_data, SHARPI_PHASE_COMPACT, i, layers.size()) != 0);
    if (stop) return Status::error(Code::kCancelled, "the recall was cancelled; nothing changed");
    const size_t t = core_.tier_index(layers[i]);
    const TierModel& tier = *core_.model->tiers()[t];
    const auto run = which == RecallStep::kBlocks  ? &TierModel::recall_blocks
                     : which == RecallStep::kTerms ? &TierModel::recall_terms
                                                   : &TierModel::recall_rows;
    SHARPI_TRY((tier.*run)(*core_.tiers[t], request(r, layers[i]), core_.archive, *d->scratch[t],
                           d->tables));
  }
  for (size_t t = 0; t < d->scratch.size(); ++t) {
    if (d->scratch[t] != nullptr)
      SHARPI_TRY(core_.model->tiers()[t]->take_recalled(which, *d->scratch[t], d->tables));
  }
  return Status::ok();
}

Status Recaller::score(const CompactRequest& r, Desk* d) {
  const struct EndOfWork {  // a step that fails may leave some under way
    Desk* d;
    ~EndOfWork() {
      for (const auto& scratch : d->scratch) {
        if (scratch != nullptr) scratch->finish();
      }
    }
  } end{d};
  SHARPI_TRY(step(r, RecallStep::kBlocks, d));
  SHARPI_TRY(step(r, RecallStep::kTerms, d));
  RecallTables& t = d->tables;
  smooth_terms(r.for_layer(1), t.shared.data(), core_.ledger().n_tokens(), t.by_position.data());
  return step(r, RecallStep::kRows, d);
}

/// Of a head's lists, those that change places: the best archived rows for the worst of the
/// session, as long as they are better.
void Recaller::pair_head(uint32_t layer, uint32_t head, Desk* d) const {
  const std::span<const uint32_t> archived = core_.archive.positions(layer, head);
  std::span<uint32_t> in = d->tables.in(layer, head).span(),
                      out = d->tables.out(layer, head).span();
  const float* scores = d->tables.by_position.data();
  // Free slots that were chosen for want of rows that count: nothing is worse.
  const auto score_in = [&](uint32_t slot) {
    return archived[slot] == kNoRow ? -1.0f : scores[archived[slot]];
  };
  const auto score_out = [&](uint32_t slot) {
    return scores[core_.ledger().position(layer, head, slot)];
  };
  float worst_in = std::numeric_limits<float>::infinity(), best_out = -worst_in;
  for (const uint32_t slot : in) worst_in = std::min(worst_in, score_in(slot));
  for (const uint32_t slot : out) best_out = std::max(best_out, score_out(slot));
  if (worst_in <= best_out) {
    std::sort(in.begin(), in.end(), [&](uint32_t a, uint32_t b) {
      return score_in(a) != score_in(b) ? score_in(a) > score_in(b) : a < b;
    });
    std::sort(out.begin(), out.end(), [&](uint32_t a, uint32_t b) {
      return score_out(a) != score_out(b) ? score_out(a) < score_out(b) : a < b;
    });
    size_t n = 0;
    while (n < in.size() && score_in(in[n]) > score_out(out[n])) ++n;
    in = in.first(n);
    out = out.first(n);
    std::sort(in.begin(), in.end());
    std::sort(out.begin(), out.end());
  }
  Desk::Exchange& e = d->changes[layer][head];
  e.places.assign(in.begin(), in.end());
  e.out.assign(out.begin(), out.end());
  for (const uint32_t slot : in) {
    const uint32_t position = archived[slot];
    d->slot_at[position] = slot;
    d->comes[position / 64] |= uint64_t{1} << position % 64;
  }
  for (size_t word = 0; word < d->comes.size(); ++word) {
    for (uint64_t& bits = d->comes[word]; bits != 0; bits &= bits - 1)
      e.in.push_back(d->slot_at[word * 64 + static_cast<size_t>(std::countr_zero(bits))]);
  }
}

/// Where the rows of a head will be, by position.
void Recaller::place_head(uint32_t layer, uint32_t head, Desk* d) const {
  Desk::Exchange& e = d->changes[layer][head];
  const std::span<const uint32_t> archived = core_.archive.positions(layer, head);
  const uint32_t n = core_.ledger().n_slots(layer, head);
  copy_positions(core_.ledger(), layer, head, 0, n, d->own.data());
  const uint32_t* own = d->own.data();
  uint32_t* const to = d->positions.data() + uint64_t{head} * d->tables.n_slots;
  uint32_t* const from = d->from.data() + uint64_t{head} * d->tables.n_slots;
  size_t in = 0, out = 0;
  for (uint32_t slot = 0, row = 0; slot < n;) {
    for (; out < e.out.size() && e.out[out] == row; ++out) ++row;
    // Rows that stay, up to one that goes or a place of one that comes.
    const uint32_t end = out < e.out.size() ? e.out[out] : n,
                   next = in < e.in.size() ? archived[e.in[in]] : kNoRow;
    for (; row < end && own[row] < next; ++row, ++slot) {
      to[slot] = own[row];
      from[slot] = row;
    }
    if (in == e.in.size() || (row == end && end != n)) continue;
    e.slots_in.push_back(slot);
    to[slot] = next;
    from[slot] = slot;
    ++slot;
    ++in;
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
    const std::span<const uint32_t> from{d->from.data() + uint64_t{h} * d->tables.n_slots,
                                         core_.ledger().n_slots(layer, h)};
    if (!e.in.empty()) d->moves.push_back({h, from, e.in, e.slots_in, e.out, e.places});
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
        {d->positions.data() + uint64_t{h} * d->tables.n_slots, core_.ledger().n_slots(layer, h)});
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
  SHARPI_TRY(make_desk(p, r, &lease, &desk));
  const std::vector<uint32_t> layers = core_.compactable_layers();  // nothing allocates later
  const bool has_rows = desk.tables.n_blocks != 0;
  if (has_rows) SHARPI_TRY(score(r, &desk));
  report->n_blocks = desk.tables.n_blocks;
  for (const uint32_t l : layers) {
    bool changes = false;
    for (uint32_t h = 0; has_rows && h < core_.archive.n_heads(l); ++h) {
      pair_head(l, h, &desk);
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
  for (const auto& scratch : desk.scratch) {
    if (scratch != nullptr) scratch->finish();
  }
  report->archived = fullest_archive(layers);
  report->move_ms = ms_since(moving);
  return Status::ok();
}

}  // namespace sharpi
