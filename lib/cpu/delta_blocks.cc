// SPDX-License-Identifier: MIT
#include "cpu/delta_blocks.h"

#include <array>
#include <cstring>
#include <vector>

#include "cpu/delta_shape.h"

namespace sharpi::cpu {

Status DeltaBlocks::run(const Op& op, const Pass& p) const {
  switch (op.kind) {
    case OpKind::kDeltaIn:
      project(p, op.layer);
      return Status::ok();
    case OpKind::kDeltaNet:
      for (const SequenceRows& q : p.rows.sequences) delta_rows(p, q, op.layer);
      return Status::ok();
    case OpKind::kDeltaOut:
      project_out(p, op.layer);
      return Status::ok();
    default:
      return Status::error(Code::kInternal, "operation \"%s\" does not belong to a delta net",
                           op_name(op.kind));
  }
}

void DeltaBlocks::project(const Pass& p, uint32_t layer) const {
  const LayerSpec& l = spec_.layers[layer];
  const DeltaNetSpec& d = l.delta;
  ops_.norm_rows(p, p.ws.get(Buf::kX), l.mixer_norm, p.ws.get(Buf::kNorm));
  const MatmulInput in = p.input(Buf::kNorm, spec_.n_embd, p.rows.n_rows, Buf::kActE);
  const std::array<WeightProduct, 4> products = {
      WeightProduct{&d.qkv, p.ws.get(Buf::kQkv), d.conv_dim()},
      WeightProduct{&d.gate, p.ws.get(Buf::kGate), d.value_dim()},
      WeightProduct{&d.alpha, p.ws.get(Buf::kAlpha), d.n_v_heads},
      WeightProduct{&d.beta, p.ws.get(Buf::kBeta), d.n_v_heads}};
  ops_.products(p, in, products);
}

/// What follows from the layer and the session's memory; the rows are missing.
DeltaNetTask DeltaBlocks::delta_task(const CpuSession& session, uint32_t layer) const {
  const DeltaNetSpec& d = spec_.layers[layer].delta;
  DeltaNetTask t;
  t.shape = delta_shape(d);
  t.conv1d = f32_weights(d.conv1d);
  t.dt_bias = f32_weights(d.dt_bias);
  t.a = f32_weights(d.a);
  t.norm = f32_weights(d.norm);
  t.eps = spec_.rms_eps;
  t.state_in = session.state(layer, StatePart::kState, false);
  t.conv_in = session.state(layer, StatePart::kConv, false);
  t.state_out = session.state(layer, StatePart::kState, true);
  t.conv_out = session.state(layer, StatePart::kConv, true);
  return t;
}

/// The rows that were accepted after the committed state. They are kept as they were projected, so
/// they are copied before the convolution, which works in place.
DeltaNetTask DeltaBlocks::pending_task(const CpuSession& session, uint32_t layer,
                                       float* scratch) const {
  const DraftLayout::Layer& at = session.draft_layer(layer);
  DeltaNetTask t = delta_task(session, layer);
  t.n_rows = session.pending();
  t.qkv = scratch;
  std::memcpy(scratch, session.draft_plane(at.planes[DeltaNetSpec::kQkv], false),
              uint64_t{t.n_rows} * t.shape.conv_dim() * sizeof(float));
  t.alpha = session.draft_plane(at.planes[DeltaNetSpec::kAlpha], false);
  t.beta = session.draft_plane(at.planes[DeltaNetSpec::kBeta], false);
  t.out = scratch + session.draft_layout().out_offset;
  return t;
}

void DeltaBlocks::delta_rows(const Pass& p, const SequenceRows& q, uint32_t layer) const {
  const auto& session = *static_cast<CpuSession*>(q.session);
  DeltaNetTask t = delta_task(session, layer);
  DeltaNetTask pending;
  if (session.pending() != 0) {
    pending = pending_task(session, layer, session.draft_scratch());
    t.before = &pending;
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
    std::memcpy(session.draft_plane(at.planes[DeltaNetSpec::kQkv], true), t.qkv,
                n * width * sizeof(float));
    std::memcpy(session.draft_plane(at.planes[DeltaNetSpec::kAlpha], true), t.alpha,
                n * heads * sizeof(float));
    std::memcpy(session.draft_plane(at.planes[DeltaNetSpec::kBeta], true), t.beta,
                n * heads * sizeof(float));
    t.state_out = t.conv_out = nullptr;
  }
  delta_net(ops_.pool(), kernels_, t, ops_.config().deterministic, p.ws.get<std::byte>(Buf::kDelta),
            p.ws.size(Buf::kDelta));
}

void DeltaBlocks::project_out(const Pass& p, uint32_t layer) const {
  const LayerSpec& l = spec_.layers[layer];
  const DeltaNetSpec& d = l.delta;
  const MatmulInput mixed = p.input(Buf::kMix, d.value_dim(), p.rows.n_rows, Buf::kActWide);
  ops_.product(p, mixed, d.out, p.ws.get(Buf::kY), spec_.n_embd);
  ops_.add_residual(p, {l.residual_scale, l.mixer_post_norm});
}

void DeltaBlocks::replay(const CpuSession& session, uint32_t layer, float* state,
                         float* conv) const {
  std::vector<float> rows(session.draft_layout().scratch_floats);
  DeltaNetTask t = pending_task(session, layer, rows.data());
  t.state_out = state;
  t.conv_out = conv;
  std::vector<std::byte> scratch(delta_net_scratch_bytes(t.shape, 1, t.n_rows));
  delta_net_alone(kernels_, t, ops_.config().deterministic, scratch.data(), scratch.size());
}

}  // namespace sharpi::cpu
