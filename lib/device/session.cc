// SPDX-License-Identifier: MIT
#include "device/session.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "device/head_moves.h"
#include "device/kernels.h"
#include "device/launches.h"
#include "device/loaded_model.h"
#include "device/pass_kernels.h"

namespace sharpi::device {
namespace {

class RowList {
 public:
  RowList(const Device& device, std::vector<MemoryRow>* rows) : device_(device), rows_(rows) {}
  void kv(const KvGroup& g, uint64_t slots, uint64_t held) {
    MemoryRow row = device_.row(SHARPI_ROW_KV, SHARPI_ROW_DEVICE, g.ring ? "KV rings" : "KV rows",
                                g.payload_bytes(slots), held);
    row.first_layer = g.layers.front().layer;
    row.n_layers = static_cast<uint32_t>(g.layers.size());
    push(row);
  }
  void device(uint32_t purpose, const char* label, uint64_t bytes, uint32_t n_layers = 0) {
    if (bytes == 0) return;
    MemoryRow row =
        device_.row(purpose, SHARPI_ROW_DEVICE, label, bytes, device_.held_bytes(bytes));
    row.n_layers = n_layers;
    push(row);
  }
  void pinned(uint32_t purpose, const char* label, uint64_t bytes, uint32_t n_layers = 0) {
    if (bytes == 0) return;
    MemoryRow row =
        device_.row(purpose, SHARPI_ROW_PINNED, label, bytes, device_.pinned_held_bytes(bytes));
    row.n_layers = n_layers;
    push(row);
  }
  /// Several blocks, which hold so much together.
  void pinned_blocks(uint32_t purpose, const char* label, const LentBytes& of) {
    if (of.bytes != 0) push(device_.row(purpose, SHARPI_ROW_PINNED, label, of.bytes, of.held));
  }

