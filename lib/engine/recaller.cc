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

}  // namespace

/// Memory of one call, taken before the first row moves.
struct Recaller::Desk {
  /// What changes places in a head: rows of the archive, and slots of the session, ascending.
  struct Exchange {
    std::vector<uint32_t> in, out;
  };
  std::unique_ptr<ScoreScratch> scratch;
  uint32_t n_blocks = 0;                       // whose rows are scored, of a head
  std::vector<std::byte> keys;                 // of the session's rows and of these blocks
  std::vector<float> terms;                    // by position
  std::vector<float> bounds, wanted;           // one head's, by block and by key
  std::vector<float> by_position;              // terms, spread
  std::vector<uint32_t> blocks, order;         // one head's
  std::vector<std::vector<Exchange>> changes;  // [layer][head]
  std::vector<std::byte> rows;                 // one head's, and behind them those that come in
  std::vector<uint32_t> positions;             // of the same
  std::vector<float> scores;                   // of the same
  uint32_t n_keys = 0;                         // the most that `keys` takes
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
Status Recaller::make_desk(const sharpi_recall_params& p, uint32_t n_queries, Lease* lease,
                           Desk* d) {
  const uint32_t archived = fullest_archive(core_.compactable_layers()),
                 slots = core_.ledger().max_slots(), n_ctx = core_.shape.n_ctx;
  const auto all_blocks = static_cast<uint32_t>(div_up(archived, kArchiveBlock));
  const uint64_t wanted = div_up(std::max(4 * uint64_t{p.budget}, kScoredRows), kArchiveBlock);
  d->n_blocks = static_cast<uint32_t>(std::min<uint64_t>(wanted, all_blocks));
  d->n_keys = slots + d->n_blocks * kArchiveBlock;
  const uint32_t most_in = std::min(p.budget, archived), n_rows = slots + most_in;
  uint64_t k_bytes = 0, row_bytes = 0, heads = 0;
  for (const uint32_t l : core_.compactable_layers()) {
    const uint64_t k = core_.archive.row_bytes(l, false);
    k_bytes = std::max(k_bytes, k);
    row_bytes = std::max(row_bytes, k + core_.archive.row_bytes(l, true));
    heads += core_.archive.n_heads(l);
  }
  const uint64_t key_bytes = round_up(d->n_keys, kKvBlockSlots) * k_bytes;
  const uint32_t order = slots + archived;  // lists of a head's rows, here and there
  const ScoreShape shape{d->n_keys, n_queries, n_ctx};
  const TierModel& tier = *core_.model->tiers()[core_.tier_index(core_.compactable_layers()[0])];
  HeldBytes held = HeldBytes::of(tier.score_scratch_rows(shape));
  held += HeldBytes::of_host(key_bytes + n_rows * row_bytes +
                             sizeof(uint32_t) *
                                 (2 * uint64_t{n_ctx} + d->n_keys + 2 * uint64_t{all_blocks} +
                                  order + 2 * uint64_t{n_rows} + 2 * heads * most_in));
  SHARPI_TRY(lease->take(held));
  SHARPI_TRY_ASSIGN(d->scratch, tier.create_score_scratch(shape));
  d->keys.resize(key_bytes);
  d->terms.resize(n_ctx);
  d->by_position.resize(n_ctx);
  d->wanted.resize(d->n_keys);
  d->blocks.resize(all_blocks);
  d->bounds.resize(all_blocks);
  d->order.resize(order);
  d->rows.resize(n_rows * row_bytes);
  d->positions.resize(n_rows);
  d->scores.resize(n_rows);
  d->changes.resize(core_.spec().n_layers());
  for (const uint32_t l : core_.compactable_layers()) {
    d->changes[l].resize(core_.archive.n_heads(l));
    for (Desk::Exchange& e : d->changes[l]) {
      e.in.reserve(most_in);
      e.out.reserve(most_in);
    }
  }
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

/// The session's rows of a head and those of its archive's best blocks, in one softmax: the largest
/// terms go to their positions.
Status Recaller::score_head(const CompactRequest& r, const HeadRows& rows, uint32_t layer,
                            uint32_t head, Desk* d) {
  const RowArchive& archive = core_.archive;
  const TierModel& tier = *core_.model->tiers()[core_.tier_index(layer)];
  TierSession& session = core_.tier_of(layer);
  const uint32_t archived = archive.n_rows(layer, head);
  const auto blocks = static_cast<uint32_t>(div_up(archived, kArchiveBlock));
  const KvLayerLayout& own = *core_.store(layer).layout().find(layer);
  KeysOfHead keys;
  keys.head = head;
  keys.n = blocks;
  keys.bounds = archive.bounds(layer, head, 0).data();
  const std::vector<float>& bound = d->bounds;
  SHARPI_TRY(tier.score_keys(session, request(r, layer), keys, *d->scratch, d->bounds.data()));
  const auto first = d->blocks.begin(), end = first + blocks;
  std::iota(first, end, 0u);
  const uint32_t best = std::min(d->n_blocks, blocks);
  std::partial_sort(first, first + best, end, [&](uint32_t a, uint32_t b) {
    return bound[a] != bound[b] ? bound[a] > bound[b] : a < b;
  });
  const uint32_t k_bytes = rows.row_bytes(false);
  uint32_t n = 0;
  const auto next = [&] { return d->keys.data() + uint64_t{n} * k_bytes; };
  for (uint32_t i = 0; i < best; ++i) {
    const uint32_t from = d->blocks[i] * kArchiveBlock,
                   to = std::min(from + kArchiveBlock, archived);
    std::copy_n(archive.row(layer, head, false, from), uint64_t{to - from} * k_bytes, next());
    for (uint32_t row = from; row < to; ++row) d->order[n++] = row;
  }
  keys.n_seen = n;
  for (uint32_t slot = 0; slot < rows.n_rows(); ++slot) {
    rows.read(slot, false, next());
    ++n;
  }
  keys.n = n;
  keys.bounds = nullptr;
  keys.keys.k = keys.keys.v = d->keys.data();
  keys.keys.block_stride = uint64_t{kKvBlockSlots} * k_bytes;
  keys.keys.k_row_bytes = keys.keys.v_row_bytes = k_bytes;
  keys.keys.k_dtype = keys.keys.v_dtype = own.k_dtype;
  keys.keys.n_heads = 1;
  keys.keys.head_dim = own.head_dim;
  SHARPI_TRY(tier.score_keys(session, request(r, layer), keys, *d->scratch, d->wanted.data()));
  const std::span<const uint32_t> positions = archive.positions(layer, head);
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t p = i < keys.n_seen ? positions[d->order[i]] : rows.position(i - keys.n_seen);
    d->terms[p] = std::max(d->terms[p], d->wanted[i]);
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
    for (uint32_t h = 0; h < core_.archive.n_heads(layers[i]); ++h) {
      const HeadRows rows(core_, layers[i], h);
      SHARPI_TRY(score_head(r, rows, layers[i], h, d));
    }
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
  const auto n_in = static_cast<uint32_t>(archived.size()), n_out = last - first;
  const uint32_t most = std::min({budget, n_in, n_out});
  if (most == 0) return;
  const auto in = d->order.begin(), out = in + n_in;
  std::iota(in, out, 0u);
  std::iota(out, out + n_out, first);
  const auto score_in = [&](uint32_t i) { return d->by_position[archived[i]]; };
  const auto score_out = [&](uint32_t slot) { return d->by_position[rows.position(slot)]; };
  std::partial_sort(in, in + most, out, [&](uint32_t a, uint32_t b) {
    return score_in(a) != score_in(b) ? score_in(a) > score_in(b) : a < b;
  });
  std::partial_sort(out, out + most, out + n_out, [&](uint32_t a, uint32_t b) {
    return score_out(a) != score_out(b) ? score_out(a) < score_out(b) : a > b;
  });
  Desk::Exchange& e = d->changes[layer][head];
  for (uint32_t i = 0; i < most && score_in(in[i]) > score_out(out[i]); ++i) {
    e.in.push_back(in[i]);
    e.out.push_back(out[i]);
  }
  std::sort(e.in.begin(), e.in.end());
  std::sort(e.out.begin(), e.out.end());
}

/// The rows of a head change places; those of the session stay ascending by position.
void Recaller::exchange(uint32_t layer, uint32_t head, Desk* d) noexcept {
  RowArchive& archive = core_.archive;
  HeadRows rows(core_, layer, head);
  const Desk::Exchange& e = d->changes[layer][head];
  const uint32_t n = rows.n_rows(), n_in = static_cast<uint32_t>(e.in.size());
  const uint32_t k = rows.row_bytes(false), bytes = k + archive.row_bytes(layer, true);
  const auto place = [&](uint32_t i, bool value) {
    return d->rows.data() + uint64_t{i} * bytes + (value ? k : 0);
  };
  const auto read = [&](uint32_t i, uint32_t position, float score, auto&& row) {
    d->positions[i] = position;
    d->scores[i] = score;
    for (const bool value : rows.sides()) row(value, place(i, value));
  };
  // The rows that stay, then those that come in.
  uint32_t at = 0;
  for (uint32_t slot = 0, o = 0; slot < n; ++slot) {
    if (o < n_in && e.out[o] == slot) {
      ++o;
      continue;
    }
    read(at++, rows.position(slot), rows.scores() == nullptr ? 0.0f : rows.scores()[slot],
         [&](bool value, std::byte* to) { rows.read(slot, value, to); });
  }
  for (const uint32_t i : e.in) {
    read(at++, archive.positions(layer, head)[i], archive.score(layer, head, i),
         [&](bool value, std::byte* to) {
           std::copy_n(archive.row(layer, head, value, i), archive.row_bytes(layer, value), to);
         });
  }
  archive.remove(layer, head, e.in);
  if (n_in != 0) archive.insert(layer, head, n_in, RowsAtSlots(rows, e.out));
  uint32_t* order = d->order.data();
  for (uint32_t slot = 0, a = 0, b = n - n_in; slot < n; ++slot) {
    const bool stayed = b == n || (a < n - n_in && d->positions[a] < d->positions[b]);
    order[slot] = stayed ? a++ : b++;
  }
  for (uint32_t slot = 0; slot < n; ++slot) {
    for (const bool value : rows.sides()) rows.write(slot, value, place(order[slot], value));
    if (rows.scores() != nullptr) rows.scores()[slot] = d->scores[order[slot]];
  }
  for (uint32_t slot = 0; slot < n; ++slot) order[slot] = d->positions[order[slot]];
  core_.transcript.set_positions(layer, head, {order, n});
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
    for (size_t h = desk.changes[l].size(); h-- > 0;) exchange(l, static_cast<uint32_t>(h), &desk);
  }
  report->archived = fullest_archive(layers);
  report->move_ms = ms_since(moving);
  return Status::ok();
}

}  // namespace sharpi
