// SPDX-License-Identifier: MIT
#include "device/check_parts.h"

namespace sharpi::device {
namespace {

Status refuse(uint32_t layer, const char* what) {
  return Status::error(Code::kUnsupported, "layer %u has %s, which the GPU does not compute yet",
                       layer, what);
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
    const FfnSpec& f = layer.ffn;
    if (placement.mixer[l] == DeviceIndex::kHere) {
      if (layer.attention.sinks) return refuse(l, "learned sinks of attention");
      if (layer.attention.temperature != 0.0f)
        return refuse(l, "queries that grow with their position");
      if (layer.attention.o_bias) return refuse(l, "a bias of the output projection");
    }
    if (placement.ffn[l] != DeviceIndex::kHere) continue;
    if (f.activation == Activation::kSwigluClamped) return refuse(l, "a clamped SwiGLU");
    if (f.router_bias || f.gate_bias || f.up_bias || f.down_bias)
      return refuse(l, "biases of the router or of experts");
  }
  return Status::ok();
}

}  // namespace sharpi::device