 private:
  void push(MemoryRow row) {
    row.per_session = 1;
    rows_->push_back(row);
  }
  const Device& device_;
  std::vector<MemoryRow>* rows_;
};

/// Sizes of everything but KV rows.
struct FixedBytes {
  uint64_t state = 0, drafts = 0, checkpoints = 0, logits = 0, logits_host = 0, rows_host = 0;
  BestBytes best;
  uint64_t ring = 0, observer = 0, replay = 0, moves = 0, archive = 0, bounds = 0;
  LentBytes lent;
  HeadTableBytes tables;
  uint32_t n_recurrent = 0;
};

FixedBytes fixed_bytes(const Device& device, const ModelSpec& spec, const Placement& placement,
                       const ModelShape& model, const SessionShape& session,
                       const KvLayout& layout) {
  FixedBytes b;
  // An MTP block of a bounded session drops rows and scores none.
  const bool moves = score_queries(session) != 0 || session.kv_budget != 0;
  const bool replays = session.replay_every != 0;
  if (moves) b.moves = move_list_bytes(layout, replays);
  if (score_queries(session) != 0 && device.kernels().keeps_by_head()) {
    b.moves = std::max(b.moves, head_move_bytes(layout));
    std::vector<HeadBlocks> heads;
    for (const KvGroup& g : layout.groups)
      heads.push_back(g.ring ? HeadBlocks() : HeadBlocks(g, g.capacity));
    b.tables = HeadTables::bytes_of(heads);
  }
  if (session.archive_rows != 0) {
    b.archive = archive_stage_bytes(layout);
    b.bounds = archive_bounds_bytes(layout, session.archive_rows);
    b.lent = lent_bytes(device, layout, spec, session);
  }
  const StateLayout state = make_state_layout(spec, placement, DeviceIndex::kHere);
  const QueryLayout queries = make_query_layout(spec, placement, DeviceIndex::kHere);
  b.n_recurrent = static_cast<uint32_t>(state.layers.size());
  b.state = 2 * state.bytes;
  b.drafts = make_draft_layout(spec, placement, DeviceIndex::kHere, session.n_draft).copies_bytes();
  b.checkpoints = session.n_checkpoints * state.bytes;
  if (!layout.groups.empty()) b.rows_host = 2 * kRowPiece;
  if (has_head(spec, placement)) {
    b.logits_host = uint64_t{spec.n_vocab} * sizeof(float);
    b.logits = model.max_logit_rows * uint64_t{spec.n_vocab} * sizeof(float);
    b.best = best_bytes(device.kernels(), spec.n_vocab, session.n_draft + 1);
  }
  b.ring = queries.ring_bytes(session);
  b.observer = queries.bytes(score_queries(session));
  b.replay = make_replay_layout(spec, placement, DeviceIndex::kHere, model, session).bytes();
  return b;
}

void push_fixed(RowList* rows, const FixedBytes& b) {
  rows->device(SHARPI_ROW_CAPTURE, "query ring", b.ring);
  rows->device(SHARPI_ROW_CAPTURE, "observer queries", b.observer);
  rows->device(SHARPI_ROW_CAPTURE, "replay scores", b.replay);
  rows->device(SHARPI_ROW_COMPACTION, "lists of kept rows", b.moves);
  rows->device(SHARPI_ROW_COMPACTION, "tables of rows by head", b.tables.device);
  rows->pinned(SHARPI_ROW_COMPACTION, "tables of rows by head", b.tables.pinned);
  rows->device(SHARPI_ROW_COMPACTION, "rows on their way to the archive", b.archive);
  rows->pinned(SHARPI_ROW_COMPACTION, "rows on their way to the archive", b.archive);
  rows->device(SHARPI_ROW_COMPACTION, "bounds of archived rows", b.bounds);
  rows->pinned_blocks(SHARPI_ROW_TABLES, "archive of evicted rows", b.lent);
  rows->device(SHARPI_ROW_RECURRENT, "recurrent state", b.state, b.n_recurrent);
  rows->device(SHARPI_ROW_RECURRENT, "rows of drafts", b.drafts, b.n_recurrent);
  rows->pinned(SHARPI_ROW_CHECKPOINTS, "recurrent checkpoints", b.checkpoints, b.n_recurrent);
  rows->pinned(SHARPI_ROW_STAGING, "rows on their way", b.rows_host);
  rows->device(SHARPI_ROW_LOGITS, "logits", b.logits);
  rows->pinned(SHARPI_ROW_LOGITS, "logits on their way out", b.logits_host);
  rows->device(SHARPI_ROW_LOGITS, "best logits", b.best.device);
  rows->pinned(SHARPI_ROW_LOGITS, "best logits on their way out", b.best.pinned);
}

}  // namespace

std::vector<MemoryRow> DeviceSession::plan_rows(const Device& device, const ModelSpec& spec,
                                                const Placement& placement, const ModelShape& model,
                                                const SessionShape& session) {
  std::vector<MemoryRow> out;
  RowList rows(device, &out);
  const KvLayout layout = make_tier_kv_layout(spec, placement, DeviceIndex::kHere, model, session);
  for (const KvGroup& g : layout.groups) {
    rows.kv(
        g, g.capacity,
        DeviceRange::held_bytes(device, range_bytes(g, session.n_ctx), g.block_bytes(g.capacity)));
  }
  push_fixed(&rows, fixed_bytes(device, spec, placement, model, session, layout));
  return out;
}

DeviceSession::DeviceSession(const LoadedModel& model, const SessionShape& shape)
    : StoredSession(DeviceIndex::kHere, model.plan, shape),
      model_(model),
      device_(model.device.get()),
      stream_(model.stream.get()),
      copies_(*device_, *stream_),
      best_(*device_, *stream_),
      moves_(*device_, *stream_),
      tables_(*device_, *stream_),
      archive_rows_(*device_, *stream_, *this) {
  if (!can_keep_by_head()) return;
  staged_.reserve(plan_->spec->layers.size());
  prepare_heads();
}

Result<std::unique_ptr<DeviceSession>> DeviceSession::create(const LoadedModel& model,
                                                             const SessionShape& shape) {
  SHARPI_TRY(model.device->usable());
  std::unique_ptr<DeviceSession> s(new DeviceSession(model, shape));
  SHARPI_TRY(s->allocate());
  return s;
}

Status DeviceSession::allocate() {
  SHARPI_TRY(reserve_groups(
      [this](uint64_t bytes) { return DeviceRange::reserve(*device_, bytes, "KV rows"); }));
  const FixedBytes b =
      fixed_bytes(*device_, *plan_->spec, plan_->placement, plan_->model, shape_, layout_);
  SHARPI_TRY_ASSIGN(state_, DeviceBuffer::allocate(*device_, b.state, "recurrent state"));
  SHARPI_TRY_ASSIGN(drafts_, DeviceBuffer::allocate(*device_, b.drafts, "rows of drafts"));
  SHARPI_TRY_ASSIGN(checkpoints_,
                    PinnedBuffer::allocate(*device_, b.checkpoints, "recurrent checkpoints"));
  SHARPI_TRY_ASSIGN(logits_, DeviceBuffer::allocate(*device_, b.logits, "logits"));
  if (b.best.device != 0) SHARPI_TRY(best_.allocate(plan_->spec->n_vocab, shape_.n_draft + 1));
  SHARPI_TRY_ASSIGN(logits_host_, PinnedBuffer::allocate(*device_, b.logits_host, "logits"));
  SHARPI_TRY_ASSIGN(rows_host_, PinnedBuffer::allocate(*device_, b.rows_host, "rows"));
  SHARPI_TRY_ASSIGN(ring_, DeviceBuffer::allocate(*device_, b.ring, "query ring"));
  SHARPI_TRY_ASSIGN(observer_, DeviceBuffer::allocate(*device_, b.observer, "observer queries"));
  SHARPI_TRY_ASSIGN(scores_, DeviceBuffer::allocate(*device_, b.replay, "replay scores"));
  if (b.tables.device != 0) SHARPI_TRY(take_head_tables());
  SHARPI_TRY(archive_rows_.allocate(*plan_->spec, shape_));
  return moves_.allocate(b.moves);
}

Status DeviceSession::copy_within(void* to, const void* from, uint64_t bytes) const {
  return copies_.bytes(to, from, bytes, Way::kWithin, "copying a session");
}

Status DeviceSession::read_logits(uint32_t row, float* out) const {
  SHARPI_TRY(check_logits_row(row));
  const std::lock_guard lock(way_out_);
  const uint64_t n = plan_->spec->n_vocab;
  SHARPI_TRY(copies_.bytes(logits_host_.data(), logits() + row * n, logit_row_bytes(), Way::kToHost,
                           "reading logits"));
  std::memcpy(out, logits_host_.data(), logit_row_bytes());
  return Status::ok();
}

Status DeviceSession::write_logits(uint32_t row, const float* in) {
  SHARPI_TRY(check_logits_row(row));
  best_.forget();
  const uint64_t n = plan_->spec->n_vocab;
  return copies_.bytes(logits() + row * n, in, logit_row_bytes(), Way::kToDevice, "writing logits");
}

uint32_t DeviceSession::max_best() const {
  return best_.most();
}

Status DeviceSession::read_best(uint32_t row, uint32_t k, const std::span<const uint32_t>* allowed,
                                float* values, int32_t* ids) const {
  SHARPI_TRY(check_logits_row(row));
  if (k == 0 || k > max_best())
    return Status::error(Code::kInternal, "the %u best logits cannot be read; 1 to %u can", k,
                         max_best());
  return best_.read({logits(), plan_->spec->n_vocab}, row, k, allowed, values, ids);
}

Status DeviceSession::send_best(uint32_t n, uint32_t k, const Queue& pass) {
  return best_.send({logits(), plan_->spec->n_vocab}, n, k, pass);
}

std::vector<MemoryRow> DeviceSession::memory_rows() const {
  std::vector<MemoryRow> out;
  RowList rows(*device_, &out);
  for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
    rows.kv(layout_.groups[g], capacity_[g], ranges_[g].committed());
    out.back().shared_bytes = shared_bytes(g);
  }
  FixedBytes b;
  b.state = state_.bytes();
  b.drafts = drafts_.bytes();
  b.checkpoints = checkpoints_.bytes();
  b.logits = logits_.bytes();
  b.logits_host = logits_host_.bytes();
  b.rows_host = rows_host_.bytes();
  b.best = {best_.device_bytes(), best_.pinned_bytes()};
  b.ring = ring_.bytes();
  b.observer = observer_.bytes();
  b.replay = scores_.bytes();
  b.moves = moves_.bytes();
  b.tables = tables_.bytes();
  b.archive = archive_rows_.stage_bytes();
  b.bounds = archive_rows_.bounds_bytes();
  b.lent = archive_rows_.lent_bytes();
  b.n_recurrent = static_cast<uint32_t>(state_layout_.layers.size());
  push_fixed(&rows, b);
  return out;
}

