// SPDX-License-Identifier: MIT
#include "cpu/cpu_session.h"

#include <algorithm>
#include <cstring>

#include "tier/head_moves.h"

namespace sharpi::cpu {
namespace {

uint64_t group_held_bytes(const KvGroup& g, uint64_t slots) {
  return round_up(g.block_bytes(slots), Reservation::kGranule);
}

std::string group_label(const KvGroup& g) {
  return g.ring ? "KV rings" : "KV rows";
}

MemoryRow kv_row(const KvGroup& g, uint64_t slots, uint64_t held) {
  MemoryRow row = make_row(TierId::kCpu, 0, SHARPI_ROW_KV, SHARPI_ROW_ANONYMOUS, group_label(g),
                           g.payload_bytes(slots), held);
  row.first_layer = g.layers.front().layer;
  row.n_layers = static_cast<uint32_t>(g.layers.size());
  row.per_session = 1;
  return row;
}

MemoryRow session_row(uint32_t purpose, const char* label, uint64_t bytes, uint32_t n_layers) {
  MemoryRow row = make_row(TierId::kCpu, 0, purpose, SHARPI_ROW_ANONYMOUS, label, bytes, bytes);
  row.per_session = 1;
  row.n_layers = n_layers;
  return row;
}

uint64_t logit_bytes(const ModelSpec& spec, const Placement& placement, const ModelShape& model) {
  if (placement.head != DeviceIndex::kHost || !spec.part.has_head()) return 0;
  return uint64_t{model.max_logit_rows} * spec.n_vocab * sizeof(float);
}

/// The rows besides KV that are not empty, from their sizes.
void push_fixed_rows(std::vector<MemoryRow>* rows, uint64_t state, uint32_t n_recurrent,
                     uint64_t checkpoints, uint64_t logits, uint64_t ring, uint64_t observer,
                     uint64_t replay, uint64_t drafts) {
  if (replay != 0) rows->push_back(session_row(SHARPI_ROW_CAPTURE, "replay scores", replay, 0));
  if (ring != 0) rows->push_back(session_row(SHARPI_ROW_CAPTURE, "query ring", ring, 0));
  if (observer != 0)
    rows->push_back(session_row(SHARPI_ROW_CAPTURE, "observer queries", observer, 0));
  if (state != 0) {
    rows->push_back(session_row(SHARPI_ROW_RECURRENT, "recurrent state", state, n_recurrent));
  }
  if (drafts != 0) {
    rows->push_back(session_row(SHARPI_ROW_RECURRENT, "rows of drafts", drafts, n_recurrent));
  }
  if (checkpoints != 0) {
    rows->push_back(
        session_row(SHARPI_ROW_CHECKPOINTS, "recurrent checkpoints", checkpoints, n_recurrent));
  }
  if (logits != 0) rows->push_back(session_row(SHARPI_ROW_LOGITS, "logits", logits, 0));
}

/// The tables of a group whose rows may come to be in blocks of one head.
uint64_t table_bytes_of(const HeadBlocks& heads) {
  return round_up(heads.table_bytes(), 64);
}

MemoryRow table_row(uint64_t bytes) {
  return session_row(SHARPI_ROW_COMPACTION, "tables of rows by head", bytes, 0);
}

}  // namespace

std::vector<MemoryRow> CpuSession::plan_rows(const ModelSpec& spec, const Placement& placement,
                                             const ModelShape& model, const SessionShape& session) {
  std::vector<MemoryRow> rows;
  const KvLayout layout = make_tier_kv_layout(spec, placement, DeviceIndex::kHost, model, session);
  for (const KvGroup& g : layout.groups) {
    rows.push_back(kv_row(g, g.capacity, group_held_bytes(g, g.capacity)));
  }
  const StateLayout state = make_state_layout(spec, placement, DeviceIndex::kHost);
  const QueryLayout queries = make_query_layout(spec, placement, DeviceIndex::kHost);
  push_fixed_rows(&rows, 2 * state.bytes, static_cast<uint32_t>(state.layers.size()),
                  session.n_checkpoints * state.bytes, logit_bytes(spec, placement, model),
                  queries.ring_bytes(session), queries.bytes(score_queries(session)),
                  make_replay_layout(spec, placement, DeviceIndex::kHost, model, session).bytes(),
                  make_draft_layout(spec, placement, DeviceIndex::kHost, session.n_draft).bytes());
  uint64_t tables = 0;
  for (const KvGroup& g : layout.groups) {
    if (!g.ring && score_queries(session) != 0) tables += table_bytes_of({g, g.capacity});
  }
  if (tables != 0) rows.push_back(table_row(tables));
  return rows;
}

CpuSession::CpuSession(MemoryMeter* meter, std::shared_ptr<const Plan> plan,
                       const SessionShape& shape, const StateReplay* replay)
    : StoredSession(DeviceIndex::kHost, std::move(plan), shape), meter_(meter), replay_(replay) {
  staged_.reserve(plan_->spec->layers.size());
  prepare_heads();
}

Result<std::unique_ptr<CpuSession>> CpuSession::create(MemoryMeter* meter,
                                                       std::shared_ptr<const Plan> plan,
                                                       const SessionShape& shape,
                                                       const StateReplay* replay) {
  std::unique_ptr<CpuSession> s(new CpuSession(meter, std::move(plan), shape, replay));
  SHARPI_TRY(s->reserve_groups(
      [meter](uint64_t bytes) { return Reservation::reserve(*meter, bytes, "KV rows"); }));
  const Plan& p = *s->plan_;
  const auto take = [meter](HostBuffer* to, uint64_t bytes, const char* what) -> Status {
    SHARPI_TRY_ASSIGN(*to, HostBuffer::allocate(*meter, bytes, what));
    return Status::ok();
  };
  const uint64_t state = s->state_layout_.bytes;
  SHARPI_TRY(take(&s->state_, 2 * state, "recurrent state"));
  SHARPI_TRY(take(&s->checkpoints_, shape.n_checkpoints * state, "recurrent checkpoints"));
  SHARPI_TRY(take(&s->logits_, logit_bytes(*p.spec, p.placement, p.model), "logits"));
  SHARPI_TRY(take(&s->ring_, s->query_layout_.ring_bytes(shape), "query ring"));
  SHARPI_TRY(take(&s->scores_, s->replay_layout_.bytes(), "replay scores"));
  SHARPI_TRY(take(&s->drafts_, s->draft_layout_.bytes(), "rows of drafts"));
  SHARPI_TRY(take(&s->observer_, s->query_layout_.bytes(score_queries(shape)), "observer queries"));
  if (score_queries(shape) != 0) SHARPI_TRY(s->take_head_tables());
  return s;
}

Status CpuSession::read_logits(uint32_t row, float* out) const {
  SHARPI_TRY(check_logits_row(row));
  const uint64_t n = plan_->spec->n_vocab;
  std::memcpy(out, logits() + row * n, logit_row_bytes());
  return Status::ok();
}

Status CpuSession::write_logits(uint32_t row, const float* in) {
  SHARPI_TRY(check_logits_row(row));
  const uint64_t n = plan_->spec->n_vocab;
  std::memcpy(logits() + row * n, in, logit_row_bytes());
  return Status::ok();
}

std::vector<MemoryRow> CpuSession::memory_rows() const {
  std::vector<MemoryRow> rows;
  for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
    rows.push_back(kv_row(layout_.groups[g], capacity_[g], ranges_[g].committed()));
    rows.back().shared_bytes = shared_bytes(g);
  }
  push_fixed_rows(&rows, state_.bytes(), static_cast<uint32_t>(state_layout_.layers.size()),
                  checkpoints_.bytes(), logits_.bytes(), ring_.bytes(), observer_.bytes(),
                  scores_.bytes(), drafts_.bytes());
  if (tables_.bytes() != 0) rows.push_back(table_row(tables_.bytes()));
  return rows;
}

