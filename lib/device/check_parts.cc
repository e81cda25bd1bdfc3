// SPDX-License-Identifier: MIT
#include "device/check_parts.h"

namespace sharpi::device {
namespace {

Status not_yet(uint32_t layer, const char* what) {
  return Status::error(Code::kUnsupported,
                       "layer %u %s, which the GPU does not compute yet; the CPU does", layer,
                       what);
}

/// Latents of a window, or of another layer, would want the chunk scratch of rows that are stored
/// once.
Status check_mixer(uint32_t i, const LayerSpec& l) {
  switch (l.mixer) {
    case MixerKind::kAttention:
      if (l.attention.latent && (l.attention.window != 0 || l.attention.kv_source >= 0))
        return not_yet(i, "has latent attention in a window or over another layer's rows");
      break;
    case MixerKind::kGatedDeltaNet:
    case MixerKind::kMamba2:
    case MixerKind::kNone:
      break;
  }
  return Status::ok();
}

Status check_ffn(uint32_t i, const LayerSpec& l) {
  const FfnSpec& f = l.ffn;
  switch (f.kind) {
    case FfnKind::kDense:
      if (f.gate && !f.up_bias && !f.down_bias) return Status::ok();
      if (!f.gate && f.activation == Activation::kReluSquared) return Status::ok();
      return not_yet(i, "has a dense FFN with a gate and biases, or without and not of squares");
    case FfnKind::kMoe:
      if (f.gate || f.activation == Activation::kReluSquared) return Status::ok();
      return not_yet(i, "has experts without a gate that are not of squares");
    case FfnKind::kNone:
      break;
  }
  return Status::ok();
}

}  // namespace

Status check_parts(const ModelSpec& spec, const Placement& placement) {
  if (spec.is_encoder()) {
    return Status::error(Code::kUnsupported,
                         "%s is an encoder, which the GPU does not compute yet; the CPU does",
                         spec.architecture.c_str());
  }
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    const bool mixer = placement.mixer[l] == DeviceIndex::kHere;
    const bool ffn = placement.ffn[l] == DeviceIndex::kHere;
    if (mixer) SHARPI_TRY(check_mixer(l, layer));
    if (ffn) SHARPI_TRY(check_ffn(l, layer));
    if (ffn && layer.residual_scale != 1.0f && layer.ffn_post_norm && layer.ffn.d_shared != 0)
      return not_yet(l, "scales a shared expert beside experts with a norm of their own");
  }
  return Status::ok();
}

}  // namespace sharpi::device
