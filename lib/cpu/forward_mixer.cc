// SPDX-License-Identifier: MIT
// The mixers of the CPU tier: attention over stored rows (full or windowed, own or shared KV) and
// the gated delta net.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/limits.h"
#include "cpu/attention.h"
#include "cpu/cpu_model.h"
#include "cpu/delta_net.h"
#include "cpu/ops.h"

namespace sharpi::cpu {
Status CpuModel::run_mixer_op(const Op& op, Pass& p) const {
  switch (op.kind) {
    case OpKind::kAttentionIn:
      project_qkv(p, op.layer);
      break;
    case OpKind::kAttentionRows:
      return attention_rows(p, op.layer);
    case OpKind::kAttend:
      return attend(p, op.layer);
    case OpKind::kAttentionOut:
      attention_out(p, op.layer);
      break;
    case OpKind::kDeltaIn:
      delta_in(p, op.layer);
      break;
    case OpKind::kDeltaNet:
      for (const SequenceRows& q : p.rows.sequences) delta_rows(p, q, op.layer);
      break;
    case OpKind::kDeltaOut:
      delta_out(p, op.layer);
      break;
    default:
      return Status::error(Code::kInternal, "operation \"%s\" does not belong to a mixer",
                           op_name(op.kind));
  }
  return Status::ok();
}

Status CpuModel::attention_rows(Pass& p, uint32_t layer) const {
  const AttentionSpec& a = spec().layers[layer].attention;
  norm_and_rope(p, layer);
  if (a.window == 0) capture_queries(p, layer);
  return a.kv_source < 0 ? append_rows(p, layer) : Status::ok();
}

void CpuModel::attention_out(Pass& p, uint32_t layer) const {
  const AttentionSpec& a = spec().layers[layer].attention;
  const uint64_t q = uint64_t{a.n_heads} * a.head_dim;
  const MatmulInput in = input(p, Buf::kMix, q, p.rows.n_rows, Buf::kActWide);
  const MatmulTask t = task(a.o, in, p.ws.get(Buf::kY), spec().n_embd);
  mm(p).run({&t, 1});
  add_residual(p, spec().layers[layer].mixer_post_norm);
}

void CpuModel::project_qkv(Pass& p, uint32_t layer) const {
  const LayerSpec& l = spec().layers[layer];
  const AttentionSpec& a = l.attention;
  norm_rows(p, p.ws.get(Buf::kX), l.mixer_norm, p.ws.get(Buf::kNorm));
  const MatmulInput in = input(p, Buf::kNorm, spec().n_embd, p.rows.n_rows, Buf::kActE);
  const uint64_t kv = uint64_t{a.n_kv_heads} * a.head_dim;
  std::array<MatmulTask, 3> tasks;
  size_t n = 0;
  tasks[n++] = task(a.q, in, p.ws.get(Buf::kQ), a.q.n_out);
  if (a.kv_source < 0) {
    tasks[n++] = task(a.k, in, p.ws.get(Buf::kK), kv);
    if (!a.v_from_k) tasks[n++] = task(a.v, in, p.ws.get(Buf::kV), kv);
  }
  mm(p).run({tasks.data(), n});
  if (a.kv_source < 0 && a.v_from_k) {
    std::memcpy(p.ws.get(Buf::kV), p.ws.get(Buf::kK), p.rows.n_rows * kv * sizeof(float));
  }
}

void CpuModel::norm_and_rope(Pass& p, uint32_t layer) const {
  const AttentionSpec& a = spec().layers[layer].attention;
  const uint32_t d = a.head_dim;
  const uint64_t q_dim = uint64_t{a.n_heads} * d, kv_dim = uint64_t{a.n_kv_heads} * d;
  const uint64_t half =
      p.ws.size(Buf::kCos) / sizeof(float) / (ropes_.size() * p.ws.layout().max_rows);
  const uint64_t table = static_cast<uint64_t>(rope_of_layer_[layer]) * p.ws.layout().max_rows;
  const float eps = spec().rms_eps;
  const bool own = a.kv_source < 0;
  each_row(p.rows.n_rows, [&](uint64_t r) {
    float* q = p.ws.get(Buf::kQ) + r * a.q.n_out;
    float* k = p.ws.get(Buf::kK) + r * kv_dim;
    float* v = p.ws.get(Buf::kV) + r * kv_dim;
    if (a.q_bias) add_inplace(isa_, q, f32_weights(a.q_bias), a.q.n_out);
    if (a.k_bias) add_inplace(isa_, k, f32_weights(a.k_bias), kv_dim);
    if (a.v_bias) add_inplace(isa_, v, f32_weights(a.v_bias), kv_dim);
    if (a.output_gate) {  // rows are (query, gate) per head: pull them apart
      float* gate = p.ws.get(Buf::kGate) + r * q_dim;
      for (uint32_t h = 0; h < a.n_heads; ++h) {
        std::memcpy(gate + h * d, q + (2 * h + 1) * d, d * sizeof(float));
        std::memmove(q + h * d, q + 2 * h * d, d * sizeof(float));
      }
    }
    if (a.qk_norm == QkNorm::kPerHead) {
      rms_norm_heads(isa_, q, f32_weights(a.q_norm), eps, a.n_heads, d);
      if (own) rms_norm_heads(isa_, k, f32_weights(a.k_norm), eps, a.n_kv_heads, d);
    } else if (a.qk_norm == QkNorm::kWholeVector) {
      rms_norm(isa_, q, f32_weights(a.q_norm), eps, q_dim, q);
      if (own) rms_norm(isa_, k, f32_weights(a.k_norm), eps, kv_dim, k);
    }
    const float* cos = p.ws.get(Buf::kCos) + (table + r) * half;
    const float* sin = p.ws.get(Buf::kSin) + (table + r) * half;
    rope_apply(isa_, a.rope.pairs, q, a.n_heads, d, a.rope.n_rot, cos, sin);
    if (!own) return;
    rope_apply(isa_, a.rope.pairs, k, a.n_kv_heads, d, a.rope.n_rot, cos, sin);
    if (a.v_norm) rms_norm_heads(isa_, v, nullptr, eps, a.n_kv_heads, d);
  });
}

void CpuModel::capture_queries(Pass& p, uint32_t layer) const {
  const AttentionSpec& a = spec().layers[layer].attention;
  const uint64_t dim = uint64_t{a.n_heads} * a.head_dim;
  for (const SequenceRows& q : p.rows.sequences) {
    const auto* session = static_cast<CpuSession*>(q.session);
    float* to = session->queries(layer, p.rows.capture);
    if (to == nullptr) continue;
    const uint32_t room = session->query_rows(p.rows.capture);
    const uint32_t skip = q.n_rows > room ? q.n_rows - room : 0;
    for (uint32_t i = skip; i < q.n_rows; ++i) {
      const uint64_t slot = p.rows.capture == Capture::kRing ? (q.position + i) % room : i - skip;
      std::memcpy(to + slot * dim, p.ws.get(Buf::kQ) + (q.first_row + i) * a.q.n_out,
                  dim * sizeof(float));
    }
  }
}

KvView CpuModel::chunk_view(Pass& p, const KvView& like, uint32_t sequence) const {
  uint64_t block = 0;
  for (uint32_t i = 0; i < sequence; ++i)
    block += div_up(p.rows.sequences[i].n_rows, kKvBlockSlots);
  KvView v = like;
  v.block_stride = uint64_t{kKvBlockSlots} * (like.k_row_bytes + like.v_row_bytes);
  v.k = p.ws.get<std::byte>(Buf::kKvChunk) + block * v.block_stride;
  v.v = v.k + uint64_t{kKvBlockSlots} * like.k_row_bytes;
  return v;
}

Status CpuModel::append_rows(Pass& p, uint32_t layer) const {
  const AttentionSpec& a = spec().layers[layer].attention;
  const uint64_t kv_dim = uint64_t{a.n_kv_heads} * a.head_dim;
  if (a.window != 0) p.ws.pending_ring = static_cast<int32_t>(layer);
  for (uint32_t s = 0; s < p.rows.sequences.size(); ++s) {
    const SequenceRows& q = p.rows.sequences[s];
    const auto* session = static_cast<CpuSession*>(q.session);
    const KvView store = session->view(layer);
    const KvView to = a.window != 0 ? chunk_view(p, store, s) : store;
    uint64_t slot0 = 0;
    if (a.window == 0) {
      SHARPI_TRY_ASSIGN(slot0, session->append_slot(layer, *q.ledger, q.n_rows));
    }
    std::atomic<bool> bad{false};
    each_row(q.n_rows, [&](uint64_t i) {
      const uint64_t r = q.first_row + i;
      const Status k = store_row(isa_, to.k_dtype, a.head_dim, p.ws.get(Buf::kK) + r * kv_dim,
                                 kv_dim, to.k_row(slot0 + i));
      const Status v = store_row(isa_, to.v_dtype, a.head_dim, p.ws.get(Buf::kV) + r * kv_dim,
                                 kv_dim, to.v_row(slot0 + i));
      if (!k.is_ok() || !v.is_ok()) bad.store(true, std::memory_order_relaxed);
    });
    if (bad.load())
      return Status::error(Code::kInternal, "layer %u stores KV rows in an unknown codec", layer);
  }
  return Status::ok();
}

Status CpuModel::flush_ring(Pass& p) const {
  if (p.ws.pending_ring < 0) return Status::ok();
  const auto layer = static_cast<uint32_t>(p.ws.pending_ring);
  p.ws.pending_ring = -1;
  if (p.rows.transient) return Status::ok();
  for (uint32_t s = 0; s < p.rows.sequences.size(); ++s) {
    const SequenceRows& q = p.rows.sequences[s];
    const auto* session = static_cast<CpuSession*>(q.session);
    const KvLayout& layout = session->layout();
    const uint64_t ring =
        layout.groups[static_cast<size_t>(layout.group_of_layer[layer])].ring_slots;
    const KvView store = session->view(layer);
    const KvView chunk = chunk_view(p, store, s);
    for (uint64_t i = q.n_rows > ring ? q.n_rows - ring : 0; i < q.n_rows; ++i) {
      const uint64_t slot = (q.position + i) % ring;
      std::memcpy(store.k_row(slot), chunk.k_row(i), store.k_row_bytes);
      std::memcpy(store.v_row(slot), chunk.v_row(i), store.v_row_bytes);
    }
  }
  return Status::ok();
}

Status CpuModel::attend(Pass& p, uint32_t layer) const {
  const AttentionSpec& a = spec().layers[layer].attention;
  const uint32_t source = a.kv_source < 0 ? layer : static_cast<uint32_t>(a.kv_source);
  std::array<AttentionTask, kMaxBatch> tasks;
  const size_t n = p.rows.sequences.size();
  if (n > kMaxBatch)
    return Status::error(Code::kInternal, "a call cannot read %zu sequences at once", n);
  const uint64_t q_dim = uint64_t{a.n_heads} * a.head_dim;
  for (uint32_t s = 0; s < n; ++s) {
    const SequenceRows& q = p.rows.sequences[s];
    const auto* session = static_cast<CpuSession*>(q.session);
    AttentionTask& t = tasks[s];
    t.q = p.ws.get(Buf::kQ) + q.first_row * a.q.n_out;
    t.q_stride = a.q.n_out;
    t.o = p.ws.get(Buf::kMix) + q.first_row * q_dim;
    t.o_stride = q_dim;
    t.n_rows = q.n_rows;
    t.n_heads = a.n_heads;
    t.scale = a.scale;
    t.kv = session->view(source);
    t.n_past = q.ledger->n_slots(layer);
    if (p.rows.no_context) t.first = a.window != 0 ? q.position : t.n_past;
    t.window = a.window;
    t.pos0 = q.position;
    if (a.window != 0) {
      const KvLayout& layout = session->layout();
      t.ring_slots = layout.groups[static_cast<size_t>(layout.group_of_layer[source])].ring_slots;
      t.chunk = chunk_view(p, t.kv, s);
    }
  }
  SHARPI_TRY(attention(*pool_, isa_, config_.exact, {tasks.data(), n},
                       p.ws.get<std::byte>(Buf::kAttention), p.ws.size(Buf::kAttention),
                       !config_.deterministic));
  if (!a.output_gate) return Status::ok();
  each_row(p.rows.n_rows, [&](uint64_t r) {
    sigmoid_gate(isa_, p.ws.get(Buf::kMix) + r * q_dim, p.ws.get(Buf::kGate) + r * q_dim, q_dim);
  });
  return Status::ok();
}

/// What follows from the layer and the session's memory; the rows are missing.
DeltaNetTask CpuModel::delta_task(const CpuSession& session, uint32_t layer) const {
  const DeltaNetSpec& d = spec().layers[layer].delta;
  DeltaNetTask t;
  t.shape = DeltaNetShape{d.n_k_heads, d.n_v_heads, d.head_dim, d.conv_kernel};
  t.conv1d = f32_weights(d.conv1d);
  t.dt_bias = f32_weights(d.dt_bias);
  t.a = f32_weights(d.a);
  t.norm = f32_weights(d.norm);
  t.eps = spec().rms_eps;
  t.state_in = session.state(layer, StatePart::kState, false);
  t.conv_in = session.state(layer, StatePart::kConv, false);
  t.state_out = session.state(layer, StatePart::kState, true);
  t.conv_out = session.state(layer, StatePart::kConv, true);
  return t;
}

/// The rows that were accepted after the committed state. They are kept as they were projected, so
/// they are copied before the convolution, which works in place.
DeltaNetTask CpuModel::pending_task(const CpuSession& session, uint32_t layer,
                                    float* scratch) const {
  const DraftLayout::Layer& at = session.draft_layer(layer);
  DeltaNetTask t = delta_task(session, layer);
  t.n_rows = session.pending();
  t.qkv = scratch;
  std::memcpy(scratch, session.draft_plane(at.qkv, false),
              uint64_t{t.n_rows} * t.shape.conv_dim() * sizeof(float));
  t.alpha = session.draft_plane(at.alpha, false);
  t.beta = session.draft_plane(at.beta, false);
  t.out = scratch + session.draft_layout().out_offset;
  return t;
}

void CpuModel::replay(const CpuSession& session, uint32_t layer, float* state, float* conv) const {
  std::vector<float> rows(session.draft_layout().scratch_floats);
  DeltaNetTask t = pending_task(session, layer, rows.data());
  t.state_out = state;
  t.conv_out = conv;
  std::vector<std::byte> scratch(delta_net_scratch_bytes(t.shape, 1, t.n_rows));
  delta_net_alone(isa_, t, config_.deterministic, scratch.data(), scratch.size());
}

void CpuModel::delta_rows(Pass& p, const SequenceRows& q, uint32_t layer) const {
  const auto& session = *static_cast<CpuSession*>(q.session);
  DeltaNetTask t = delta_task(session, layer);
  std::byte* scratch = p.ws.get<std::byte>(Buf::kDelta);
  const uint64_t scratch_bytes = p.ws.size(Buf::kDelta);
  if (session.pending() != 0) {
    delta_net(*pool_, isa_, pending_task(session, layer, session.draft_scratch()),
              config_.deterministic, scratch, scratch_bytes);
    t.state_in = t.state_out;
    t.conv_in = t.conv_out;
  }
  const uint64_t width = t.shape.conv_dim(), heads = t.shape.n_v_heads, n = q.n_rows;
  t.qkv = p.ws.get(Buf::kQkv) + q.first_row * width;
  t.z = p.ws.get(Buf::kGate) + uint64_t{q.first_row} * t.shape.value_dim();
  t.alpha = p.ws.get(Buf::kAlpha) + q.first_row * heads;
  t.beta = p.ws.get(Buf::kBeta) + q.first_row * heads;
  t.out = p.ws.get(Buf::kMix) + uint64_t{q.first_row} * t.shape.value_dim();
  t.n_rows = q.n_rows;
  if (q.drafted) {
    const DraftLayout::Layer& at = session.draft_layer(layer);
    std::memcpy(session.draft_plane(at.qkv, true), t.qkv, n * width * sizeof(float));
    std::memcpy(session.draft_plane(at.alpha, true), t.alpha, n * heads * sizeof(float));
    std::memcpy(session.draft_plane(at.beta, true), t.beta, n * heads * sizeof(float));
    t.state_out = t.conv_out = nullptr;
  }
  delta_net(*pool_, isa_, t, config_.deterministic, scratch, scratch_bytes);
}

void CpuModel::delta_in(Pass& p, uint32_t layer) const {
  const LayerSpec& l = spec().layers[layer];
  const DeltaNetSpec& d = l.delta;
  norm_rows(p, p.ws.get(Buf::kX), l.mixer_norm, p.ws.get(Buf::kNorm));
  const MatmulInput in = input(p, Buf::kNorm, spec().n_embd, p.rows.n_rows, Buf::kActE);
  const std::array<MatmulTask, 4> tasks = {task(d.qkv, in, p.ws.get(Buf::kQkv), d.conv_dim()),
                                           task(d.gate, in, p.ws.get(Buf::kGate), d.value_dim()),
                                           task(d.alpha, in, p.ws.get(Buf::kAlpha), d.n_v_heads),
                                           task(d.beta, in, p.ws.get(Buf::kBeta), d.n_v_heads)};
  mm(p).run(tasks);
}

void CpuModel::delta_out(Pass& p, uint32_t layer) const {
  const LayerSpec& l = spec().layers[layer];
  const DeltaNetSpec& d = l.delta;
  const MatmulInput mixed = input(p, Buf::kMix, d.value_dim(), p.rows.n_rows, Buf::kActWide);
  const MatmulTask out = task(d.out, mixed, p.ws.get(Buf::kY), spec().n_embd);
  mm(p).run({&out, 1});
  add_residual(p, l.mixer_post_norm);
}

}  // namespace sharpi::cpu
