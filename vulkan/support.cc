// SPDX-License-Identifier: MIT
#include "vulkan/support.h"

#include <algorithm>

namespace sharpi::vulkan {
namespace {

// Room that shaders have in shared memory and registers.
constexpr uint32_t kMostHead = 1024, kMostExperts = 1024, kMostUsed = 64, kMostDelta = 256,
                   kMostTaps = 8, kMostState = 256;

Status too_many(uint32_t layer, const char* what, uint32_t has, uint32_t most) {
  return Status::error(Code::kUnsupported, "layer %u has %s %u; the Vulkan tier takes at most %u",
                       layer, what, has, most);
}

Status check_attention(uint32_t layer, const AttentionSpec& a) {
  const uint32_t widest = std::max(a.head_dim, a.latent.value_dim);
  if (widest > kMostHead) return too_many(layer, "heads of", widest, kMostHead);
  if (a.n_heads % a.n_kv_heads == 0) return Status::ok();
  return Status::error(Code::kUnsupported,
                       "layer %u has %u query heads over %u KV heads; the Vulkan tier takes whole "
                       "groups",
                       layer, a.n_heads, a.n_kv_heads);
}

Status check_delta(uint32_t layer, const DeltaNetSpec& d) {
  if (d.head_dim > kMostDelta) return too_many(layer, "delta net heads of", d.head_dim, kMostDelta);
  if (d.conv_kernel > kMostTaps)
    return too_many(layer, "convolution taps", d.conv_kernel, kMostTaps);
  return Status::ok();
}

Status check_mamba(uint32_t layer, const Mamba2Spec& m) {
  if (m.state_dim > kMostState)
    return too_many(layer, "states of Mamba-2 of", m.state_dim, kMostState);
  if (m.conv_kernel > kMostTaps)
    return too_many(layer, "convolution taps", m.conv_kernel, kMostTaps);
  return Status::ok();
}

Status check_mixer(uint32_t i, const LayerSpec& l) {
  switch (l.mixer) {
    case MixerKind::kAttention:
      return check_attention(i, l.attention);
    case MixerKind::kGatedDeltaNet:
      return check_delta(i, l.delta);
    case MixerKind::kMamba2:
      return check_mamba(i, l.mamba);
    case MixerKind::kNone:
      break;
  }
  return Status::ok();
}

Status check_ffn(uint32_t i, const LayerSpec& l) {
  if (l.ffn.kind != FfnKind::kMoe) return Status::ok();
  if (l.ffn.n_experts > kMostExperts) return too_many(i, "experts", l.ffn.n_experts, kMostExperts);
  if (l.ffn.n_used > kMostUsed) return too_many(i, "experts a row", l.ffn.n_used, kMostUsed);
  return Status::ok();
}

}  // namespace

Status check_support(const ModelSpec& spec, const Placement& placement) {
  for (uint32_t i = 0; i < spec.n_layers(); ++i) {
    if (placement.mixer[i] == DeviceIndex::kHere) SHARPI_TRY(check_mixer(i, spec.layers[i]));
    if (placement.ffn[i] == DeviceIndex::kHere) SHARPI_TRY(check_ffn(i, spec.layers[i]));
  }
  return Status::ok();
}

Status check_software_rows(const ModelSpec& spec, const Placement& placement, uint32_t n_rows) {
  constexpr uint32_t kMostRows = 48 << 10;
  for (uint32_t i = 0; i < spec.n_layers() && n_rows > kMostRows; ++i) {
    if (spec.layers[i].attends_to_all() == nullptr || placement.mixer[i] != DeviceIndex::kHere)
      continue;
    return Status::error(Code::kUnsupported,
                         "layer %u would attend to up to %u rows; on a Vulkan device of software "
                         "the Vulkan tier takes at most %u (n_ctx or kv_budget)",
                         i, n_rows, kMostRows);
  }
  return Status::ok();
}

}  // namespace sharpi::vulkan
