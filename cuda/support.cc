// SPDX-License-Identifier: MIT
#include "cuda/support.h"

#include <algorithm>
#include <iterator>

#include "cuda/kernels/attention/attention_f32_plan.h"
#include "cuda/kernels/attention/attention_ring_plan.h"
#include "cuda/kernels/attention/qkv_plan.h"
#include "cuda/kernels/kv/kv_replay_plan.h"
#include "cuda/kernels/kv/kv_score_plan.h"
#include "cuda/kernels/latent/latent_plan.h"
#include "cuda/kernels/moe/router.h"
#include "cuda/kernels/products/gemm_plan.h"
#include "cuda/kernels/products/weight_layout.h"
#include "cuda/mamba2_shape.h"
#include "kv/codec.h"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kHeadDims[] = {64, 80, 96, 128, 256, 512};
constexpr uint32_t kMaxQueryGroup = 16;
constexpr uint32_t kMaxConvKernel = 4;

/// The least that a block needs of shared memory for attention in any codecs, exact or not; more
/// makes it faster.
uint32_t least_attention_bytes(uint32_t dim) {
  constexpr KvDtype kF32 = KvDtype::kF32;
  const uint32_t stage = split::make_stage(kF32, kF32, split::slice_of(dim)).bytes * split::kWarps;
  const uint32_t parked =
      split::parked_floats(split::teams_of(dim), kSplitVectors, dim) * sizeof(float);
  uint32_t beside = 0;
  for (const KvCodec& c : kv_codecs()) {
    beside = std::max(beside, split::ring_static_bytes(c.dtype, c.dtype, dim));
  }
  return std::max(attention_f32_bytes(dim), std::max(stage, parked) + beside);
}

Status no_room(const std::string& device, const DeviceProfile& profile, const std::string& what,
               uint32_t bytes) {
  return Status::error(
      Code::kUnsupported,
      "%s takes %u bytes of shared memory a block, but %s (compute capability %d.%d) has %d",
      what.c_str(), bytes, device.c_str(), profile.capability / 10, profile.capability % 10,
      profile.shared_per_block);
}

Status check_room(uint32_t layer, const DeviceProfile& device, const std::string& name,
                  const AttentionSpec& a) {
  const uint32_t dim = a.head_dim;
  const auto room = static_cast<uint32_t>(device.shared_per_block);
  const uint32_t attention = a.latent ? latent_bytes(dim) : least_attention_bytes(dim),
                 scores = least_score_bytes(dim);
  if (std::max(attention, scores) <= room) return Status::ok();
  const char* what = attention > room ? "attention" : "scoring for compaction";
  return no_room(
      name, device,
      "layer " + std::to_string(layer) + ": " + what + " with heads of " + std::to_string(dim),
      attention > room ? attention : scores);
}

/// Rows are read sixteen bytes at a time, and scored sixteen elements at a time.
Status check_latent(uint32_t layer, const AttentionSpec& a) {
  const LatentSpec& l = a.latent;
  const bool eights =
      (l.q_a.n_out | l.key_dim | l.value_dim | l.rank | a.rope.n_rot) % kColumnStep == 0;
  if (!eights || a.head_dim % 16 != 0 || a.head_dim > kMostLatentDim || a.sinks ||
      !takes_value_map(a.n_heads, a.head_dim, l.value_dim, l.rank)) {
    return Status::error(Code::kUnsupported,
                         "layer %u has rows of %u + %u elements and heads of %u and %u; the GPU "
                         "takes multiples of 8, in all of 16 and at most %u",
                         layer, a.rope.n_rot, l.rank, l.key_dim, l.value_dim, kMostLatentDim);
  }
  return Status::ok();
}

Status check_attention(uint32_t layer, const AttentionSpec& a) {
  if (a.latent) return check_latent(layer, a);
  if (std::find(std::begin(kHeadDims), std::end(kHeadDims), a.head_dim) == std::end(kHeadDims)) {
    return Status::error(
        Code::kUnsupported,
        "layer %u has heads of %u elements; the GPU takes 64, 80, 96, 128, 256 and 512", layer,
        a.head_dim);
  }
  if (a.n_heads % a.n_kv_heads != 0 || a.n_heads / a.n_kv_heads > kMaxQueryGroup) {
    return Status::error(
        Code::kUnsupported,
        "layer %u has %u query heads over %u KV heads; the GPU takes whole groups of up to %u",
        layer, a.n_heads, a.n_kv_heads, kMaxQueryGroup);
  }
  const uint64_t heads = qkv_bytes(a.n_kv_heads, a.head_dim);
  if (a.kv_source < 0 && !qkv_in_registers(a.head_dim, a.rope.n_rot / 2) && heads > kMostQkvBytes) {
    return Status::error(Code::kUnsupported,
                         "layer %u has %u KV heads of %u elements, of which %u are rotated: %llu "
                         "bytes, but the GPU takes at most %u",
                         layer, a.n_kv_heads, a.head_dim, a.rope.n_rot,
                         static_cast<unsigned long long>(heads), kMostQkvBytes);
  }
  if (a.qk_norm == QkNorm::kWholeVector && (a.q_bias || a.k_bias || a.v_bias)) {
    return Status::error(Code::kUnsupported,
                         "layer %u has norms of whole query and key vectors behind biases, which "
                         "the GPU does not take",
                         layer);
  }
  return Status::ok();
}