uint64_t DeviceSession::observer_bytes(uint32_t n) const {
  const bool enough = query_layout_.bytes(n) <= observer_.bytes();
  return enough ? 0 : device_->held_bytes(query_layout_.bytes(n));
}

Status DeviceSession::reserve_observer(uint32_t n) {
  if (observer_bytes(n) == 0) return Status::ok();
  SHARPI_TRY_ASSIGN(call_observer_,
                    DeviceBuffer::allocate(*device_, query_layout_.bytes(n), "observer queries"));
  return Status::ok();
}

uint64_t DeviceSession::held_bytes_of(uint32_t group, uint32_t n_slots) const {
  const KvGroup& g = layout_.groups[group];
  return DeviceRange::held_bytes(*device_, range_bytes(g, shape_.n_ctx), bytes_of(group, n_slots));
}

Status DeviceSession::read_state(uint32_t layer, StatePart part, void* out) const {
  SHARPI_TRY(check_state(layer, part));
  const std::lock_guard lock(way_out_);
  const bool applied = pending() != 0;
  if (applied) SHARPI_TRY(apply_pending(layer));
  return copies_.bytes(out, state(layer, part, applied), state_bytes(layer, part), Way::kToHost,
                       "reading state");
}

/// Between passes the working copy is scratch.
Status DeviceSession::apply_pending(uint32_t layer) const {
  SHARPI_TRY(device_->usable());
  const DeviceScope scope(*device_);
  return model_.kernels->replay(model_, *this, layer);
}

