// SPDX-License-Identifier: MIT
#include "device/calls.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/no_throw.h"
#include "device/adapter.h"

namespace sharpi::device {
namespace {

DeviceSession* session_of(const SequenceRows& q) {
  return static_cast<DeviceSession*>(q.session);
}

/// Where a sequence's rows are and will go: an entry for each layer that owns some, in order, as
/// make_format() counts them. Layers of one group lie in one range and may hold different counts.
Status fill_layers(const SequenceRows& q, BatchGroup* to) {
  DeviceSession* own = session_of(q);
  const KvLayout& layout = own->layout();
  SHARPI_TRY(own->send_tables());
  for (uint32_t l = 0; l < layout.group_of_layer.size(); ++l) {
    const int32_t g = layout.group_of_layer[l];
    if (g < 0) continue;
    const KvGroup& group = layout.groups[static_cast<size_t>(g)];
    to->base = own->group_base(static_cast<uint32_t>(g));
    to->ring_slots = group.ring_slots;
    to->n_slots = 0;
    if (!group.ring) {
      SHARPI_TRY_ASSIGN(to->n_slots, own->append_slot(l, *q.ledger, q.rows_ahead + q.n_rows));
      to->n_slots += q.rows_ahead;
    }
    if (own->is_layer_by_head(l)) {
      to->base = reinterpret_cast<std::byte*>(const_cast<KvHeadRows*>(own->head_rows(l)));
      to->n_slots = q.ledger->fullest(group) + q.rows_ahead;
      to->ring_slots = kRowsByHead;
    }
    ++to;
  }
  return Status::ok();
}

Status fill_sequence(const Submission& rows, uint32_t s, uint32_t chunk_block, BatchTable t) {
  const SequenceRows& q = rows.sequences[s];
  const DeviceSession* own = session_of(q);
  BatchSequence out;
  out.first_row = q.first_row;
  out.n_rows = q.n_rows;
  out.position = q.position;
  out.chunk_block = chunk_block;
  out.flags = (rows.no_context ? kSequenceNoContext : 0u) |
              (is_by_position(rows.capture) ? kSequenceQueryRing : 0u) |
              (q.drafted ? kSequenceDrafted : 0u);
  if (own->checkpoint_bytes() != 0) {
    const BatchSequence state = pending_sequence(*own, q.passes_ahead);
    out.state_in = state.state_in;
    out.state_out = state.state_out;
    out.n_pending = state.n_pending;
    out.kept = state.kept;
    out.kept_rows = state.kept_rows;
    if (q.drafted) out.keep = own->draft_plane(0, true);
  }
  out.query_rows = own->query_rows(rows.capture);
  out.queries = out.query_rows == 0 ? nullptr : own->query_base(rows.capture);
  t.sequences[s] = out;
  for (uint32_t i = 0; i < q.n_rows; ++i) t.rows[q.first_row + i] = {s, i, q.position + i};
  return fill_layers(q, t.groups + uint64_t{s} * t.n_groups);
}

/// The adapters of the sequences, n each: those that this device has a part of.
void fill_adapters(const Submission& rows, uint32_t n, DeviceIndex device, BatchAdapter* to) {
  for (const SequenceRows& q : rows.sequences) {
    for (uint32_t k = 0; k < n; ++k) {
      to[k] = {};
      if (k >= q.adapters.size()) continue;
      const AdapterPart* part = q.adapters[k].parts->on(device);
      if (part == nullptr) continue;
      to[k].table = static_cast<const DeviceAdapter*>(part)->table();
      to[k].scale = q.adapters[k].scale;
    }
    to += kMaxAdapters;
  }
}

/// The head's rows of logits are about to change, or have changed.
bool changes_logits(const Segment& segment, const Submission& rows) {
  return segment.has_head() && !rows.transient;
}

bool has_rows_by_head(const Submission& rows) {
  return std::any_of(rows.sequences.begin(), rows.sequences.end(), [](const SequenceRows& q) {
    return q.ledger != nullptr && q.ledger->is_by_head();
  });
}

bool wants_hidden(const Submission& rows) {
  return std::any_of(rows.sequences.begin(), rows.sequences.end(),
                     [](const SequenceRows& q) { return q.hidden != nullptr; });
}

/// From begin() to the end of a call's last kernel.
struct SlotUse {
  ExpertSlots* of = nullptr;
  bool step = true;
  ~SlotUse() {
    if (of != nullptr) of->end(step);
  }
};

/// A call that ends otherwise than it should: nothing of it runs on, and the rows of its chunk
/// reach no ring later.
struct Abandon {
  DeviceWorkspace* ws;
  ~Abandon() {
    if (ws == nullptr) return;
    ws->pending_ring = -1;
    const Status ended = ws->queue().wait();
    (void)ended.is_ok();  // whatever ended the call is what is said
  }
};

}  // namespace

/// Persistent kernels, whose blocks wait for each other, are for few rows; only captured steps have
/// kernels that wait for the host. Steps of a model over several devices take turns on each: two
/// that shared one would go on to the next together, and leave the first idle.
bool Calls::launches_alone(const Segment& segment, const Submission& rows) const {
  if (m_.fuses(rows.n_rows) && m_.blocks_meet) return true;
  const uint32_t step = std::max(m_.plan->model.max_batch, m_.plan->session.n_draft + 1);
  if (m_.workspace_layout.n_passes > 1 && rows.n_rows <= step) return true;
  return rows.n_rows == rows.sequences.size() && m_.asks_for_experts(segment);
}

Status Calls::check_fits(const Submission& rows, const DeviceWorkspace& ws) const {
  if (rows.sequences.size() <= std::min(kMaxSequences, m_.plan->model.max_batch) &&
      rows.n_rows <= ws.layout().max_rows)
    return Status::ok();
  return Status::error(Code::kInternal, "a call cannot read %u rows of %zu sequences at once",
                       rows.n_rows, rows.sequences.size());
}

Status Calls::run(const Segment& segment, const Submission& rows, Workspace& workspace) const {
  auto& ws = static_cast<DeviceWorkspace&>(workspace);
  SHARPI_TRY(m_.device->usable());
  SHARPI_TRY(check_fits(rows, ws));
  const DeviceScope scope(*m_.device);
  std::unique_lock<std::mutex> alone(m_.device->launch_mutex(), std::defer_lock);
  if (launches_alone(segment, rows)) alone.lock();
  SlotUse slots;
  if (m_.asks_for_experts(segment)) {
    if (ws.experts.host == nullptr)
      return Status::error(Code::kInternal, "the workspace has no host for experts");
    SHARPI_TRY(m_.experts->begin(ws.queue()));
    slots.of = m_.experts.get();
  } else if (segment.streamed && m_.experts != nullptr) {
    SHARPI_TRY(m_.experts->begin(ws.queue()));  // what has a slot is copied from it
    slots.of = m_.experts.get();
    slots.step = false;
  }
  Abandon thrown{&ws};
  const bool logits = changes_logits(segment, rows);
  for (const SequenceRows& q : rows.sequences) {
    if (logits) session_of(q)->forget_best();
  }
  Status done = segment.streamed ? compute_streamed(segment, rows, ws) : compute(segment, rows, ws);
  if (done.is_ok() && logits) done = send_best(rows, ws);
  thrown.ws = nullptr;
  if (done.is_ok()) {
    if (rows.meanwhile != nullptr) rows.meanwhile->run();
    SHARPI_TRY(ws.queue().wait());
    SHARPI_TRY(m_.device->usable());  // it may have been lost meanwhile
    for (const SequenceRows& q : rows.sequences) {
      if (logits) session_of(q)->best_arrived();
    }
    if (ws.is_relayed(rows.hidden_out))
      std::copy_n(ws.handover(), uint64_t{rows.n_rows} * m_.spec().n_embd, rows.hidden_out);
    hand_out_hidden(segment, rows, ws.handover());
    return Status::ok();
  }
  return give_up(done, ws);
}

/// Of a pass that failed.
Status Calls::give_up(const Status& why, DeviceWorkspace& ws) const {
  ws.pending_ring = -1;  // the rows of a failed chunk must not reach a ring later
  const Status drained = ws.queue().wait();  // nothing runs on when the call returns
  return drained.code() == Code::kDeviceLost ? drained : m_.device->settle(why);
}

/// Persistent kernels hold the device's launch_mutex() until they have ended, and the host takes
/// part in passes that ask it for experts: both are waited for.
uint32_t Calls::passes(uint32_t n_rows) const {
  const bool alone = m_.fuses(n_rows) && m_.blocks_meet;
  return alone || m_.experts != nullptr ? 1 : m_.workspace_layout.n_passes;
}

Status Calls::start(const Segment& segment, const Submission& rows, Workspace& workspace) const {
  auto& ws = static_cast<DeviceWorkspace&>(workspace);
  SHARPI_TRY(m_.device->usable());
  SHARPI_TRY(check_fits(rows, ws));
  if (ws.stage.is_full() || passes(rows.n_rows) == 1 || segment.streamed ||
      rows.sequences.size() != 1) {
    return Status::error(Code::kInternal, "a pass over %u rows takes part in no pipeline",
                         rows.n_rows);
  }
  const DeviceScope scope(*m_.device);
  ws.stage.begin();
  Abandon thrown{&ws};
  if (changes_logits(segment, rows)) session_of(rows.sequences[0])->forget_best();
  Status done = compute(segment, rows, ws);
  if (done.is_ok() && changes_logits(segment, rows)) done = send_best(rows, ws);
  if (done.is_ok()) done = ws.stage.started(ws.queue());
  thrown.ws = nullptr;
  return done.is_ok() ? done : give_up(done, ws);
}

Status Calls::finish(const Segment& segment, const Submission& rows, Workspace& workspace) const {
  auto& ws = static_cast<DeviceWorkspace&>(workspace);
  if (ws.stage.is_empty()) return Status::error(Code::kInternal, "no pass is under way");
  const DeviceScope scope(*m_.device);
  const uint32_t table = ws.stage.oldest_table();
  SHARPI_TRY(ws.stage.finish());
  SHARPI_TRY(m_.device->usable());
  if (m_.leaves_hidden) hand_out_hidden(segment, rows, ws.hidden_rows(table, m_.spec().n_embd));
  // The last pass alone has sent its best logits along.
  const SequenceRows& q = rows.sequences[0];
  if (changes_logits(segment, rows) && q.last_logit_row == 0) session_of(q)->best_arrived();
  return Status::ok();
}

Status Calls::drain(Workspace& workspace) const {
  auto& ws = static_cast<DeviceWorkspace&>(workspace);
  const DeviceScope scope(*m_.device);
  ws.stage.forget();
  ws.pending_ring = -1;
  return ws.queue().wait();
}

Status Calls::compute_streamed(const Segment& segment, const Submission& rows,
                               DeviceWorkspace& ws) const {
  const auto lock = m_.stream_weights->lock();
  const Status done = no_throw([&] { return compute(segment, rows, ws); });
  // The staging area belongs to the next call once nothing of this one is under way.
  const Status computed = ws.queue().wait(), sent = m_.stream_weights->drain();
  SHARPI_TRY(done);
  SHARPI_TRY(computed);
  return sent;
}

/// The pass of a submission over a segment, made or replayed.
Status Calls::compute(const Segment& segment, const Submission& rows, DeviceWorkspace& ws) const {
  const uint32_t format = rows.sequences.empty() ? 0 : session_of(rows.sequences[0])->format_index;
  const Rows r = rows_of(segment, rows, ws);
  if (ws.is_relayed(rows.hidden_in))
    std::copy_n(rows.hidden_in, uint64_t{rows.n_rows} * m_.spec().n_embd, ws.handover());
  const bool keeps = segment.has_head() && wants_hidden(rows);
  if (keeps && !m_.leaves_hidden) {
    return Status::error(Code::kInternal, "hidden rows of a model without an MTP block");
  }
  Pass p = make_pass(segment, ws, format, r);
  p.rows = &rows;
  p.transient = rows.transient;
  if (!r.step) p.keeps_hidden = keeps;  // a recorded step serves all sessions
  if (p.brings_table) {
    ws.pending_ring = -1;  // of a call that another tier ended
    SHARPI_TRY(fill_table(rows, ws));
  }
  if (p.per_layer) fill_ple(rows, ws);
  if (!r.step) return run_segment(segment, p);
  if (rows.cancel != nullptr && rows.cancel->load(std::memory_order_relaxed) &&
      !m_.spec().has_window()) {
    return Status::error(Code::kCancelled, "the call was cancelled");
  }
  return run_step(segment, p, format);
}

/// Of a submission; lists the rows that its logits are wanted of.
Calls::Rows Calls::rows_of(const Segment& segment, const Submission& rows,
                           DeviceWorkspace& ws) const {
  Rows r;
  r.n = rows.n_rows;
  r.n_sequences = static_cast<uint32_t>(rows.sequences.size());
  r.in = ws.is_relayed(rows.hidden_in) ? ws.handover() : rows.hidden_in;
  r.out = ws.is_relayed(rows.hidden_out) ? ws.handover() : rows.hidden_out;
  r.n_adapters = most_adapters(rows);
  r.by_head = has_rows_by_head(rows);
  r.drafted = std::any_of(rows.sequences.begin(), rows.sequences.end(),
                          [](const SequenceRows& q) { return q.drafted; });
  if (has_head(m_.spec(), m_.plan->placement)) fill_head_rows(rows, ws, &r);
  r.step = is_step(segment, rows, r, ws);
  return r;
}

/// Whether only the table tells this call from the one that was recorded: a row of each session, or
/// a token and drafts of one, with logits of every row where the head is.
bool Calls::is_step(const Segment& segment, const Submission& rows, const Rows& r,
                    const DeviceWorkspace& ws) const {
  if (segment.streamed || rows.transient || rows.no_context) return false;
  if (rows.capture != Capture::kRing) return false;
  const bool own_rows =
      (r.in == nullptr || r.in == ws.handover()) && (r.out == nullptr || r.out == ws.handover());
  const bool all_logits = !segment.has_head() || r.n_head == r.n;
  if (!own_rows || !all_logits) return false;
  if (r.one_each()) return !segment.has_head() || r.in_order;
  return r.drafted && r.n_sequences == 1 && records_drafts(segment);
}

/// Whether verifications are recorded. Experts that the host computes are asked for row by row in a
/// recorded step, many at once otherwise; and a ring's rows that wait for the next segment are
/// remembered by the host.
bool Calls::records_drafts(const Segment& segment) const {
  const auto here = std::count_if(m_.segments.begin(), m_.segments.end(),
                                  [](const Segment& s) { return s.device == DeviceIndex::kHere; });
  return !m_.asks_for_experts(segment) && (here == 1 || !m_.spec().has_window());
}

/// Of rows that belong to no session yet, and of all that follows from where the segment stands.
Pass Calls::make_pass(const Segment& segment, DeviceWorkspace& ws, uint32_t format,
                      const Rows& r) const {
  const Block& first = segment.blocks.front();
  Pass p{m_, nullptr, ws, m_.format(format)};
  p.step = r.step;
  p.batch = Batch{ws.batch(), r.n, r.n_sequences};
  p.n_head_rows = r.n_head;
  p.head_rows_in_order = r.in_order;
  p.single_rows = r.one_each();
  p.drafted = r.drafted;
  p.n_adapters = r.n_adapters;
  p.by_head = r.by_head;
  p.fuses = r.step && m_.fuses(r.n) && r.n_adapters == 0;  // chains have no place for theirs
  p.keeps_hidden = segment.has_head() && m_.leaves_hidden;
  p.brings_table = segment.first_here;
  p.streamed = segment.streamed;
  p.per_layer = m_.spec().d_ple != 0 && (first.kind == BlockKind::kEmbedding ||
                                         (first.kind == BlockKind::kMixer && first.layer == 0));
  p.hidden_in = r.in;
  p.hidden_out = r.out;
  return p;
}

void Calls::fill_head_rows(const Submission& rows, DeviceWorkspace& ws, Rows* r) const {
  if (rows.transient) return;
  uint32_t& n = r->n_head;
  uint32_t* ids = ws.host_head_rows();
  float** to = ws.host_logits();
  // The wanted rows. Sessions' logit rows are newest first within each sequence, and so are these,
  // but those of drafts: in the order of the call they go through the head as they are.
  for (const SequenceRows& q : rows.sequences) {
    float* newest = session_of(q)->logits() + uint64_t{q.last_logit_row} * m_.spec().n_vocab;
    for (uint32_t back = 0; back < q.n_rows - q.first_logit_row; ++back) {
      const uint32_t i = q.drafted ? q.first_logit_row + back : q.n_rows - 1 - back;
      r->in_order = r->in_order && q.first_row + i == n;
      ids[n] = q.first_row + i;
      to[n] = newest + uint64_t{q.n_rows - 1 - i} * m_.spec().n_vocab;
      ++n;
    }
  }
}

void Calls::fill_ple(const Submission& rows, DeviceWorkspace& ws) const {
  const uint64_t bytes = ws.layout().ple_row_bytes;
  if (bytes == 0) return;
  const std::byte* table = m_.spec().ple_embd.tensor->data;
  for (uint32_t r = 0; r < rows.n_rows; ++r) {
    std::memcpy(ws.host_ple() + r * bytes, table + static_cast<uint64_t>(rows.tokens[r]) * bytes,
                bytes);
  }
}

Status Calls::fill_table(const Submission& rows, DeviceWorkspace& ws) const {
  std::copy_n(rows.tokens, rows.n_rows, ws.host_tokens());
  uint32_t block = 0;
  for (uint32_t s = 0; s < rows.sequences.size(); ++s) {
    SHARPI_TRY(fill_sequence(rows, s, block, ws.host_batch()));
    block += static_cast<uint32_t>(div_up(rows.sequences[s].n_rows, kKvBlockSlots));
  }
  fill_adapters(rows, most_adapters(rows), DeviceIndex{m_.device->index()}, ws.host_adapters());
  return Status::ok();
}

/// Everything of a segment that goes to the stream, captured or not.
Status Calls::run_segment(const Segment& segment, Pass& p) const {
  SHARPI_TRY(upload(p));
  SHARPI_TRY(forward_.run(segment, p));
  return send_hidden(p);
}

/// What the sessions' draws are likely to ask for: behind the pass on the stream, so that a draw
/// need not go to the device.
Status Calls::send_best(const Submission& rows, const DeviceWorkspace& ws) const {
  for (const SequenceRows& q : rows.sequences) {
    if (q.n_best == 0 || q.last_logit_row != 0) continue;
    SHARPI_TRY(session_of(q)->send_best(q.n_rows - q.first_logit_row, q.n_best, ws.queue()));
  }
  return Status::ok();
}

/// Recorded steps of one format and segment: a row each of 1 to max_batch sessions, and behind them
/// 1 to n_draft drafts behind a token of one. The same once more with rows by head, and each of
/// both for every number of adapters.
size_t Calls::step_kinds() const {
  return m_.plan->model.max_batch + m_.plan->session.n_draft;
}

/// Recordings of a format and segment, by how rows are kept and the number of adapters.
size_t Calls::step_lists() const {
  return 2 * (m_.plan->model.adapter_rank == 0 ? 1 : size_t{kMaxAdapters} + 1);
}

size_t Calls::step_index(const Segment& segment, const Pass& p, uint32_t format) const {
  const size_t drafts = m_.plan->model.max_batch + size_t{p.n_rows()} - 2;
  const size_t kind = p.single_rows ? p.n_rows() - 1 : drafts;
  const size_t list = size_t{p.n_adapters} * 2 + (p.by_head ? 1 : 0);
  const size_t rows = (size_t{format} * m_.segments.size() + segment.index) * step_lists() + list;
  return rows * step_kinds() + kind;
}

Status Calls::run_step(const Segment& segment, Pass& p, uint32_t format) const {
  const size_t at = step_index(segment, p, format);
  if (at >= p.ws.recordings.size()) p.ws.recordings.resize(at + 1);
  std::unique_ptr<Recording>& step = p.ws.recordings[at];
  if (step == nullptr) {
    // The first step of a kind runs as it is: every kernel of it is loaded before the recording.
    SHARPI_TRY(run_segment(segment, p));
    SHARPI_TRY(p.ws.queue().wait());
    const Status recorded = record(segment, p, &step);
    // The step has been made; where there is no memory to record it, the next runs as this did.
    return recorded.code() == Code::kOutOfMemory ? Status::ok() : recorded;
  }
  if (m_.spec().has_window() && !p.transient) p.writes_rings();
  if (m_.asks_for_experts(segment)) return serve_step(segment, p, *step);
  return p.ws.queue().replay(*step);
}

/// Under the device's launch_mutex().
Status Calls::serve_step(const Segment& segment, Pass& p, const Recording& step) const {
  GraphLine line(*m_.device, p.ws.experts, *m_.experts, m_.spec(), segment, p.n_rows(),
                 m_.uses_slots(p.n_rows()), p.ws.queue());
  SHARPI_TRY(p.ws.queue().replay(step));
  SHARPI_TRY(p.ws.experts.host->serve(line));
  return line.status();
}

Status Calls::record(const Segment& segment, Pass& p, std::unique_ptr<Recording>* out) const {
  SHARPI_TRY(p.ws.queue().begin_recording());
  const Submission* rows = p.rows;
  p.rows = nullptr;  // a cancel must not end a recording half way
  p.recorded = true;
  // Whatever comes of it, the queue must not be left recording.
  const Status given = no_throw([&] { return run_segment(segment, p); });
  p.rows = rows;
  p.recorded = false;
  SHARPI_TRY_ASSIGN(*out, p.ws.queue().end_recording(given));
  return Status::ok();
}

}  // namespace sharpi::device
