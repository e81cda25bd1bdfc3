// SPDX-License-Identifier: MIT
#include "cpu/attention_blocks.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/limits.h"
#include "cpu/attention.h"
#include "cpu/cpu_session.h"
#include "cpu/ops.h"

namespace sharpi::cpu {
namespace {

/// The scratch where a chunk's rows of a sequence are until they are copied into the ring buffer of
/// a sliding-window layer; `like`: the view of that ring buffer.
KvView chunk_view(const Pass& p, const KvView& like, uint32_t sequence) {
  uint64_t block = 0;
  for (uint32_t i = 0; i < sequence; ++i)
    block += div_up(p.rows.sequences[i].n_rows, kKvBlockSlots);
  KvView v = like;
  const uint32_t v_bytes = like.one_row ? 0 : like.v_row_bytes;
  v.block_stride = uint64_t{kKvBlockSlots} * (like.k_row_bytes + v_bytes);
  v.k = p.ws.get<std::byte>(Buf::kKvChunk) + block * v.block_stride;
  v.v = like.one_row ? v.k : v.k + uint64_t{kKvBlockSlots} * like.k_row_bytes;
  return v;
}

/// What the queries of row r of a submission are multiplied by.
float temperature(const AttentionSpec& a, const Submission& rows, uint64_t r) {
  uint64_t position = 0;
  for (const SequenceRows& q : rows.sequences) {
    if (r >= q.first_row && r < q.first_row + q.n_rows) position = q.position + r - q.first_row;
  }
  const double steps = std::floor(static_cast<double>(position) / a.temperature_rows);
  return static_cast<float>(1.0 + static_cast<double>(a.temperature) * std::log(1.0 + steps));
}

/// The keys and values of a text of which nothing is stored, where the projections left them.
KvView text_view(const Pass& p, const AttentionSpec& a, const SequenceRows& q) {
  const uint64_t kv_dim = uint64_t{a.n_kv_heads} * a.head_dim;
  KvView v;
  v.k_row_bytes = v.v_row_bytes = static_cast<uint32_t>(kv_dim * sizeof(float));
  v.block_stride = uint64_t{kKvBlockSlots} * v.k_row_bytes;
  v.k = p.ws.get<std::byte>(Buf::kK) + uint64_t{q.first_row} * v.k_row_bytes;
  v.v = p.ws.get<std::byte>(Buf::kV) + uint64_t{q.first_row} * v.v_row_bytes;
  v.n_heads = a.n_kv_heads;
  v.head_dim = a.head_dim;
  return v;
}

}  // namespace

AttentionBlocks::AttentionBlocks(const BlockOps& ops)
    : ops_(ops),
      latent_(ops),
      spec_(ops.spec()),
      kernels_(ops.kernels()),
      ropes_(make_rope_tables(spec_, &rope_of_layer_)),
      turns_(spec_) {}

Status AttentionBlocks::run(const Op& op, const Pass& p) const {
  switch (op.kind) {
    case OpKind::kRopeTables:
      rope_tables(p);
      return Status::ok();
    case OpKind::kKeepRing:
      return flush_ring(p);
    case OpKind::kAttentionIn:
      project_qkv(p, op.layer);
      return Status::ok();
    case OpKind::kAttentionRows:
      return attention_rows(p, op.layer);
    case OpKind::kAttend:
      return attend(p, op.layer);
    case OpKind::kAttentionOut:
      project_out(p, op.layer);
      return Status::ok();
    default:
      return Status::error(Code::kInternal, "operation \"%s\" does not belong to attention",
                           op_name(op.kind));
  }
}

uint64_t AttentionBlocks::angles_per_row(const CpuWorkspace& ws) const {
  return ws.size(Buf::kCos) / sizeof(float) / (ropes_.size() * ws.layout().max_rows);
}

void AttentionBlocks::rope_tables(const Pass& p) const {
  if (ropes_.empty()) return;
  const uint64_t half = angles_per_row(p.ws);
  for (size_t i = 0; i < ropes_.size(); ++i) {
    const RopeTable& t = ropes_[i];
    for (const SequenceRows& q : p.rows.sequences) {
      for (uint32_t r = 0; r < q.n_rows; ++r) {
        const uint64_t at = (i * p.ws.layout().max_rows + q.first_row + r) * half;
        rope_angles(t.inv_freq.data(), t.spec.n_rot / 2, q.position + r, t.mscale,
                    p.ws.get(Buf::kCos) + at, p.ws.get(Buf::kSin) + at);
      }
    }
  }
}

void AttentionBlocks::project_qkv(const Pass& p, uint32_t layer) const {
  const LayerSpec& l = spec_.layers[layer];
  const AttentionSpec& a = l.attention;
  if (l.mixer_norm) ops_.norm_rows(p, p.ws.get(Buf::kX), l.mixer_norm, p.ws.get(Buf::kNorm));
  const MatmulInput in =
      p.input(l.mixer_norm ? Buf::kNorm : Buf::kX, spec_.n_embd, p.rows.n_rows, Buf::kActE);
  if (a.latent) return latent_.project_in(p, in, a);
  const uint64_t kv = uint64_t{a.n_kv_heads} * a.head_dim;
  std::array<WeightProduct, 3> products;
  size_t n = 0;
  products[n++] = {&a.q, p.ws.get(Buf::kQ), a.q.n_out};
  if (a.kv_source < 0 && !a.fused_qkv) {
    products[n++] = {&a.k, p.ws.get(Buf::kK), kv};
    if (!a.v_from_k) products[n++] = {&a.v, p.ws.get(Buf::kV), kv};
  }
  ops_.products(p, in, {products.data(), n});
  if (a.kv_source < 0 && a.v_from_k) {
    std::memcpy(p.ws.get(Buf::kV), p.ws.get(Buf::kK), p.rows.n_rows * kv * sizeof(float));
  }
}

Status AttentionBlocks::attention_rows(const Pass& p, uint32_t layer) const {
  const AttentionSpec& a = spec_.layers[layer].attention;
  norm_and_rope(p, layer);
  if (!a.causal) return Status::ok();
  if (a.window == 0) capture_queries(p, layer);
  if (a.kv_source < 0) SHARPI_TRY(append_rows(p, layer));
  return a.window == 0 ? capture_replay(p, layer) : Status::ok();
}

void AttentionBlocks::norm_and_rope(const Pass& p, uint32_t layer) const {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const uint32_t d = a.head_dim;
  const uint64_t q_dim = uint64_t{a.n_heads} * d, kv_dim = uint64_t{a.n_kv_heads} * d;
  const uint64_t half = angles_per_row(p.ws);
  const uint64_t table = static_cast<uint64_t>(rope_of_layer_[layer]) * p.ws.layout().max_rows;
  const float eps = spec_.rms_eps;
  const bool own = a.kv_source < 0;
  ops_.each_row(p.rows.n_rows, [&](uint64_t r) {
    const float* cos = p.ws.get(Buf::kCos) + (table + r) * half;
    const float* sin = p.ws.get(Buf::kSin) + (table + r) * half;
    if (a.latent) return latent_.join_row(p, a, r, cos, sin);
    float* q = p.ws.get(Buf::kQ) + r * a.q.n_out;
    float* k = p.ws.get(Buf::kK) + r * kv_dim;
    float* v = p.ws.get(Buf::kV) + r * kv_dim;
    if (a.fused_qkv) {
      std::memcpy(k, q + q_dim, kv_dim * sizeof(float));
      std::memcpy(v, q + q_dim + kv_dim, kv_dim * sizeof(float));
    }
    if (a.q_bias) add_inplace(kernels_, q, f32_weights(a.q_bias), a.q.n_out);
    if (a.k_bias) add_inplace(kernels_, k, f32_weights(a.k_bias), kv_dim);
    if (a.v_bias) add_inplace(kernels_, v, f32_weights(a.v_bias), kv_dim);
    if (a.output_gate) {  // rows are (query, gate) per head: pull them apart
      float* gate = p.ws.get(Buf::kGate) + r * q_dim;
      for (uint32_t h = 0; h < a.n_heads; ++h) {
        std::memcpy(gate + h * d, q + (2 * h + 1) * d, d * sizeof(float));
        std::memmove(q + h * d, q + 2 * h * d, d * sizeof(float));
      }
    }
    if (a.qk_norm == QkNorm::kPerHead) {
      rms_norm_heads(kernels_, q, f32_weights(a.q_norm), eps, a.n_heads, d);
      if (own) rms_norm_heads(kernels_, k, f32_weights(a.k_norm), eps, a.n_kv_heads, d);
    } else if (a.qk_norm == QkNorm::kWholeVector) {
      rms_norm(kernels_, q, f32_weights(a.q_norm), eps, q_dim, q);
      if (own) rms_norm(kernels_, k, f32_weights(a.k_norm), eps, kv_dim, k);
    }
    rope_apply(kernels_, a.rope.pairs, q, a.n_heads, d, a.rope.n_rot, cos, sin);
    if (a.temperature != 0.0f) scale_inplace(kernels_, q, temperature(a, p.rows, r), q_dim);
    if (!own) return;
    rope_apply(kernels_, a.rope.pairs, k, a.n_kv_heads, d, a.rope.n_rot, cos, sin);
    if (a.v_norm) rms_norm_heads(kernels_, v, nullptr, eps, a.n_kv_heads, d);
  });
}

void AttentionBlocks::capture_queries(const Pass& p, uint32_t layer) const {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const uint64_t dim = uint64_t{a.n_heads} * a.head_dim;
  for (const SequenceRows& q : p.rows.sequences) {
    const auto* session = static_cast<CpuSession*>(q.session);
    float* to = session->queries(layer, p.rows.capture);
    if (to == nullptr) continue;
    const uint32_t room = session->query_rows(p.rows.capture);
    const uint32_t skip = q.n_rows > room ? q.n_rows - room : 0;
    for (uint32_t i = skip; i < q.n_rows; ++i) {
      const uint64_t slot = is_by_position(p.rows.capture) ? (q.position + i) % room : i - skip;
      std::memcpy(to + slot * dim, p.ws.get(Buf::kQ) + (q.first_row + i) * a.query_row(),
                  dim * sizeof(float));
    }
  }
}

/// Each head's part of the rows of a sequence goes behind that head's others. Pre: there is room.
Status AttentionBlocks::append_by_head(const Pass& p, uint32_t layer, const SequenceRows& q) const {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const auto* session = static_cast<CpuSession*>(q.session);
  const uint64_t d = a.head_dim, kv_dim = a.n_kv_heads * d;
  std::atomic<bool> bad{false};
  ops_.each_row(q.n_rows, [&](uint64_t i) {
    float* k = p.ws.get(Buf::kK) + (q.first_row + i) * kv_dim;
    float* v = p.ws.get(Buf::kV) + (q.first_row + i) * kv_dim;
    for (uint32_t h = 0; h < a.n_kv_heads; ++h) {
      const KvView to = session->head_view(layer, h);
      const uint64_t slot = q.ledger->n_slots(layer, h) + q.rows_ahead + i;
      if (!store_row(kernels_, to.k_dtype, a.head_dim, k + h * d, d, to.k_row(slot)).is_ok() ||
          (!to.one_row &&
           !store_row(kernels_, to.v_dtype, a.head_dim, v + h * d, d, to.v_row(slot)).is_ok()))
        bad.store(true, std::memory_order_relaxed);
    }
  });
  if (!bad.load()) return Status::ok();
  return Status::error(Code::kInternal, "layer %u stores KV rows in an unknown codec", layer);
}

Status AttentionBlocks::append_rows(const Pass& p, uint32_t layer) const {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const uint64_t kv_dim = uint64_t{a.n_kv_heads} * a.head_dim;
  if (a.window != 0) p.ws.pending_ring = static_cast<int32_t>(layer);
  for (uint32_t s = 0; s < p.rows.sequences.size(); ++s) {
    const SequenceRows& q = p.rows.sequences[s];
    const auto* session = static_cast<CpuSession*>(q.session);
    uint64_t slot0 = 0;
    if (a.window == 0) {
      SHARPI_TRY_ASSIGN(slot0, session->append_slot(layer, *q.ledger, q.rows_ahead + q.n_rows));
      slot0 += q.rows_ahead;
    }
    if (session->is_layer_by_head(layer)) {
      SHARPI_TRY(append_by_head(p, layer, q));
      continue;
    }
    const KvView store = session->view(layer);
    const KvView to = a.window != 0 ? chunk_view(p, store, s) : store;
    std::atomic<bool> bad{false};
    ops_.each_row(q.n_rows, [&](uint64_t i) {
      const uint64_t r = q.first_row + i;
      const Status k = store_row(kernels_, to.k_dtype, a.head_dim, p.ws.get(Buf::kK) + r * kv_dim,
                                 kv_dim, to.k_row(slot0 + i));
      const Status v = to.one_row
                           ? Status::ok()
                           : store_row(kernels_, to.v_dtype, a.head_dim,
                                       p.ws.get(Buf::kV) + r * kv_dim, kv_dim, to.v_row(slot0 + i));
      if (!k.is_ok() || !v.is_ok()) bad.store(true, std::memory_order_relaxed);
    });
    if (bad.load())
      return Status::error(Code::kInternal, "layer %u stores KV rows in an unknown codec", layer);
  }
  return Status::ok();
}

/// Of sequences whose pass gives its rows their replay scores; the rows are stored.
Status AttentionBlocks::capture_replay(const Pass& p, uint32_t layer) const {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const uint32_t source = a.kv_source < 0 ? layer : static_cast<uint32_t>(a.kv_source);
  for (const SequenceRows& q : p.rows.sequences) {
    if (!q.replay || p.rows.transient) continue;
    const auto* session = static_cast<CpuSession*>(q.session);
    ReplayTask t = session->replay_task(source, *q.ledger, a, turns_, layer);
    t.first_slot = q.ledger->n_slots(source);
    t.n_rows = q.n_rows;
    t.first_position = q.position;
    t.q = p.ws.get(Buf::kQ) + q.first_row * a.query_row();
    t.q_stride = a.query_row();
    const auto score = [&](const ReplayTask& task) {
      return score_replay(ops_.pool(), kernels_, task, p.ws.get<std::byte>(Buf::kReplay),
                          p.ws.size(Buf::kReplay));
    };
    if (!session->is_layer_by_head(source)) {
      SHARPI_TRY(score(t));
      continue;
    }
    for (uint32_t h = 0; h < a.n_kv_heads; ++h)
      SHARPI_TRY(score(session->replay_task_of_head(t, source, h, *q.ledger)));
  }
  return Status::ok();
}

Status AttentionBlocks::flush_ring(const Pass& p) const {
  if (p.ws.pending_ring < 0) return Status::ok();
  const auto layer = static_cast<uint32_t>(p.ws.pending_ring);
  p.ws.pending_ring = -1;
  if (p.rows.transient && !p.rows.stores_rings) return Status::ok();
  if (p.rows.rings_written != nullptr) *p.rows.rings_written = true;
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
      for (const bool value : layout.find(layer)->sides())
        std::memcpy(store.row(value, slot), chunk.row(value, i), store.row_bytes(value));
    }
  }
  return Status::ok();
}