Status check_delta(uint32_t layer, const DeltaNetSpec& d) {
  const bool dim = d.head_dim == 32 || d.head_dim == 64 || d.head_dim == 128;
  if (dim && d.conv_kernel >= 2 && d.conv_kernel <= kMaxConvKernel) return Status::ok();
  return Status::error(Code::kUnsupported,
                       "layer %u has a gated delta net with heads of %u elements and a convolution "
                       "of %u taps; the GPU takes 32, 64 or 128 elements and 2 to %u taps",
                       layer, d.head_dim, d.conv_kernel, kMaxConvKernel);
}

Status check_experts(uint32_t layer, const FfnSpec& f) {
  if (f.n_experts > kMaxExperts || f.n_used > kMaxExpertsUsed) {
    return Status::error(Code::kUnsupported,
                         "layer %u has %u experts, of which %u are used; the GPU takes up to %u, "
                         "of which %u are used",
                         layer, f.n_experts, f.n_used, kMaxExperts, kMaxExpertsUsed);
  }
  if (f.fused_gate_up && f.d_ff % kPanelRows != 0) {
    return Status::error(Code::kUnsupported,
                         "layer %u has gate and up of experts in one matrix, with %u rows each; "
                         "the GPU takes multiples of %u",
                         layer, f.d_ff, kPanelRows);
  }
  return Status::ok();
}

Status check_mamba(uint32_t layer, const Mamba2Spec& m) {
  if (takes_mamba2(mamba2_shape(m))) return Status::ok();
  return Status::error(Code::kUnsupported,
                       "layer %u is of Mamba-2 with states of %u elements and a convolution of %u "
                       "taps; the GPU takes 16, 32, 64, 128 or 256 elements and 2 to 4 taps",
                       layer, m.state_dim, m.conv_kernel);
}

Status check_ffn(uint32_t layer, const LayerSpec& l, const Placement& placement) {
  if (placement.ffn[layer] != DeviceIndex::kHere || l.ffn.kind != FfnKind::kMoe)
    return Status::ok();
  return check_experts(layer, l.ffn);
}

Status check_columns(const std::string& what, uint32_t n) {
  if (n % kColumnStep == 0) return Status::ok();
  return Status::error(Code::kUnsupported, "%s of %u elements; the GPU takes multiples of %u",
                       what.c_str(), n, kColumnStep);
}

/// Products go through the columns of a matrix in steps. Heads have lengths that fit.
Status check_widths(const ModelSpec& spec, const Placement& placement) {
  if (!placement.uses(DeviceIndex::kHere)) return Status::ok();
  SHARPI_TRY(check_columns("the model has embeddings", spec.n_embd));
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (placement.ffn[l] != DeviceIndex::kHere) continue;
    const LayerSpec& layer = spec.layers[l];
    const std::string name = "layer " + std::to_string(l) + " has ";
    SHARPI_TRY(check_columns(name + "an FFN", layer.ffn.d_ff));
    SHARPI_TRY(check_columns(name + "a shared expert", layer.ffn.d_shared));
    if (layer.ple_proj) SHARPI_TRY(check_columns(name + "per-layer embeddings", spec.d_ple));
  }
  return Status::ok();
}

}  // namespace

Status check_replay(const DeviceProfile& device, const std::string& name, const ModelSpec& spec,
                    const Placement& placement) {
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (spec.layers[l].attends_to_all() == nullptr || placement.mixer[l] != DeviceIndex::kHere)
      continue;
    const uint32_t dim = spec.layers[l].attention.head_dim;
    if (choose_replay(device, dim, true).groups == 0) {
      return no_room(
          name, device,
          "layer " + std::to_string(l) + ": replay scores with heads of " + std::to_string(dim),
          least_replay_bytes(dim));
    }
  }
  return Status::ok();
}

Status check_support(const DeviceProfile& device, const std::string& name, const ModelSpec& spec,
                     const Placement& placement) {
  const auto room = static_cast<uint32_t>(device.shared_per_block);
  constexpr uint32_t kProducts = gemm_shared_bytes(64, kWidestGemmType);
  if (placement.uses(DeviceIndex::kHere) && kProducts > room) {
    return no_room(name, device, "a product of many rows", kProducts);
  }
  SHARPI_TRY(check_widths(spec, placement));
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (placement.mixer[l] == DeviceIndex::kHere) {
      switch (layer.mixer) {
        case MixerKind::kAttention:
          SHARPI_TRY(check_attention(l, layer.attention));
          SHARPI_TRY(check_room(l, device, name, layer.attention));
          break;
        case MixerKind::kGatedDeltaNet:
          SHARPI_TRY(check_delta(l, layer.delta));
          break;
        case MixerKind::kMamba2:
          SHARPI_TRY(check_mamba(l, layer.mamba));
          break;
        case MixerKind::kNone:
          break;
      }
    }
    SHARPI_TRY(check_ffn(l, layer, placement));
  }
  return Status::ok();
}

}  // namespace sharpi::cuda