uint64_t CpuSession::head_table_bytes() const {
  uint64_t bytes = 0;
  for (const HeadBlocks& h : heads_) bytes += table_bytes_of(h);
  return bytes;
}

Status CpuSession::take_head_tables() {
  if (has_head_tables()) return Status::ok();
  SHARPI_TRY_ASSIGN(tables_,
                    HostBuffer::allocate(*meter_, head_table_bytes(), "tables of rows by head"));
  std::byte* at = tables_.data();
  for (HeadBlocks& h : heads_) {
    h.use(at);
    at += table_bytes_of(h);
  }
  return Status::ok();
}

void CpuSession::drop_head_tables() noexcept {
  if (std::find(by_head_.begin(), by_head_.end(), 1) != by_head_.end()) return;
  for (HeadBlocks& h : heads_) h.use(nullptr);
  tables_ = HostBuffer();
}

uint64_t CpuSession::observer_bytes(uint32_t n) const {
  const bool enough = query_layout_.bytes(n) <= observer_.bytes();
  return enough ? 0 : query_layout_.bytes(n);
}

Status CpuSession::reserve_observer(uint32_t n) {
  SHARPI_TRY_ASSIGN(call_observer_,
                    HostBuffer::allocate(*meter_, observer_bytes(n), "observer queries"));
  return Status::ok();
}

