// SPDX-License-Identifier: MIT
#include "cpu/cpu_session.h"

#include <algorithm>
#include <cstring>

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
  if (placement.head != DeviceIndex::kHost) return 0;
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
  return rows;
}

CpuSession::CpuSession(MemoryMeter* meter, std::shared_ptr<const Plan> plan,
                       const SessionShape& shape, const StateReplay* replay)
    : StoredSession(DeviceIndex::kHost, std::move(plan), shape), meter_(meter), replay_(replay) {
  staged_.reserve(plan_->spec->layers.size());
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
  return rows;
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

ReplayTask CpuSession::replay_task(uint32_t source, const KvLedger& ledger, const AttentionSpec& of,
                                   const ReplayTurns& turns, uint32_t layer) const {
  ReplayTask t;
  t.kv = view(source);
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

uint64_t CpuSession::held_bytes_of(uint32_t group, uint32_t n_slots) const {
  return group_held_bytes(layout_.groups[group], n_slots);
}

Status CpuSession::read_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                             void* out) const {
  SHARPI_TRY(check_rows(layer, first, n));
  const KvView v = view(layer);
  const uint64_t bytes = value ? v.v_row_bytes : v.k_row_bytes;
  auto* to = static_cast<std::byte*>(out);
  for (uint32_t i = 0; i < n; ++i) {
    std::memcpy(to + i * bytes, value ? v.v_row(first + i) : v.k_row(first + i), bytes);
  }
  return Status::ok();
}

Status CpuSession::write_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                              const void* in) {
  SHARPI_TRY(check_rows(layer, first, n));
  const KvView v = view(layer);
  const uint64_t bytes = value ? v.v_row_bytes : v.k_row_bytes;
  const auto* from = static_cast<const std::byte*>(in);
  for (uint32_t i = 0; i < n; ++i) {
    std::memcpy(value ? v.v_row(first + i) : v.k_row(first + i), from + i * bytes, bytes);
  }
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
  const uint64_t row = value ? v.v_row_bytes : v.k_row_bytes;
  for (const KvPart& part : KvHeadParts(v, value, head)) {
    move_piece(base, v.block_stride, row, part.offset, part.bytes, keep);
  }
}

}  // namespace

/// The scores follow their rows.
void CpuSession::move_replay_scores(const KvMove& m) noexcept {
  uint64_t stride = 0;
  float* scores = replay_scores(m.layer, &stride);
  for (uint32_t h = 0; scores != nullptr && h < view(m.layer).n_heads; ++h, scores += stride) {
    const std::span<const uint32_t> keep = m.keep[m.keep.size() == 1 ? 0 : h];
    for (size_t i = 0; i < keep.size(); ++i) scores[i] = scores[keep[i]];
  }
}

void CpuSession::apply_moves() noexcept {
  for (const KvMove& m : staged_) {
    const KvView v = view(m.layer);
    move_replay_scores(m);
    if (m.keep.size() == 1) {
      move_piece(v.k, v.block_stride, v.k_row_bytes, 0, v.k_row_bytes, m.keep[0]);
      move_piece(v.v, v.block_stride, v.v_row_bytes, 0, v.v_row_bytes, m.keep[0]);
      continue;
    }
    for (uint32_t h = 0; h < v.n_heads; ++h) {
      move_head(v, false, h, m.keep[h]);
      move_head(v, true, h, m.keep[h]);
    }
  }
  staged_.clear();
}

}  // namespace sharpi::cpu
