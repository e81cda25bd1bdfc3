// SPDX-License-Identifier: MIT
// What makes a workspace ready: recordings of steps, and kernels of chunks.
#include "device/calls.h"

namespace sharpi::device {

/// That come from where a segment's rows are handed over, and go there.
Calls::Rows Calls::rows_of_nobody(const Segment& segment, const DeviceWorkspace& ws,
                                  uint32_t n) const {
  Rows r;
  r.n = n;
  if (segment.index != 0 || !m_.spec().part.has_embedding() || m_.spec().pair) r.in = ws.handover();
  if (segment.index + 1 != m_.segments.size() || !m_.spec().part.has_head()) r.out = ws.handover();
  return r;
}

/// Records a step of a kind with rows that belong to no session, one of each of n, or n of one; and
/// runs it in front of that, where kernels are loaded by being run.
Status Calls::warm_up_rows(DeviceWorkspace& ws, Rows kind) const {
  const BatchTable t = ws.host_batch();
  for (uint32_t r = 0; r < kind.n; ++r) {
    ws.host_tokens()[r] = 0;
    ws.host_head_rows()[r] = r;
    ws.host_logits()[r] = nullptr;
    if (!kind.drafted || r == 0) t.sequences[r] = BatchSequence{};
    t.rows[r] = BatchRow{};
  }
  for (const Segment& segment : m_.segments) {
    if (segment.device != DeviceIndex::kHere || (kind.drafted && !records_drafts(segment)))
      continue;
    Rows r = rows_of_nobody(segment, ws, kind.n);
    r.n_head = kind.n;
    r.n_sequences = kind.drafted ? 1 : kind.n;
    r.drafted = kind.drafted;
    r.n_adapters = kind.n_adapters;
    r.by_head = kind.by_head;
    Pass p = make_pass(segment, ws, 0, r);
    if (!m_.kernels->compiles_late()) {
      SHARPI_TRY(run_step(segment, p, 0));
    } else if (std::unique_ptr<Recording>& step = ws.recordings[step_index(segment, p, 0)]; !step) {
      SHARPI_TRY(record(segment, p, &step));
    }
  }
  return Status::ok();
}

Status Calls::warm_up_steps(DeviceWorkspace& ws, Rows kind) const {
  const uint32_t n_draft = m_.plan->session.n_draft;
  for (kind.n = 1; kind.n <= m_.plan->model.max_batch; ++kind.n) SHARPI_TRY(warm_up_rows(ws, kind));
  kind.drafted = true;
  for (kind.n = 2; kind.n <= n_draft + 1; ++kind.n) SHARPI_TRY(warm_up_rows(ws, kind));
  return Status::ok();
}

/// Sessions with one adapter as well as without any, where the plan has room; steps with more are
/// recorded when they are met, of the same kernels.
std::vector<Calls::Rows> Calls::warm_kinds() const {
  std::vector<Rows> kinds(m_.plan->model.adapter_rank == 0 ? 1 : 2);
  kinds.back().n_adapters = static_cast<uint32_t>(kinds.size()) - 1;
  return kinds;
}

Status Calls::warm_up(DeviceWorkspace& ws) const {
  ws.recordings.resize(step_lists() * m_.segments.size() * step_kinds());
  if (m_.kernels->compiles_late()) {
    // Steps of sessions with rows by head are compiled, and recorded when they are met.
    std::vector<Rows> kinds = warm_kinds();
    if (m_.device->kernels().keeps_by_head()) kinds.emplace_back().by_head = true;
    SHARPI_TRY(m_.kernels->compile(ws.queue(), [&]() -> Status {
      for (const Rows& kind : kinds) {
        SHARPI_TRY(warm_up_steps(ws, kind));
        SHARPI_TRY(record_chunk(ws, kind));
      }
      return Status::ok();
    }));
    for (std::unique_ptr<Recording>& one : ws.recordings) one.reset();
    SHARPI_TRY(m_.device->kernels().prepare_best(ws.queue()));
    m_.kernels->keep_compiled();
  }
  for (const Rows& kind : warm_kinds()) SHARPI_TRY(warm_up_steps(ws, kind));
  return ws.queue().wait();
}

/// Records a pass of many rows that nobody runs.
Status Calls::record_chunk(DeviceWorkspace& ws, const Rows& kind) const {
  if (ws.layout().max_rows < 2) return Status::ok();
  for (const Segment& segment : m_.segments) {
    if (segment.device != DeviceIndex::kHere || segment.streamed) continue;
    Rows r = rows_of_nobody(segment, ws, ws.layout().max_rows);
    r.n_head = segment.has_head() ? 1 : 0;
    r.in_order = false;  // of a prompt it is the last
    r.n_sequences = 1;
    r.n_adapters = kind.n_adapters;
    r.by_head = kind.by_head;
    r.step = false;
    Pass p = make_pass(segment, ws, 0, r);
    std::unique_ptr<Recording> none;
    const Status recorded = record(segment, p, &none);
    ws.pending_ring = -1;
    SHARPI_TRY(recorded);
  }
  return Status::ok();
}

}  // namespace sharpi::device