Status CpuSession::read_queries(uint32_t layer, uint64_t first, uint32_t n, float* out) const {
  SHARPI_TRY(check_queries(layer, n));
  const uint64_t dim = query_layout_.dim_of_layer[layer], ring = query_rows(Capture::kRing);
  const float* from = queries(layer, Capture::kRing);
  for (uint64_t i = 0; i < n; ++i) {
    std::memcpy(out + i * dim, from + (first + i) % ring * dim, dim * sizeof(float));
  }
  return Status::ok();
}

Status CpuSession::write_queries(uint32_t layer, uint64_t first, uint32_t n, const float* in) {
  SHARPI_TRY(check_queries(layer, n));
  const uint64_t dim = query_layout_.dim_of_layer[layer], ring = query_rows(Capture::kRing);
  float* to = queries(layer, Capture::kRing);
  for (uint64_t i = 0; i < n; ++i) {
    std::memcpy(to + (first + i) % ring * dim, in + i * dim, dim * sizeof(float));
  }
  return Status::ok();
}

Status CpuSession::read_replay_scores(uint32_t layer, uint32_t head, uint32_t first, uint32_t n,
                                      float* out) const {
  SHARPI_TRY_ASSIGN(const float* from,
                    replay_layout_.part_of(layer, head, first, n, scores_.as<float>()));
  std::copy_n(from, n, out);
  return Status::ok();
}

Status CpuSession::write_replay_scores(uint32_t layer, uint32_t head, uint32_t first, uint32_t n,
                                       const float* in) {
  SHARPI_TRY_ASSIGN(float* to, replay_layout_.part_of(layer, head, first, n, scores_.as<float>()));
  std::copy_n(in, n, to);
  return Status::ok();
}

ReplayTask CpuSession::replay_task(uint32_t source, const KvLedger& ledger, const AttentionSpec& of,
                                   const ReplayTurns& turns, uint32_t layer) const {
  ReplayTask t;
  if (!is_layer_by_head(source)) t.kv = view(source);
  t.tail_slot = ledger.rows(source).n_compacted;
  t.n_heads = of.n_heads;
  t.every = shape_.replay_every;
  t.scale = of.scale;
  t.rope = &of.rope;
  t.cos = turns.cos(layer);
  t.sin = turns.sin(layer);
  t.scores = replay_scores(source, &t.stride);
  t.add = layer != source;
  return t;
}

ReplayTask CpuSession::replay_task_of_head(const ReplayTask& all, uint32_t source, uint32_t head,
                                           const KvLedger& ledger) const {
  ReplayTask t = all;
  const uint32_t lag = ledger.lag(source, head), n_kv = layout_.find(source)->n_heads;
  t.kv = head_view(source, head);
  t.n_heads = all.n_heads / n_kv;
  t.first_slot -= lag;
  t.tail_slot -= lag;
  t.q += uint64_t{head} * t.n_heads * t.kv.head_dim;
  t.scores += head * t.stride;
  return t;
}