Status AttentionBlocks::attend_tasks(const Pass& p, std::span<const AttentionTask> tasks) const {
  return attention(ops_.pool(), kernels_, ops_.config().exact, tasks,
                   p.ws.get<std::byte>(Buf::kAttention), p.ws.size(Buf::kAttention),
                   !ops_.config().deterministic);
}

/// A task for each KV head, over rows of its own: as many at once as a call takes.
Status AttentionBlocks::attend_by_head(const Pass& p, const AttentionTask& all,
                                       const SequenceRows& q, uint32_t source,
                                       uint32_t layer) const {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const auto* session = static_cast<CpuSession*>(q.session);
  std::array<AttentionTask, kMaxBatch> tasks;
  const uint32_t group = a.n_heads / a.n_kv_heads;
  for (uint32_t first = 0; first < a.n_kv_heads; first += kMaxBatch) {
    const uint32_t n = std::min(kMaxBatch, a.n_kv_heads - first);
    for (uint32_t i = 0; i < n; ++i) {
      AttentionTask& t = tasks[i] = all;
      const uint32_t head = first + i;
      t.kv = session->head_view(source, head);
      t.n_heads = group;
      t.q += uint64_t{head} * group * a.head_dim;
      t.o += uint64_t{head} * group * a.head_dim;
      if (t.sinks != nullptr) t.sinks += uint64_t{head} * group;
      t.n_past = q.ledger->n_slots(source, head) + q.rows_ahead;
      if (p.rows.no_context) t.first = t.n_past;
    }
    SHARPI_TRY(attend_tasks(p, {tasks.data(), n}));
  }
  return Status::ok();
}

