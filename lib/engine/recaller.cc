// SPDX-License-Identifier: MIT
#include "engine/recaller.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <memory>
#include <utility>

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

/// Positions of rows that go, of a head's own.
class PositionsOf final : public RowArchive::Positions {
 public:
  PositionsOf(const uint32_t* own, std::span<const uint32_t> slots) : own_(own), slots_(slots) {}
  uint32_t position(uint32_t i) const override { return own_[slots_[i]]; }

 private:
  const uint32_t* own_;
  std::span<const uint32_t> slots_;
};

}  // namespace

/// Memory of one call, taken before the first row moves.
struct Recaller::Desk {
  /// Slots of the archive whose rows come into a head, and those of the session that they take, by
  /// position.
  std::span<uint32_t> in(uint32_t head, size_t n) { return part(&in_, head, n); }
  std::span<uint32_t> slots_in(uint32_t head, size_t n) { return part(&slots_in_, head, n); }
  void make_places() {
    const uint64_t most = uint64_t{tables.most_heads} * tables.n_exchanged;
    in_.resize(most);
    slots_in_.resize(most);
  }
  std::vector<std::unique_ptr<ScoreScratch>> scratch;  // per tier, null where it has no such layers
  RecallTables tables;
  std::vector<HeadExchange> moves;        // one layer's
  std::vector<uint32_t> own;              // [head][n_slots]: positions as they are
  std::vector<uint32_t> stay, stay_at;    // one head's rows that stay, and their positions
  std::vector<uint64_t> goes;             // a bit for each row of a head: it goes
  std::vector<uint32_t> positions, from;  // [head][n_slots]: as they will be; HeadExchange's
  std::vector<uint32_t> slot_at;          // of archived rows that come in, by position
  std::vector<uint64_t> comes;            // a bit for each position: one does
  /// One head's, and behind them those that come; where rows are in host memory.
  std::vector<std::byte> rows;
  std::vector<float> scores;