uint64_t CpuSession::held_bytes_of(uint32_t group, uint32_t n_slots) const {
  return round_up(bytes_of(group, n_slots), Reservation::kGranule);
}

namespace {

/// n rows of a view from slot `first` on, one after the other, out of it or into it.
void copy_rows_out(const KvView& v, bool value, uint32_t first, uint32_t n, std::byte* to) {
  const uint64_t bytes = v.row_bytes(value);
  for (uint32_t i = 0; i < n; ++i) std::memcpy(to + i * bytes, v.row(value, first + i), bytes);
}
void copy_rows_in(const KvView& v, bool value, uint32_t first, uint32_t n, const std::byte* from) {
  const uint64_t bytes = v.row_bytes(value);
  for (uint32_t i = 0; i < n; ++i) std::memcpy(v.row(value, first + i), from + i * bytes, bytes);
}

}  // namespace

Status CpuSession::read_head_rows(uint32_t layer, uint32_t head, bool value, uint32_t first,
                                  uint32_t n, void* out) const {
  SHARPI_TRY(check_head_rows(layer, head, first, n));
  copy_rows_out(head_view(layer, head), value, first, n, static_cast<std::byte*>(out));
  return Status::ok();
}

Status CpuSession::write_head_rows(uint32_t layer, uint32_t head, bool value, uint32_t first,
                                   uint32_t n, const void* in) {
  SHARPI_TRY(check_head_rows(layer, head, first, n));
  copy_rows_in(head_view(layer, head), value, first, n, static_cast<const std::byte*>(in));
  return Status::ok();
}

Status CpuSession::read_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                             void* out) const {
  SHARPI_TRY(check_rows(layer, first, n));
  SHARPI_TRY(check_together(layer));
  copy_rows_out(view(layer), value, first, n, static_cast<std::byte*>(out));
  return Status::ok();
}

Status CpuSession::write_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                              const void* in) {
  SHARPI_TRY(check_rows(layer, first, n));
  SHARPI_TRY(check_together(layer));
  copy_rows_in(view(layer), value, first, n, static_cast<const std::byte*>(in));
  return Status::ok();
}

Status CpuSession::read_state(uint32_t layer, StatePart part, void* out) const {
  SHARPI_TRY(check_state(layer, part));
  if (pending() == 0) {
    std::memcpy(out, state(layer, part, false), state_bytes(layer, part));
    return Status::ok();
  }
  std::vector<float> both[2];
  both[0].resize(state_bytes(layer, StatePart::kState) / sizeof(float));
  both[1].resize(state_bytes(layer, StatePart::kConv) / sizeof(float));
  replay_->replay(*this, layer, both[0].data(), both[1].data());
  std::memcpy(out, both[part == StatePart::kConv].data(), state_bytes(layer, part));
  return Status::ok();
}

Status CpuSession::write_state(uint32_t layer, StatePart part, const void* in) {
  SHARPI_TRY(check_state(layer, part));
  drop_pending();
  std::memcpy(state(layer, part, false), in, state_bytes(layer, part));
  return Status::ok();
}

void CpuSession::clear_state() noexcept {
  drop_pending();
  if (state_layout_.bytes != 0) {
    std::memset(state_base(false), 0, state_layout_.bytes);
  }
}

Status CpuSession::save_checkpoint(uint32_t index) {
  SHARPI_TRY_ASSIGN(std::byte * to, checkpoint_at(index));
  if (pending() == 0) {
    if (state_layout_.bytes != 0) std::memcpy(to, state_base(false), state_layout_.bytes);
    return Status::ok();
  }
  for (const StateLayout::Layer& l : state_layout_.layers) {
    replay_->replay(*this, l.layer, reinterpret_cast<float*>(to + l.state_offset),
                    reinterpret_cast<float*>(to + l.conv_offset));
  }
  return Status::ok();
}

