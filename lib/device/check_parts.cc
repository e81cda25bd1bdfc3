// SPDX-License-Identifier: MIT
#include "device/check_parts.h"

namespace sharpi::device {

Status check_parts(const ModelSpec& spec, const Placement& placement) {
  if (spec.is_encoder()) {
    return Status::error(Code::kUnsupported,
                         "%s is an encoder, which the GPU does not compute yet; the CPU does",
                         spec.architecture.c_str());
  }
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const FfnSpec& f = spec.layers[l].ffn;
    if (placement.ffn[l] != DeviceIndex::kHere || f.kind != FfnKind::kDense) continue;
    if (f.gate && !f.up_bias && !f.down_bias) continue;
    return Status::error(Code::kUnsupported,
                         "layer %u has a dense FFN without a gate or with biases, which the GPU "
                         "does not compute yet",
                         l);
  }
  return Status::ok();
}

}  // namespace sharpi::device
