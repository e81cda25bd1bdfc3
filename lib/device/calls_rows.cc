// SPDX-License-Identifier: MIT
// What a call brings to its device and takes from there: tables, and hidden rows that are handed
// over.
#include <algorithm>

#include "device/calls.h"

namespace sharpi::device {
namespace {

const DeviceWorkspace* neighbour(const Workspace* w) {
  return static_cast<const DeviceWorkspace*>(w);
}

}  // namespace

Status Calls::upload(Pass& p) const {
  DeviceWorkspace& ws = p.ws;
  if (p.brings_table) {
    SHARPI_TRY(ws.queue().copy(ws.get<std::byte>(Buf::kTable), ws.host_tokens(),
                               ws.layout().table.upload_bytes(p.n_rows()), Way::kToDevice,
                               "upload of the call table"));
  }
  if (p.hidden_in != nullptr) SHARPI_TRY(take_hidden(p));
  const uint64_t ple = p.per_layer ? p.n_rows() * ws.layout().ple_row_bytes : 0;
  if (ple == 0) return Status::ok();
  return ws.queue().copy(ws.get<std::byte>(Buf::kPleRaw), ws.host_ple(), ple, Way::kToDevice,
                         "upload of per-layer embeddings");
}

/// Rows that are handed over, to where the segment computes. In a pipeline they are waited for, and
/// the device in front hears that their place is free.
Status Calls::take_hidden(Pass& p) const {
  DeviceWorkspace& ws = p.ws;
  const uint64_t bytes = uint64_t{p.n_rows()} * m_.spec().n_embd * sizeof(float);
  const DeviceWorkspace* from = p.rows == nullptr ? nullptr : neighbour(p.rows->from);
  if (from != nullptr) SHARPI_TRY(ws.queue().wait_for(from->stage.sent(), "rows on their way"));
  const Way way = p.hidden_in == ws.arrival() ? Way::kWithin : Way::kToDevice;
  SHARPI_TRY(ws.queue().copy(ws.get(Buf::kX), p.hidden_in, bytes, way, "upload of hidden rows"));
  if (from != nullptr) SHARPI_TRY(ws.queue().record(ws.stage.taken(), "rows that were taken"));
  if (!m_.spec().pair.table_on_host) return Status::ok();
  const float* embedded = ws.handover() + uint64_t{ws.layout().max_rows} * m_.spec().n_embd;
  return ws.queue().copy(ws.get(Buf::kY), embedded, bytes, Way::kToDevice, "upload of embeddings");
}

/// The other end of take_hidden(), or hidden rows on their way to whoever wants those of the head.
Status Calls::send_hidden(Pass& p) const {
  DeviceWorkspace& ws = p.ws;
  const bool in_pipeline = p.rows != nullptr && p.rows->from != nullptr;
  float* to = p.hidden_out;
  if (p.keeps_hidden)
    to = in_pipeline ? ws.hidden_rows(ws.stage.table(), m_.spec().n_embd) : ws.handover();
  if (to == nullptr) return Status::ok();
  const DeviceWorkspace* next = p.rows == nullptr ? nullptr : neighbour(p.rows->to);
  const bool to_host =
      p.keeps_hidden || to == ws.handover() || (next != nullptr && p.hidden_out != next->arrival());
  if (next != nullptr)
    SHARPI_TRY(ws.queue().wait_for(next->stage.taken(), "the place of rows on their way out"));
  SHARPI_TRY(ws.queue().copy(to, ws.get(p.keeps_hidden ? Buf::kY : Buf::kX),
                             uint64_t{p.n_rows()} * m_.spec().n_embd * sizeof(float),
                             to_host ? Way::kToHost : Way::kWithin,
                             "hidden rows on their way out"));
  return next == nullptr ? Status::ok() : ws.queue().record(ws.stage.sent(), "rows on their way");
}

/// Those that the head has read, from where its segment left them to whoever wants them.
void Calls::hand_out_hidden(const Segment& segment, const Submission& rows,
                            const float* kept) const {
  if (segment.blocks.back().kind != BlockKind::kHead) return;
  const uint64_t e = m_.spec().n_embd;
  for (const SequenceRows& q : rows.sequences) {
    if (q.hidden == nullptr) continue;
    const float* from = kept + (q.first_row + q.first_hidden_row) * e;
    std::copy_n(from, (q.n_rows - q.first_hidden_row) * e, q.hidden);
  }
}

}  // namespace sharpi::device
