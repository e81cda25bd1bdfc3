// SPDX-License-Identifier: MIT
#include "cuda/mixer_launches.h"

#include "cuda/delta_shape.h"
#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/latent/latent.h"
#include "cuda/kernels/products/matmul.h"
#include "cuda/mamba2_shape.h"
#include "cuda/weight_matrix.h"

namespace sharpi::cuda {

KvLayer MixerLaunches::kv_layer(Pass& p, uint32_t layer) const {
  const AttentionSpec& a = m_.spec().layers[layer].attention;
  const auto source = a.kv_source < 0 ? layer : static_cast<uint32_t>(a.kv_source);
  KvLayer kv = p.format.layers[source];
  if (a.window != 0) kv.chunk = p.ws.get<std::byte>(Buf::kKvChunk);
  return kv;
}

Status MixerLaunches::store_rows(Pass& p, uint32_t layer) const {
  const AttentionSpec& a = m_.spec().layers[layer].attention;
  if (a.latent) return latent_rows(p, layer);
  QkvParams rows = describe_rows(p, layer);
  const bool own_ring = a.kv_source < 0 && a.window != 0;
  rows.to_ring = own_ring && p.rows_to_ring();
  rows.by_head = p.by_head && a.window == 0;
  return launch_qkv(rows, s_.of(p).pdl, raw_stream(p));
}

QkvParams MixerLaunches::describe_rows(Pass& p, uint32_t layer) const {
  const AttentionSpec& a = m_.spec().layers[layer].attention;
  const bool own = a.kv_source < 0;
  const uint64_t table = static_cast<uint64_t>(m_.rope_of_layer[layer]) * p.ws.layout().max_rows *
                         p.ws.layout().n_half;
  QkvParams q;
  q.batch = p.batch;
  q.kv = kv_layer(p, layer);
  q.n_heads = a.n_heads;
  q.q = p.ws.get(Buf::kQ);
  q.q_stride = a.q.n_out;
  q.q_head_stride = a.output_gate ? 2 * a.head_dim : a.head_dim;
  if (own) {
    q.k = p.ws.get(Buf::kK);
    q.v = a.v_from_k ? nullptr : p.ws.get(Buf::kV);
    q.kv_stride = uint64_t{a.n_kv_heads} * a.head_dim;
  }
  q.q_bias = m_.floats(a.q_bias);
  q.k_bias = m_.floats(a.k_bias);
  q.v_bias = m_.floats(a.v_bias);
  q.norm = static_cast<HeadNorm>(a.qk_norm);
  q.q_norm = m_.floats(a.q_norm);
  q.k_norm = m_.floats(a.k_norm);
  q.v_norm = a.v_norm;
  q.eps = m_.spec().rms_eps;
  q.cos = p.ws.get(Buf::kCos) + table;
  q.sin = p.ws.get(Buf::kSin) + table;
  q.n_half = a.rope.n_rot / 2;
  q.neighbours = a.rope.pairs == RopePairs::kNeighbours;
  q.temperature = a.temperature;
  q.temperature_rows = a.temperature_rows;
  q.q_out = p.ws.get(Buf::kQuery);
  q.query_offset = m_.query_layout.offset_of_layer[layer];
  return q;
}

Status MixerLaunches::attend(Pass& p, uint32_t layer) const {
  const AttentionSpec& a = m_.spec().layers[layer].attention;
  const uint64_t q_dim = uint64_t{a.n_heads} * a.head_dim;
  AttentionParams t;
  t.batch = p.batch;
  t.kv = kv_layer(p, layer);
  t.n_heads = a.n_heads;
  t.scale = a.scale;
  t.sinks = m_.floats(a.sinks);
  t.q = p.ws.get(Buf::kQuery);
  t.q_stride = q_dim;
  if (a.output_gate) {
    t.gate = p.ws.get(Buf::kQ) + a.head_dim;
    t.gate_stride = a.q.n_out;
    t.gate_head_stride = 2 * a.head_dim;
  }
  t.o = p.ws.get(Buf::kMix);
  t.o_stride = q_dim;
  t.workspace = p.ws.get<std::byte>(Buf::kAttention);
  t.workspace_bytes = p.ws.size(Buf::kAttention);
  t.may_wait = m_.fuses(p.n_rows()) && m_.blocks_meet;
  t.by_head = p.by_head && a.window == 0;
  return a.latent ? launch_latent_attention(s_.of(p), t, raw_stream(p))
                  : launch_attention(s_.of(p), t, raw_stream(p));
}

Status MixerLaunches::latent_rows(Pass& p, uint32_t layer) const {
  const AttentionSpec& a = m_.spec().layers[layer].attention;
  const QkvParams q = describe_rows(p, layer);
  LatentRowsParams r;
  r.batch = q.batch;
  r.kv = q.kv;
  r.n_heads = q.n_heads;
  r.key_dim = a.latent.key_dim;
  r.q = q.q;
  r.q_stride = q.q_stride;
  r.row = q.k;
  r.norm = m_.floats(a.latent.kv_norm);
  r.eps = q.eps;
  r.cos = q.cos;
  r.sin = q.sin;
  r.n_half = q.n_half;
  r.neighbours = q.neighbours;
  r.q_out = q.q_out;
  r.query_offset = q.query_offset;
  r.by_head = p.by_head;
  return launch_latent_rows(r, s_.of(p).pdl, raw_stream(p));
}

Status MixerLaunches::heads(Pass& p, const device::HeadProduct& h) const {
  const DeviceMatrix all = matrix_of(*h.w, m_.weight(*h.w));
  MatmulParams m;
  m.x_stride = h.x.row;
  m.n_rows = p.n_rows();
  m.n_tasks = 1;
  m.workspace = p.ws.get<std::byte>(Buf::kKernel);
  m.workspace_bytes = p.ws.size(Buf::kKernel);
  for (uint32_t i = 0; i < h.n_heads(); ++i) {
    DeviceMatrix one = all;
    one.n_experts = 1;
    one.data += i * all.expert_bytes;
    one.expert_bytes = 0;
    m.x = p.ws.get(h.x.buf) + h.x.first + i * h.x.head;
    m.tasks[0] = {one, p.ws.get(h.y.buf) + h.y.first + i * h.y.head, h.y.row};
    SHARPI_TRY(launch_matmul(s_.of(p), m, raw_stream(p)));
  }
  return Status::ok();
}

Status MixerLaunches::flush_ring(Pass& p, uint32_t layer) const {
  return launch_ring_flush({p.batch, kv_layer(p, layer)}, s_.of(p).pdl, raw_stream(p));
}

/// Planes have as many rows as the session says, so a layer's place counts in rows.
uint64_t MixerLaunches::kept_unit(uint32_t layer) const {
  if (m_.draft_layout.n_rows == 0) return 0;
  const auto index = static_cast<size_t>(m_.state_layout.index_of_layer[layer]);
  return m_.draft_layout.layers[index].planes[0] / m_.draft_layout.n_rows;
}

/// What follows from the layer; rows and sequences are missing.
DeltaNetParams MixerLaunches::delta_params(uint32_t layer) const {
  const DeltaNetSpec& d = m_.spec().layers[layer].delta;
  const StateLayout::Layer& at = *m_.state_layout.find(layer);
  DeltaNetParams t;
  t.shape = delta_shape(d);
  t.state_offset = at.state_offset;
  t.conv_offset = at.conv_offset;
  t.conv1d = m_.floats(d.conv1d);
  t.dt_bias = m_.floats(d.dt_bias);
  t.a = m_.floats(d.a);
  t.norm = m_.floats(d.norm);
  t.eps = m_.spec().rms_eps;
  t.drafts = m_.draft_layout.n_rows != 0;
  t.kept_unit = kept_unit(layer);
  return t;
}

/// What follows from the layer; rows and sequences are missing.
Mamba2Params MixerLaunches::mamba_params(uint32_t layer) const {
  const Mamba2Spec& s = m_.spec().layers[layer].mamba;
  const StateLayout::Layer& at = *m_.state_layout.find(layer);
  Mamba2Params t;
  t.shape = mamba2_shape(s);
  t.state_offset = at.state_offset;
  t.conv_offset = at.conv_offset;
  t.conv1d = m_.floats(s.conv1d);
  t.conv_bias = m_.floats(s.conv_bias);
  t.dt_bias = m_.floats(s.dt_bias);
  t.a = m_.floats(s.a);
  t.d = m_.floats(s.d);
  t.norm = m_.floats(s.norm);
  t.eps = m_.spec().rms_eps;
  t.drafts = m_.draft_layout.n_rows != 0;
  t.kept_unit = kept_unit(layer);
  return t;
}

Status MixerLaunches::mamba(Pass& p, uint32_t layer) const {
  Mamba2Params t = mamba_params(layer);
  t.batch = p.batch;
  t.drafted = p.drafted;
  t.xbc = p.ws.get(Buf::kQkv);
  t.z = p.ws.get(Buf::kZ);
  t.dt = p.ws.get(Buf::kAlpha);
  t.out = p.ws.get(Buf::kMix);
  return launch_mamba2(s_.of(p), t, raw_stream(p));
}

Status MixerLaunches::replay(const DeviceSession& session, uint32_t layer) const {
  if (m_.spec().layers[layer].mixer == MixerKind::kMamba2) {
    Mamba2Params t = mamba_params(layer);
    t.sequence = pending_sequence(session);
    return s_.device.settle(launch_mamba2_replay(t, stream_of(*m_.stream)));
  }
  DeltaNetParams t = delta_params(layer);
  t.sequence = pending_sequence(session);
  return s_.device.settle(launch_delta_replay(s_.step, t, stream_of(*m_.stream)));
}

Status MixerLaunches::delta_net(Pass& p, uint32_t layer) const {
  const LayerSpec& l = m_.spec().layers[layer];
  DeltaNetParams t = delta_params(layer);
  t.batch = p.batch;
  t.drafted = p.drafted;
  t.qkv = p.ws.get(Buf::kQkv);
  t.z = p.ws.get(Buf::kZ);
  t.alpha = p.ws.get(Buf::kAlpha);
  t.beta = p.ws.get(Buf::kBeta);
  const auto next = static_cast<size_t>(m_.state_layout.index_of_layer[layer]) + 1;
  if (l.ffn.kind == FfnKind::kMoe && p.single_rows && next < m_.state_layout.layers.size()) {
    // Experts' weights leave memory time over, and do not drive what comes early out of the cache.
    const StateLayout::Layer& to = m_.state_layout.layers[next];
    t.next_conv1d = m_.floats(m_.spec().layers[to.layer].delta.conv1d);
    t.next_state_offset = to.state_offset;
    t.next_conv_offset = to.conv_offset;
  }
  t.out = p.ws.get(Buf::kMix);
  t.workspace = p.ws.get<std::byte>(Buf::kKernel);
  t.workspace_bytes = p.ws.size(Buf::kKernel);
  return launch_delta_net(s_.of(p), t, raw_stream(p));
}

}  // namespace sharpi::cuda