Status DeviceSession::write_state(uint32_t layer, StatePart part, const void* in) {
  SHARPI_TRY(check_state(layer, part));
  drop_pending();
  return copies_.bytes(state(layer, part, false), in, state_bytes(layer, part), Way::kToDevice,
                       "writing state");
}

void DeviceSession::clear_state() noexcept {
  if (state_layout_.bytes == 0) return;
  drop_pending();
  const DeviceScope scope(*device_);
  Status done = stream_->clear(state_base(false), state_layout_.bytes, "clearing state");
  if (done.is_ok()) done = stream_->wait();  // a fault has marked the device: the next call says it
}

Status DeviceSession::save_checkpoint(uint32_t index) {
  SHARPI_TRY_ASSIGN(std::byte * to, checkpoint_at(index));
  const bool applied = pending() != 0;
  for (const StateLayout::Layer& l : state_layout_.layers) {
    if (applied) SHARPI_TRY(apply_pending(l.layer));
  }
  return copies_.bytes(to, state_base(applied), state_layout_.bytes, Way::kToHost,
                       "saving a checkpoint");
}

Status DeviceSession::load_checkpoint(uint32_t index) {
  SHARPI_TRY_ASSIGN(const std::byte* from, checkpoint_at(index));
  drop_pending();
  return copies_.bytes(state_base(false), from, state_layout_.bytes, Way::kToDevice,
                       "loading a checkpoint");
}

