// SPDX-License-Identifier: MIT
#include "cpu/mamba_blocks.h"

#include <array>
#include <cstring>
#include <vector>

#include "cpu/mamba2_shape.h"

namespace sharpi::cpu {

Status MambaBlocks::run(const Op& op, const Pass& p) const {
  switch (op.kind) {
    case OpKind::kMambaIn:
      project(p, op.layer);
      return Status::ok();
    case OpKind::kMamba:
      for (const SequenceRows& q : p.rows.sequences) rows(p, q, op.layer);
      return Status::ok();
    case OpKind::kMambaOut:
      project_out(p, op.layer);
      return Status::ok();
    default:
      return Status::error(Code::kInternal, "operation \"%s\" does not belong to Mamba-2",
                           op_name(op.kind));
  }
}

void MambaBlocks::project(const Pass& p, uint32_t layer) const {
  const LayerSpec& l = spec_.layers[layer];
  const Mamba2Spec& m = l.mamba;
  ops_.norm_rows(p, p.ws.get(Buf::kX), l.mixer_norm, p.ws.get(Buf::kNorm));
  const MatmulInput in = p.input(Buf::kNorm, spec_.n_embd, p.rows.n_rows, Buf::kActE);
  const std::array<WeightProduct, 3> products = {
      WeightProduct{&m.xbc, p.ws.get(Buf::kQkv), m.conv_dim()},
      WeightProduct{&m.gate, p.ws.get(Buf::kGate), m.inner()},
      WeightProduct{&m.dt, p.ws.get(Buf::kAlpha), m.n_heads}};
  ops_.products(p, in, products);
}

/// What follows from the layer and the session's memory; the rows are missing.
Mamba2Task MambaBlocks::task(const CpuSession& session, uint32_t layer) const {
  const Mamba2Spec& m = spec_.layers[layer].mamba;
  Mamba2Task t;
  t.shape = mamba2_shape(m);
  t.conv1d = f32_weights(m.conv1d);
  t.conv_bias = f32_weights(m.conv_bias);
  t.dt_bias = f32_weights(m.dt_bias);
  t.a = f32_weights(m.a);
  t.d = f32_weights(m.d);
  t.norm = f32_weights(m.norm);
  t.eps = spec_.rms_eps;
  t.state_in = session.state(layer, StatePart::kState, false);
  t.conv_in = session.state(layer, StatePart::kConv, false);
  t.state_out = session.state(layer, StatePart::kState, true);
  t.conv_out = session.state(layer, StatePart::kConv, true);
  return t;
}

/// The rows that were accepted after the committed state. They are kept as they were projected, so
/// they are copied before convolution and steps, which work in place.
Mamba2Task MambaBlocks::pending_task(const CpuSession& session, uint32_t layer,
                                     float* scratch) const {
  const DraftLayout::Layer& at = session.draft_layer(layer);
  Mamba2Task t = task(session, layer);
  t.n_rows = session.pending();
  const auto copied = [&](Mamba2Spec::Input input, uint64_t width) {
    float* to = scratch;
    scratch += t.n_rows * width;
    std::memcpy(to, session.draft_plane(at.planes[input], false), t.n_rows * width * sizeof(float));
    return to;
  };
  t.out = scratch + session.draft_layout().out_offset;
  t.xbc = copied(Mamba2Spec::kXbc, t.shape.conv_dim());
  t.dt = copied(Mamba2Spec::kDt, t.shape.n_heads);
  return t;
}

void MambaBlocks::rows(const Pass& p, const SequenceRows& q, uint32_t layer) const {
  const auto& session = *static_cast<CpuSession*>(q.session);
  Mamba2Task t = task(session, layer);
  Mamba2Task pending;
  if (session.pending() != 0) {
    pending = pending_task(session, layer, session.draft_scratch());
    t.before = &pending;
  }
  const uint64_t width = t.shape.conv_dim(), heads = t.shape.n_heads, inner = t.shape.inner();
  const uint64_t n = q.n_rows, first = q.first_row;
  t.xbc = p.ws.get(Buf::kQkv) + first * width;
  t.z = p.ws.get(Buf::kGate) + first * inner;
  t.dt = p.ws.get(Buf::kAlpha) + first * heads;
  t.out = p.ws.get(Buf::kMix) + first * inner;
  t.n_rows = q.n_rows;
  if (q.drafted) {
    const DraftLayout::Layer& at = session.draft_layer(layer);
    std::memcpy(session.draft_plane(at.planes[Mamba2Spec::kXbc], true), t.xbc,
                n * width * sizeof(float));
    std::memcpy(session.draft_plane(at.planes[Mamba2Spec::kDt], true), t.dt,
                n * heads * sizeof(float));
    t.state_out = t.conv_out = nullptr;
  }
  mamba2(ops_.pool(), kernels_, t, ops_.config().deterministic, p.ws.get<std::byte>(Buf::kDelta),
         p.ws.size(Buf::kDelta));
}

void MambaBlocks::project_out(const Pass& p, uint32_t layer) const {
  const LayerSpec& l = spec_.layers[layer];
  const MatmulInput mixed = p.input(Buf::kMix, l.mamba.inner(), p.rows.n_rows, Buf::kActWide);
  ops_.product(p, mixed, l.mamba.out, p.ws.get(Buf::kY), spec_.n_embd);
  ops_.add_residual(p, {l.residual_scale, l.mixer_post_norm});
}

void MambaBlocks::replay(const CpuSession& session, uint32_t layer, float* state,
                         float* conv) const {
  std::vector<float> rows(session.draft_layout().scratch_floats);
  Mamba2Task t = pending_task(session, layer, rows.data());
  t.state_out = state;
  t.conv_out = conv;
  std::vector<std::byte> scratch(mamba2_scratch_bytes(t.shape, 1, t.n_rows));
  mamba2_alone(kernels_, t, ops_.config().deterministic, scratch.data(), scratch.size());
}

}  // namespace sharpi::cpu
