// SPDX-License-Identifier: MIT
#include "cuda/paths.h"

#include "cuda/delta_shape.h"
#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/paths.h"
#include "cuda/step_binding.h"
#include "tier/block_tensors.h"
#include "tier/kernel_paths.h"

namespace sharpi::cuda {
namespace {

/// Matrices that are not in tiles are streamed in f32, and become f16 tiles for many rows.
void add_product(const KernelConfig& c, const DeviceMatrix& m, uint32_t most, KernelPaths* out) {
  std::string few = matmul_path(c, 1), many = matmul_path(c, most), name = ggml_traits(m.type).name;
  if (m.layout != WeightLayout::kTiles) {
    name += " rows";
    if (!c.exact && many != "f16 streaming") many = "f16 tiles, " + many;
    few = c.deterministic ? many : "f32 streaming";
  }
  out->add(name, few, many);
}

void add_attention(const KernelConfig& c, const KvLayer& kv, KernelPaths* out) {
  out->add("attention, heads of " + std::to_string(kv.head_dim), attention_path(c, kv, true),
           attention_path(c, kv, false));
}

void add_delta(const KernelConfig& c, const DeltaNetSpec& d, KernelPaths* out) {
  out->add("delta net", "recurrence", delta_net_path(c, delta_shape(d)));
}

/// Whether one row's router and experts go in one launch.
bool takes_moe_step(const LoadedModel& model, const KernelConfig& config, uint32_t layer) {
  const LayerSpec& l = model.spec().layers[layer];
  const bool add = !l.ffn_post_norm && l.residual_scale == 1.0f;
  const PaperBinding paper(model.spec(), 1, model.workspace_layout.size_of(Buf::kMoeSync));
  const MoeStepParams step = paper.moe_step(layer, add ? Buf::kX : Buf::kY, add, nullptr, nullptr);
  return (add || l.ffn.d_shared == 0) && moe_step_takes(config, step);
}

}  // namespace

std::string block_paths(const LoadedModel& model, const KernelConfig& config) {
  KernelPaths out;
  const uint32_t most = model.plan->model.max_rows();
  each_block(model.spec(), model.plan->placement, [&](const Block& block, DeviceIndex device) {
    const LayerSpec& l = model.spec().layers[block.layer];
    const bool here = device == DeviceIndex::kHere;
    const bool experts = block.kind == BlockKind::kExperts;
    for (const TensorRef& w : block_products(model.spec(), block)) {
      const DeviceMatrix m = matrix_at(model, w);  // also of blocks that stream
      if (m && !experts) add_product(config, m, most, &out);
    }
    const bool slots = experts && model.parts_experts(block.layer) && model.uses_slots(1);
    if ((here && experts) || slots) {
      const bool at_once = here && takes_moe_step(model, config, block.layer);
      const std::string many = std::string("grouped ") + moe_path(config, most);
      out.add(slots ? "experts in slots" : "experts", at_once ? "one launch" : moe_path(config, 1),
              here || model.uses_slots(most) ? many : "none");
    }
    if (!here || block.kind != BlockKind::kMixer) return;
    switch (l.mixer) {
      case MixerKind::kGatedDeltaNet:
        return add_delta(config, l.delta, &out);
      case MixerKind::kMamba2:
        return out.add("mamba-2", "recurrence", "recurrence");
      case MixerKind::kNone:
        return;
      case MixerKind::kAttention:
        break;
    }
    const int32_t source = l.attention.kv_source;
    const uint32_t owner = source < 0 ? block.layer : static_cast<uint32_t>(source);
    if (l.attention.latent) return out.add("latent attention", "f32", "f32");
    add_attention(config, model.format(0).layers[owner], &out);
  });
  return out.text();
}

}  // namespace sharpi::cuda
