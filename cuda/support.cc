// SPDX-License-Identifier: MIT
#include "cuda/support.h"

#include <algorithm>
#include <iterator>

#include "cuda/kernels/router.h"
#include "cuda/kernels/weight_layout.h"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kHeadDims[] = {64, 80, 96, 128, 256, 512};
constexpr uint32_t kMaxQueryGroup = 16;
constexpr uint32_t kMaxConvKernel = 4;

Status check_attention(uint32_t layer, const AttentionSpec& a) {
  if (std::find(std::begin(kHeadDims), std::end(kHeadDims), a.head_dim) == std::end(kHeadDims)) {
    return Status::error(Code::kUnsupported,
                         "layer %u: heads of %u elements; the GPU takes 64, 80, 96, 128, 256 and "
                         "512",
                         layer, a.head_dim);
  }
  if (a.n_heads % a.n_kv_heads != 0 || a.n_heads / a.n_kv_heads > kMaxQueryGroup) {
    return Status::error(Code::kUnsupported,
                         "layer %u: %u query heads over %u KV heads; the GPU takes groups of up to "
                         "%u",
                         layer, a.n_heads, a.n_kv_heads, kMaxQueryGroup);
  }
  if (a.qk_norm == QkNorm::kWholeVector && (a.q_bias || a.k_bias || a.v_bias)) {
    return Status::error(Code::kUnsupported,
                         "layer %u: norms of whole query and key vectors behind biases, which the "
                         "GPU does not take",
                         layer);
  }
  return Status::ok();
}

Status check_delta(uint32_t layer, const DeltaNetSpec& d) {
  const bool dim = d.head_dim == 32 || d.head_dim == 64 || d.head_dim == 128;
  if (dim && d.conv_kernel >= 2 && d.conv_kernel <= kMaxConvKernel) return Status::ok();
  return Status::error(Code::kUnsupported,
                       "layer %u: a gated delta net with heads of %u and a convolution of %u taps; "
                       "the GPU takes 32, 64 or 128 and 2 to %u",
                       layer, d.head_dim, d.conv_kernel, kMaxConvKernel);
}

Status check_experts(uint32_t layer, const FfnSpec& f) {
  if (f.n_experts > kMaxExperts || f.n_used > kMaxExpertsUsed) {
    return Status::error(Code::kUnsupported,
                         "layer %u: %u experts, %u used; the GPU takes up to %u and %u", layer,
                         f.n_experts, f.n_used, kMaxExperts, kMaxExpertsUsed);
  }
  if (f.fused_gate_up && f.d_ff % kPanelRows != 0) {
    return Status::error(Code::kUnsupported,
                         "layer %u: gate and up of experts in one matrix, %u rows each; the GPU "
                         "takes multiples of %u",
                         layer, f.d_ff, kPanelRows);
  }
  return Status::ok();
}

}  // namespace

Status check_support(const ModelSpec& spec, const Placement& placement) {
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (placement.mixer[l] == TierId::kCuda) {
      SHARPI_TRY(layer.mixer == MixerKind::kAttention ? check_attention(l, layer.attention)
                                                      : check_delta(l, layer.delta));
    }
    if (placement.ffn[l] == TierId::kCuda && layer.ffn.kind == FfnKind::kMoe) {
      SHARPI_TRY(check_experts(l, layer.ffn));
    }
  }
  return Status::ok();
}

}  // namespace sharpi::cuda