Status CpuSession::load_checkpoint(uint32_t index) {
  SHARPI_TRY_ASSIGN(const std::byte* from, checkpoint_at(index));
  drop_pending();
  if (state_layout_.bytes != 0) std::memcpy(state_base(false), from, state_layout_.bytes);
  return Status::ok();
}

Status CpuSession::stage_moves(std::span<const KvMove> moves) {
  SHARPI_TRY(check_moves(moves));
  SHARPI_TRY(check_by_head(*this, moves));
  staged_.assign(moves.begin(), moves.end());
  return Status::ok();
}

namespace {

/// Moves one contiguous piece of every kept row; ascending sources never precede their targets.
void move_piece(std::byte* base, uint64_t block_stride, uint64_t row_bytes, uint64_t offset,
                uint64_t bytes, std::span<const uint32_t> keep) {
  const auto at = [&](uint64_t slot) {
    return base + slot / kKvBlockSlots * block_stride + slot % kKvBlockSlots * row_bytes + offset;
  };
  for (uint64_t i = 0; i < keep.size(); ++i) {
    if (keep[i] != i) std::memmove(at(i), at(keep[i]), bytes);
  }
}

/// One head's part of every row.
void move_head(const KvView& v, bool value, uint32_t head, std::span<const uint32_t> keep) {
  std::byte* base = value ? v.v : v.k;
  const uint64_t row = v.row_bytes(value);
  for (const KvPart& part : KvHeadParts(v, value, head)) {
    move_piece(base, v.block_stride, row, part.offset, part.bytes, keep);
  }
}

}  // namespace

/// The scores follow their rows.
void CpuSession::move_replay_scores(const KvMove& m) noexcept {
  uint64_t stride = 0;
  float* scores = replay_scores(m.layer, &stride);
  const uint32_t n_heads = layout_.find(m.layer)->n_heads;
  for (uint32_t h = 0; scores != nullptr && h < n_heads; ++h, scores += stride) {
    const std::span<const uint32_t> keep = m.keep[m.keep.size() == 1 ? 0 : h];
    for (size_t i = 0; i < keep.size(); ++i) scores[i] = scores[keep[i]];
  }
}

void CpuSession::move_rows(const KvMove& m) noexcept {
  const KvLayerLayout& layer = *layout_.find(m.layer);
  if (is_layer_by_head(m.layer)) {
    for (uint32_t h = 0; h < layer.n_heads; ++h) {
      const KvView v = head_view(m.layer, h);
      const std::span<const uint32_t> keep = m.keep[m.keep.size() == 1 ? 0 : h];
      for (uint32_t i = 0; i < keep.size(); ++i) {
        if (keep[i] == i) continue;
        for (const bool value : layer.sides())
          std::memcpy(v.row(value, i), v.row(value, keep[i]), v.row_bytes(value));
      }
    }
    return;
  }
  const KvView v = view(m.layer);
  for (const bool value : layer.sides()) {
    const uint64_t row = v.row_bytes(value);
    if (m.keep.size() == 1) move_piece(value ? v.v : v.k, v.block_stride, row, 0, row, m.keep[0]);
    for (uint32_t h = 0; m.keep.size() != 1 && h < v.n_heads; ++h)
      move_head(v, value, h, m.keep[h]);
  }
}

/// The rows of a group that have moved to the front of their heads go to blocks of one head.
void CpuSession::keep_by_head(uint32_t group) noexcept {
  count_heads(*this, group, staged_, &counts_);
  std::byte* const base = group_base(group);
  const uint64_t held = ranges_[group].committed();
  unpoison(base, held);
  if (is_by_head(group)) {
    heads_[group].put_in_order(base, heads_[group].bytes(capacity_[group]), counts_);
  } else {
    heads_[group].take_apart(base, counts_);
  }
  by_head_[group] = 1;
  set_capacity(group, heads_[group].slots_in({}, held, wanted_[group]));
}

void CpuSession::apply_moves() noexcept {
  for (const KvMove& m : staged_) {
    move_replay_scores(m);
    move_rows(m);
  }
  for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
    if (ends_by_head(*this, g, staged_)) keep_by_head(g);
  }
  staged_.clear();
}

}  // namespace sharpi::cpu