 private:
  std::span<uint32_t> part(std::vector<uint32_t>* lists, uint32_t head, size_t n) const {
    return {lists->data() + uint64_t{head} * tables.n_exchanged, n};
  }
  std::vector<uint32_t> in_, slots_in_;  // of a layer, [head][n_exchanged]
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
  bool on_host = false;  // rows of a layer are
  for (const uint32_t l : layers) {
    const size_t t = core_.tier_index(l);
    scores[t] = true;
    on_host = on_host || core_.tiers[t]->remote_rows() == nullptr;
  }
  HeldBytes held;
  for (size_t t = 0; t < scores.size(); ++t) {
    if (scores[t]) held += HeldBytes::of(core_.model->tiers()[t]->score_scratch_rows(shape));
  }
  const uint64_t n_rows = on_host ? uint64_t{tables.n_slots} + tables.n_exchanged : 0,
                 n_words = div_up(tables.n_ctx, 64);
  held += HeldBytes::of_host(
      n_rows * (shape.row_bytes + sizeof(float)) + tables.bytes() + n_words * sizeof(uint64_t) +
      div_up(tables.n_slots, 64) * sizeof(uint64_t) +
      sizeof(uint32_t) * (tables.n_ctx + (3 * uint64_t{tables.most_heads} + 2) * tables.n_slots +
                          2 * uint64_t{tables.most_heads} * tables.n_exchanged));
  SHARPI_TRY(lease->take(held));
  for (size_t t = 0; t < scores.size(); ++t) {
    if (!scores[t]) continue;
    SHARPI_TRY_ASSIGN(d->scratch[t], core_.model->tiers()[t]->create_score_scratch(shape));
  }
  tables.reserve();
  d->moves.reserve(tables.most_heads);
  for (std::vector<uint32_t>* of_heads : {&d->own, &d->positions, &d->from})
    of_heads->resize(uint64_t{tables.most_heads} * tables.n_slots);
  d->stay.resize(tables.n_slots);
  d->stay_at.resize(tables.n_slots);
  d->goes.resize(div_up(tables.n_slots, 64));
  d->slot_at.resize(tables.n_ctx);
  d->comes.resize(n_words);
  d->rows.resize(n_rows * shape.row_bytes);
  d->scores.resize(n_rows);
  d->make_places();
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

/// Of a head's lists, those that change places stay: the best archived rows for the worst of the
/// session, as long as they are better. How many there are.
uint32_t Recaller::pair_head(uint32_t layer, uint32_t head, Desk* d) const {
  const std::span<const uint32_t> archived = core_.archive.positions(layer, head);
  const RecallTables::List list = d->tables.in(layer, head);
  const std::span<uint32_t> in = list.span(), out = d->tables.out(layer, head).span();
  const float* scores = d->tables.by_position.data();
  uint32_t* const own = d->own.data() + uint64_t{head} * d->tables.n_slots;
  copy_positions(core_.ledger(), layer, head, 0, core_.ledger().n_slots(layer, head), own);
  // Free slots that were chosen for want of rows that count: nothing is worse.
  const auto score_in = [&](uint32_t slot) {
    return archived[slot] == kNoRow ? -1.0f : scores[archived[slot]];
  };
  const auto score_out = [&](uint32_t slot) { return scores[own[slot]]; };
  float worst_in = std::numeric_limits<float>::infinity(), best_out = -worst_in;
  for (const uint32_t slot : in) worst_in = std::min(worst_in, score_in(slot));
  for (const uint32_t slot : out) best_out = std::max(best_out, score_out(slot));
  if (worst_in > best_out) return *list.n;
  std::sort(in.begin(), in.end(), [&](uint32_t a, uint32_t b) {
    return score_in(a) != score_in(b) ? score_in(a) > score_in(b) : a < b;
  });
  std::sort(out.begin(), out.end(), [&](uint32_t a, uint32_t b) {
    return score_out(a) != score_out(b) ? score_out(a) < score_out(b) : a < b;
  });
  uint32_t n = 0;
  while (n < in.size() && score_in(in[n]) > score_out(out[n])) ++n;
  std::sort(in.begin(), in.begin() + n);
  std::sort(out.begin(), out.begin() + n);
  return *list.n = n;
}

/// The archived rows that come into a head, by position.
void Recaller::order_head(uint32_t layer, uint32_t head, Desk* d) const {
  const std::span<const uint32_t> archived = core_.archive.positions(layer, head),
                                  places = d->tables.in(layer, head).span();
  uint32_t* come = d->in(head, places.size()).data();
  size_t first = d->comes.size(), last = 0;
  for (const uint32_t slot : places) {
    const uint32_t position = archived[slot];
    const size_t word = position / 64;
    d->slot_at[position] = slot;
    d->comes[word] |= uint64_t{1} << position % 64;
    first = std::min(first, word);
    last = std::max(last, word + 1);
  }
  for (size_t word = first; word < last; ++word) {
    for (uint64_t& bits = d->comes[word]; bits != 0; bits &= bits - 1)
      *come++ = d->slot_at[word * 64 + static_cast<size_t>(std::countr_zero(bits))];
  }
}

/// The rows of a head that stay; how many there are.
uint32_t Recaller::list_stay(uint32_t layer, uint32_t head, Desk* d) const {
  const uint32_t n = core_.ledger().n_slots(layer, head);
  const uint32_t* own = d->own.data() + uint64_t{head} * d->tables.n_slots;
  uint32_t *const stay = d->stay.data(), *const stay_at = d->stay_at.data();
  for (const uint32_t row : d->tables.out(layer, head).span())
    d->goes[row / 64] |= uint64_t{1} << row % 64;
  uint32_t n_stay = 0;
  for (uint32_t first = 0; first < n; first += 64) {
    uint64_t goes = std::exchange(d->goes[first / 64], uint64_t{0});
    for (uint32_t row = first, end = std::min(first + 64, n); row < end; ++row, goes >>= 1) {
      stay[n_stay] = row;  // without a branch, which nothing could foresee
      stay_at[n_stay] = own[row];
      n_stay += goes % 2 == 0 ? 1 : 0;
    }
  }
  return n_stay;
}

/// Where the rows of a head will be, by position: those that stay, and in between runs of those
/// that come in.
void Recaller::place_head(uint32_t layer, uint32_t head, Desk* d) const {
  order_head(layer, head, d);
  const uint32_t n_stay = list_stay(layer, head, d);
  const std::span<const uint32_t> archived = core_.archive.positions(layer, head);
  const size_t n_in = d->tables.in(layer, head).span().size();
  const std::span<const uint32_t> come = d->in(head, n_in);
  uint32_t* const slots_in = d->slots_in(head, n_in).data();
  const uint32_t *const stay = d->stay.data(), *const stay_at = d->stay_at.data();
  uint32_t* const to = d->positions.data() + uint64_t{head} * d->tables.n_slots;
  uint32_t* const from = d->from.data() + uint64_t{head} * d->tables.n_slots;
  uint32_t slot = 0, at = 0;
  const auto stay_up_to = [&](uint32_t end) {
    std::copy(stay_at + at, stay_at + end, to + slot);
    std::copy(stay + at, stay + end, from + slot);
    slot += end - at;
    at = end;
  };
  for (size_t i = 0; i < n_in; ++i) {
    const uint32_t position = archived[come[i]];
    if (at < n_stay && stay_at[at] < position)
      stay_up_to(static_cast<uint32_t>(std::lower_bound(stay_at + at, stay_at + n_stay, position) -
                                       stay_at));
    slots_in[i] = slot;
    to[slot] = position;
    from[slot] = slot;
    ++slot;
  }
  stay_up_to(n_stay);
}

/// The rows of a head change places, in host memory.
void Recaller::exchange_head(uint32_t layer, const HeadExchange& m, Desk* d) noexcept {
  const uint32_t head = m.head;
  RowArchive& archive = core_.archive;
  HeadRows rows(core_, layer, head);
  const uint32_t n = rows.n_rows(), n_in = static_cast<uint32_t>(m.archived.size());
  const uint32_t k = rows.row_bytes(false), bytes = k + archive.row_bytes(layer, true);
  const auto place = [&](uint32_t i, bool value) {
    return d->rows.data() + uint64_t{i} * bytes + (value ? k : 0);
  };
  // The rows that stay, then those that come in.
  uint32_t at = 0;
  for (uint32_t slot = 0, o = 0; slot < n; ++slot) {
    if (o < n_in && m.slots_out[o] == slot) {
      ++o;
      continue;
    }
    d->scores[at] = rows.scores() == nullptr ? 0.0f : rows.scores()[slot];
    for (const bool value : rows.sides()) rows.read(slot, value, place(at, value));
    ++at;
  }
  for (const uint32_t i : m.archived) {
    d->scores[at] = archive.score(layer, head, i);
    for (const bool value : rows.sides())
      std::copy_n(archive.row(layer, head, value, i), archive.row_bytes(layer, value),
                  place(at, value));
    ++at;
  }
  archive.replace(layer, head, m.places, RowsAtSlots(rows, m.slots_out));
  for (uint32_t slot = 0, stayed = 0, came = 0; slot < n; ++slot) {
    const bool comes = came < n_in && m.slots_in[came] == slot;
    const uint32_t from = comes ? n - n_in + came++ : stayed++;
    for (const bool value : rows.sides()) rows.write(slot, value, place(from, value));
    if (rows.scores() != nullptr) rows.scores()[slot] = d->scores[from];
  }
}

/// The rows of a layer change places; those of the session stay ascending by position.
void Recaller::exchange_layer(uint32_t layer, Desk* d) noexcept {
  d->moves.clear();
  RecallTables& tables = d->tables;
  for (uint32_t h = 0; h < core_.archive.n_heads(layer); ++h) {
    place_head(layer, h, d);
    const std::span<const uint32_t> places = tables.in(layer, h).span();
    const std::span<const uint32_t> from{d->from.data() + uint64_t{h} * tables.n_slots,
                                         core_.ledger().n_slots(layer, h)};
    if (places.empty()) continue;
    d->moves.push_back({h, from, d->in(h, places.size()), d->slots_in(h, places.size()),
                        tables.out(layer, h).span(), places});
  }
  const size_t t = core_.tier_index(layer);
  if (RemoteRows* remote = core_.tiers[t]->remote_rows(); remote != nullptr) {
    for (const HeadExchange& m : d->moves) {
      const PositionsOf rows(d->own.data() + uint64_t{m.head} * tables.n_slots, m.slots_out);
      core_.archive.replace(layer, m.head, m.places, rows, tables.in(layer, m.head).at);
    }
    remote->exchange(layer, d->moves, core_.archive, *d->scratch[t]);
  } else {
    for (const HeadExchange& m : d->moves) exchange_head(layer, m, d);
  }
  // From the last head to the first, which may have one list of positions until then.
  for (uint32_t h = core_.archive.n_heads(layer); h-- > 0;)
    core_.transcript.set_positions(
        layer, h,
        {d->positions.data() + uint64_t{h} * d->tables.n_slots, core_.ledger().n_slots(layer, h)});
}

/// Layer by layer, so that a device moves rows of one while the host sees to the next.
Status Recaller::change_places(std::span<const uint32_t> layers, Desk* d,
                               sharpi_recall_report* report) {
  for (const uint32_t l : layers) {
    uint32_t most = 0;
    uint64_t n = 0;
    for (uint32_t h = 0; h < core_.archive.n_heads(l); ++h) {
      const uint32_t n_in = pair_head(l, h, d);
      most = std::max(most, n_in);
      n += n_in;
    }
    if (n == 0) continue;
    if (report->total_rows == 0) {  // nothing has moved yet, and nothing fails later
      SHARPI_TRY(core_.take_positions());
      SHARPI_TRY(memory_.own_rows([](uint32_t) { return 0u; }));
    }
    report->rows_in = std::max(report->rows_in, most);
    report->total_rows += n;
    ++report->n_layers;
    exchange_layer(l, d);
  }
  return Status::ok();
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
  const std::vector<uint32_t> layers = core_.compactable_layers();
  const bool has_rows = desk.tables.n_blocks != 0;
  if (has_rows) SHARPI_TRY(score(r, &desk));
  report->n_blocks = desk.tables.n_blocks;
  report->score_ms = ms_since(start);
  const auto moving = std::chrono::steady_clock::now();
  if (has_rows) SHARPI_TRY(change_places(layers, &desk, report));
  if (core_.shape.replay_every != 0) core_.transcript.mark_scored();
  for (const auto& scratch : desk.scratch) {
    if (scratch != nullptr) scratch->finish();
  }
  report->archived = fullest_archive(layers);
  report->move_ms = ms_since(moving);
  return Status::ok();
}

}  // namespace sharpi