CopyRoom DeviceSession::copy_room() const {
  if (rows_host_.bytes() == 0 || in_room_.exchange(true, std::memory_order_acquire)) return {};
  return CopyRoom(*this, {rows_host_.data(), rows_host_.bytes()}, &in_room_);
}

Status DeviceSession::start_reading(uint32_t layer, bool value, uint32_t first, uint32_t n,
                                    void* out) const {
  SHARPI_TRY(check_rows(layer, first, n));
  SHARPI_TRY(check_together(layer));
  return copies_.start_rows(view(layer), value, first, n, static_cast<std::byte*>(out),
                            Way::kToHost);
}

Status DeviceSession::read_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                                void* out) const {
  SHARPI_TRY(check_rows(layer, first, n));
  SHARPI_TRY(check_together(layer));
  return copies_.rows(view(layer), value, first, n, static_cast<std::byte*>(out), Way::kToHost);
}

Status DeviceSession::start_writing(uint32_t layer, bool value, uint32_t first, uint32_t n,
                                    const void* in) {
  SHARPI_TRY(check_rows(layer, first, n));
  SHARPI_TRY(check_together(layer));
  auto* from = static_cast<std::byte*>(const_cast<void*>(in));  // only read
  return copies_.start_rows(view(layer), value, first, n, from, Way::kToDevice);
}

Status DeviceSession::write_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                                 const void* in) {
  SHARPI_TRY(check_rows(layer, first, n));
  SHARPI_TRY(check_together(layer));
  auto* from = static_cast<std::byte*>(const_cast<void*>(in));  // only read
  return copies_.rows(view(layer), value, first, n, from, Way::kToDevice);
}

QueryRing DeviceSession::query_ring(uint32_t layer) const {
  return {reinterpret_cast<std::byte*>(queries(layer, Capture::kRing)), query_rows(Capture::kRing),
          uint64_t{query_layout_.dim_of_layer[layer]} * sizeof(float)};
}

Status DeviceSession::read_queries(uint32_t layer, uint64_t first, uint32_t n, float* out) const {
  SHARPI_TRY(check_queries(layer, n));
  return copies_.queries(query_ring(layer), first, n, reinterpret_cast<std::byte*>(out),
                         Way::kToHost);
}

Status DeviceSession::write_queries(uint32_t layer, uint64_t first, uint32_t n, const float* in) {
  auto* from = reinterpret_cast<std::byte*>(const_cast<float*>(in));  // only read
  SHARPI_TRY(check_queries(layer, n));
  return copies_.queries(query_ring(layer), first, n, from, Way::kToDevice);
}

Status DeviceSession::read_replay_scores(uint32_t layer, uint32_t head, uint32_t first, uint32_t n,
                                         float* out) const {
  SHARPI_TRY_ASSIGN(const float* from,
                    replay_layout_.part_of(layer, head, first, n, scores_.as<float>()));
  return copies_.bytes(out, from, n * sizeof(float), Way::kToHost, "reading replay scores");
}

Status DeviceSession::write_replay_scores(uint32_t layer, uint32_t head, uint32_t first, uint32_t n,
                                          const float* in) {
  SHARPI_TRY_ASSIGN(float* to, replay_layout_.part_of(layer, head, first, n, scores_.as<float>()));
  return copies_.bytes(to, in, n * sizeof(float), Way::kToDevice, "writing replay scores");
}

BatchSequence pending_sequence(const DeviceSession& session, uint32_t passes_ahead) {
  BatchSequence s;
  const bool turned = passes_ahead % 2 != 0;  // the working state is what the pass in front leaves
  s.state_in = session.state_base(turned);
  s.state_out = session.state_base(!turned);
  s.n_pending = passes_ahead == 0 ? session.pending() : 0;
  s.kept_rows = session.draft_layout().n_rows;
  if (s.kept_rows != 0) s.kept = session.draft_plane(0, false);
  return s;
}

}  // namespace sharpi::device
