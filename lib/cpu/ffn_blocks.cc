// SPDX-License-Identifier: MIT
#include "cpu/ffn_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "cpu/ops.h"

namespace sharpi::cpu {

Status FfnBlocks::run(const Op& op, Pass& p) const {
  const LayerSpec& l = spec_.layers[op.layer];
  const FfnSpec& f = l.ffn;
  switch (op.kind) {
    case OpKind::kFfnIn:
      norm_ffn(p, l);
      hidden(p, f, f.gate, f.up, f.up_bias, f.d_ff);
      break;
    case OpKind::kFfnOut:
      down(p, f.down, f.d_ff);
      ops_.add_residual(p, {l.residual_scale, l.ffn_post_norm, f.down_bias, l.ffn_residual_norm});
      break;
    case OpKind::kRoute:
      route(p, l);
      break;
    case OpKind::kSharedExpert:
      f.beside_dense() ? dense_path(p, l) : shared_expert(p, l);
      break;
    case OpKind::kInjectPerLayer:
      per_layer_injection(p, op.layer);
      break;
    case OpKind::kScaleLayer:
      scale_layer(p, l);
      break;
    default:
      return Status::error(Code::kInternal, "operation \"%s\" does not belong to an FFN block",
                           op_name(op.kind));
  }
  return Status::ok();
}

void FfnBlocks::norm_ffn(Pass& p, const LayerSpec& l) const {
  if (l.ffn_norm) ops_.norm_rows(p, p.ws.get(Buf::kX), l.ffn_norm, p.ws.get(Buf::kNorm));
  p.normed = p.input(l.ffn_norm ? Buf::kNorm : Buf::kX, spec_.n_embd, p.rows.n_rows, Buf::kActE);
}

void FfnBlocks::hidden(const Pass& p, const FfnSpec& f, const TensorRef& gate, const TensorRef& up,
                       const TensorRef& up_bias, uint64_t width) const {
  const MatmulInput& in = p.normed;
  float* g = p.ws.get(Buf::kFfnGate);
  float* u = p.ws.get(Buf::kFfnUp);
  if (!gate) {
    ops_.product(p, in, up, g, width);
    ops_.activate_alone(f, g, f32_weights(up_bias), width, p.rows.n_rows);
    return;
  }
  const std::array<WeightProduct, 2> products = {WeightProduct{&gate, g, width},
                                                 WeightProduct{&up, u, width}};
  ops_.products(p, in, products);
  ops_.activate(f, g, u, width, width, p.rows.n_rows, g);
}

void FfnBlocks::down(const Pass& p, const TensorRef& down, uint64_t width) const {
  const MatmulInput h = p.input(Buf::kFfnGate, width, p.rows.n_rows, Buf::kActWide);
  ops_.product(p, h, down, p.ws.get(Buf::kY), spec_.n_embd);
}

void FfnBlocks::norm_router(Pass& p, const LayerSpec& l) const {
  if (!l.ffn.beside_dense()) {
    norm_ffn(p, l);
    return;
  }
  const uint64_t e = spec_.n_embd;
  float* n = p.ws.get(Buf::kNorm);
  ops_.norm_rows(p, p.ws.get(Buf::kX), l.ffn.router_scale, n);
  scale_inplace(kernels_, n, 1.0f / std::sqrt(static_cast<float>(e)), p.rows.n_rows * e);
  p.normed = p.input(Buf::kNorm, e, p.rows.n_rows, Buf::kActE);
}

/// Of one row's logits, which are overwritten; `scores`: room for as many numbers where the choice
/// is by others than the shares.
void FfnBlocks::choose(const FfnSpec& f, float* logits, float* scores, uint32_t* ids,
                       float* weights) const {
  const uint32_t n = f.n_experts;
  switch (f.scores) {
    case RouterScores::kSoftmax:
      softmax(kernels_, logits, n);
      break;
    case RouterScores::kSigmoid:
      sigmoid(kernels_, logits, n);
      break;
  }
  if (!f.choice_bias) return top_k(logits, n, f.n_used, ids, weights);
  std::memcpy(scores, logits, n * sizeof(float));
  add_inplace(kernels_, scores, f32_weights(f.choice_bias), n);
  top_k(scores, n, f.n_used, ids, weights);
  for (uint32_t j = 0; j < f.n_used; ++j) weights[j] = logits[ids[j]];
}

void FfnBlocks::route(Pass& p, const LayerSpec& l) const {
  const FfnSpec& f = l.ffn;
  norm_router(p, l);
  float* logits = p.ws.get(Buf::kRouter);
  p.product(f.router, p.normed, logits, f.n_experts, true);
  auto* ids = p.ws.get<uint32_t>(Buf::kMoeIds);
  float* weights = p.ws.get(Buf::kMoeWeights);
  ops_.each_row(p.rows.n_rows, [&](uint64_t r) {
    float* prob = logits + r * f.n_experts;
    float* w = weights + r * f.n_used;
    if (f.router_bias) add_inplace(kernels_, prob, f32_weights(f.router_bias), f.n_experts);
    choose(f, prob, f.choice_bias ? p.ws.get(Buf::kScores) + r * f.n_experts : nullptr,
           ids + r * f.n_used, w);
    if (f.renormalize) {
      float sum = 0.0f;
      for (uint32_t j = 0; j < f.n_used; ++j) sum += w[j];
      for (uint32_t j = 0; j < f.n_used; ++j) w[j] /= std::max(sum, 0x1p-14f);
    }
    if (f.share_scale != 1.0f) scale_inplace(kernels_, w, f.share_scale, f.n_used);
    if (!f.expert_scale) return;
    const float* scale = f32_weights(f.expert_scale);
    for (uint32_t j = 0; j < f.n_used; ++j) w[j] *= scale[ids[r * f.n_used + j]];
  });
}

/// The dense path, and with it the end of both: x += norm(dense + routed).
void FfnBlocks::dense_path(Pass& p, const LayerSpec& l) const {
  const FfnSpec& f = l.ffn;
  norm_ffn(p, l);
  hidden(p, f, f.shared_gate, f.shared_up, {}, f.d_shared);
  down(p, f.shared_down, f.d_shared);
  float* y = p.ws.get(Buf::kY);
  ops_.norm_rows(p, y, f.shared_post_norm, y);
  add_inplace(kernels_, y, p.ws.get(Buf::kMoeSum), uint64_t{p.rows.n_rows} * spec_.n_embd);
  ops_.add_residual(p, {l.residual_scale, l.ffn_post_norm});
}

void FfnBlocks::shared_expert(const Pass& p, const LayerSpec& l) const {
  const FfnSpec& f = l.ffn;
  const uint64_t d = spec_.n_embd;
  float* x = p.ws.get(Buf::kX);
  hidden(p, f, f.shared_gate, f.shared_up, {}, f.d_shared);
  down(p, f.shared_down, f.d_shared);
  const float* n = p.ws.get(Buf::kNorm);
  ops_.each_row(p.rows.n_rows, [&](uint64_t r) {
    float gate = l.residual_scale;
    if (f.shared_gate_inp) {
      float s = dot(kernels_, f32_weights(f.shared_gate_inp), n + r * d, d);
      sigmoid_gate(kernels_, &gate, &s, 1);
    }
    add_scaled(kernels_, x + r * d, p.ws.get(Buf::kY) + r * d, gate, d);
  });
}

void FfnBlocks::scale_layer(const Pass& p, const LayerSpec& l) const {
  scale_inplace(kernels_, p.ws.get(Buf::kX), l.output_scale,
                uint64_t{p.rows.n_rows} * spec_.n_embd);
}

void FfnBlocks::per_layer_injection(const Pass& p, uint32_t layer) const {
  const LayerSpec& l = spec_.layers[layer];
  const uint64_t width = spec_.d_ple;
  const uint64_t all = uint64_t{spec_.n_layers()} * width;
  const MatmulInput in = p.input(Buf::kX, spec_.n_embd, p.rows.n_rows, Buf::kActE);
  float* t = p.ws.get(Buf::kPleTmp);
  p.product(l.ple_gate, in, t, width);
  ops_.each_row(p.rows.n_rows, [&](uint64_t r) {
    geglu(kernels_, t + r * width, p.ws.get(Buf::kPle) + r * all + layer * width, width,
          t + r * width);
  });
  const MatmulInput h = p.input(Buf::kPleTmp, width, p.rows.n_rows, Buf::kActWide);
  p.product(l.ple_proj, h, p.ws.get(Buf::kY), spec_.n_embd);
  ops_.add_residual(p, {1.0f, l.ple_post_norm});
}

}  // namespace sharpi::cpu