Status AttentionBlocks::attend(const Pass& p, uint32_t layer) const {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const uint32_t source = a.kv_source < 0 ? layer : static_cast<uint32_t>(a.kv_source);
  std::array<AttentionTask, kMaxBatch> tasks;
  if (p.rows.sequences.size() > kMaxBatch)
    return Status::error(Code::kInternal, "a call cannot read %zu sequences at once",
                         p.rows.sequences.size());
  const uint64_t q_dim = uint64_t{a.n_heads} * a.head_dim;
  size_t n = 0;
  for (uint32_t s = 0; s < p.rows.sequences.size(); ++s) {
    const SequenceRows& q = p.rows.sequences[s];
    AttentionTask& t = tasks[n] = {};
    t.q = p.ws.get(Buf::kQ) + q.first_row * a.query_row();
    t.q_stride = a.query_row();
    t.o = p.ws.get(Buf::kMix) + q.first_row * q_dim;
    t.o_stride = q_dim;
    t.n_rows = q.n_rows;
    t.n_heads = a.n_heads;
    t.scale = a.scale;
    t.window = a.window;
    if (a.sinks) t.sinks = f32_weights(a.sinks);
    if (!a.causal) {
      t.causal = false;
      t.kv = text_view(p, a, q);
      ++n;
      continue;
    }
    const auto* session = static_cast<CpuSession*>(q.session);
    t.pos0 = q.position;
    if (session->is_layer_by_head(source)) {
      SHARPI_TRY(attend_by_head(p, t, q, source, layer));
      continue;
    }
    t.kv = session->view(source);
    t.n_past = q.ledger->n_slots(layer) + q.rows_ahead;
    if (p.rows.no_context) t.first = a.window != 0 ? q.position : t.n_past;
    if (a.window != 0) {
      const KvLayout& layout = session->layout();
      t.ring_slots = layout.groups[static_cast<size_t>(layout.group_of_layer[source])].ring_slots;
      t.chunk = chunk_view(p, t.kv, s);
    }
    ++n;
  }
  SHARPI_TRY(attend_tasks(p, {tasks.data(), n}));
  if (!a.output_gate) return Status::ok();
  ops_.each_row(p.rows.n_rows, [&](uint64_t r) {
    sigmoid_gate(kernels_, p.ws.get(Buf::kMix) + r * q_dim, p.ws.get(Buf::kGate) + r * q_dim,
                 q_dim);
  });
  return Status::ok();
}

void AttentionBlocks::project_out(const Pass& p, uint32_t layer) const {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const MatmulInput in = a.latent ? latent_.project_values(p, a)
                                  : p.input(Buf::kMix, a.mixed_row(), p.rows.n_rows, Buf::kActWide);
  ops_.product(p, in, a.o, p.ws.get(Buf::kY), spec_.n_embd);
  const LayerSpec& l = spec_.layers[layer];
  ops_.add_residual(p, {l.residual_scale, l.mixer_post_norm, a.o_bias, l.mixer_residual_norm});
}

}  // namespace sharpi::cpu
