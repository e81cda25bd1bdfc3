// SPDX-License-Identifier: MIT
#include "device/replay.h"

#include "base/limits.h"
#include "device/kernels.h"

namespace sharpi::device {

/// Rows that were read together, and how many queries apart they are asked.
struct Replay::Rows {
  uint64_t first_position = 0;
  uint32_t n = 0, first_slot = 0, tail_slot = 0, every = 1;
};

ReplayParams Replay::params(uint32_t reader, uint32_t source, const Rows& rows) const {
  const AttentionSpec& a = m_.spec().layers[reader].attention;
  ReplayParams t;
  t.first_slot = rows.first_slot;
  t.n_rows = rows.n;
  t.tail_slot = rows.tail_slot;
  t.first_place = static_cast<uint32_t>(rows.first_position % kReplayChunk);
  t.every = rows.every;
  const auto behind = static_cast<uint32_t>(rows.first_position % rows.every);
  t.first_asked = behind == 0 ? 0 : rows.every - behind;
  t.query_stride = uint64_t{a.n_heads} * a.head_dim;
  t.n_heads = a.n_heads;
  t.scale = a.scale;
  t.add = reader != source;
  t.exact = m_.plan->model.exact;
  const int32_t table = m_.rope_of_layer[reader];
  if (table < 0 || a.rope.n_rot == 0) return t;
  t.n_half = a.rope.n_rot / 2;
  t.cos = m_.replay_turns.as<float>() + 2 * m_.rope_offset[static_cast<size_t>(table)];
  t.sin = t.cos + t.n_half;
  t.neighbours = a.rope.pairs == RopePairs::kNeighbours;
  return t;
}

/// What `all` says, head by head where rows are in blocks of one head. Pre: the device has their
/// tables.
Status Replay::run(const DeviceSession& session, const KvLedger& ledger, uint32_t source,
                   const ReplayParams& all, const Queue& queue) const {
  const DeviceKernels& kernels = m_.device->kernels();
  ReplayParams t = all;
  t.scores = session.replay_scores(source, &t.stride);
  if (t.scores == nullptr)
    return Status::error(Code::kInternal, "layer %u has no replay scores on this tier", source);
  if (!session.is_layer_by_head(source)) {
    t.kv = session.view(source);
    return kernels.replay_scores(t, queue);
  }
  const uint32_t n_kv = session.layout().find(source)->n_heads, group = all.n_heads / n_kv;
  for (uint32_t h = 0; h < n_kv; ++h) {
    ReplayParams one = t;
    const uint32_t lag = ledger.lag(source, h);
    one.kv = session.kernel_view(source, h);
    one.n_heads = group;
    one.first_slot -= lag;
    one.tail_slot -= lag;
    one.queries += uint64_t{h} * group * one.kv.head_dim;
    one.scores += h * t.stride;
    SHARPI_TRY(kernels.replay_scores(one, queue));
  }
  return Status::ok();
}

Status Replay::of_pass(const Pass& p, uint32_t layer) const {
  const AttentionSpec& a = m_.spec().layers[layer].attention;
  const uint32_t source = a.kv_source < 0 ? layer : static_cast<uint32_t>(a.kv_source);
  const KvLayer& stored = p.format.layers[source];
  const auto with_queries = [&](ReplayParams t, uint32_t first_row) {
    t.queries = p.ws.get(Buf::kQuery) + first_row * t.query_stride;
    t.query_rows = t.n_rows;
    t.rotated = true;
    return t;
  };
  if (p.rows == nullptr) {
    ReplayParams t = with_queries(params(layer, source, {0, 1}), 0);
    t.kv.k_dtype = stored.k_dtype;
    t.kv.n_heads = stored.n_heads;
    t.kv.head_dim = stored.head_dim;
    t.kv.block_stride = stored.block_stride;
    t.kv.k_row_bytes = stored.k_row_bytes;
    t.scores = p.ws.get(Buf::kQuery);  // some addresses, which nobody uses
    t.kv.k = p.ws.get<std::byte>(Buf::kQuery);
    if (p.by_head) t.kv.table = p.ws.get<uint64_t>(Buf::kQuery);
    SHARPI_TRY(m_.device->kernels().replay_scores(t, p.ws.queue()));
    t.rotated = false;  // as of_waiting() has them
    return m_.device->kernels().replay_scores(t, p.ws.queue());
  }
  for (const SequenceRows& q : p.rows->sequences) {
    if (!q.replay) continue;
    const auto& own = *static_cast<const DeviceSession*>(q.session);
    const Rows rows{q.position, q.n_rows, q.ledger->n_slots(source),
                    q.ledger->rows(source).n_compacted, own.replay_every()};
    SHARPI_TRY(run(own, *q.ledger, source, with_queries(params(layer, source, rows), q.first_row),
                   p.ws.queue()));
  }
  return Status::ok();
}

Status Replay::of_waiting(DeviceSession& session, const KvLedger& ledger, uint32_t layer) const {
  const uint32_t n = ledger.n_tokens() - ledger.scored_tokens();
  if (n > ledger.n_tokens() - ledger.capture_low()) {
    return Status::error(Code::kInternal,
                         "%u rows wait for replay scores, but their queries are gone", n);
  }
  SHARPI_TRY(m_.device->usable());
  const DeviceScope scope(*m_.device);
  SHARPI_TRY(session.send_tables());
  const Rows rows{ledger.next_position() - n, n, ledger.n_slots(layer) - n,
                  ledger.rows(layer).n_compacted, session.replay_every()};
  for (uint32_t l = layer; l < m_.spec().n_layers(); ++l) {
    const LayerSpec& reader = m_.spec().layers[l];
    if (l != layer && reader.kv_source() != static_cast<int32_t>(layer)) continue;
    ReplayParams t = params(l, layer, rows);
    t.queries = session.queries(l, Capture::kRing);
    if (t.queries == nullptr)
      return Status::error(Code::kInternal, "layer %u has no observed queries", l);
    t.query_rows = session.query_rows(Capture::kRing);
    t.first_query = rows.first_position;
    SHARPI_TRY(run(session, ledger, layer, t, *m_.stream));
  }
  return m_.stream->wait();
}

}  // namespace sharpi::device
