// SPDX-License-Identifier: MIT
// Which kernels the blocks of a model on the device go to: calls of one row / of as many as there
// can be.
#include "cuda/kernels/paths.h"

#include "cuda/cuda_model.h"
#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/delta/delta_net.h"
#include "tier/block_tensors.h"
#include "tier/kernel_paths.h"

namespace sharpi::cuda {
namespace {

/// Matrices that are not in tiles are streamed in f32, and become f16 tiles for many rows.
void add_product(const MatmulConfig& c, const DeviceMatrix& m, uint32_t most, KernelPaths* out) {
  std::string few = matmul_path(c, 1), many = matmul_path(c, most), name = ggml_traits(m.type).name;
  if (m.layout != WeightLayout::kTiles) {
    name += " rows";
    if (!c.exact && many != "f16 streaming") many = "f16 tiles, " + many;
    few = c.deterministic ? many : "f32 streaming";
  }
  out->add(name, few, many);
}

void add_attention(const MatmulConfig& c, const KvLayer& kv, KernelPaths* out) {
  out->add("attention, heads of " + std::to_string(kv.head_dim), attention_path(c, kv, true),
           attention_path(c, kv, false));
}

void add_delta(const MatmulConfig& c, const DeltaNetSpec& d, KernelPaths* out) {
  const DeltaNetShape shape{d.n_k_heads, d.n_v_heads, d.head_dim, d.conv_kernel};
  out->add("delta net", "recurrence", delta_net_path(c, shape));
}

}  // namespace

std::string CudaModel::block_paths() const {
  KernelPaths out;
  const uint32_t most = plan_->model.max_rows();
  const std::lock_guard<std::mutex> lock(formats_mutex_);
  each_block(spec(), plan_->placement, [&](const Block& block, TierId tier) {
    const LayerSpec& l = spec().layers[block.layer];
    const bool here = tier == TierId::kCuda;
    const bool experts = block.kind == BlockKind::kExperts;
    for (const TensorRef& w : block_products(spec(), block)) {
      const DeviceMatrix m = matrix(w);  // also of blocks that stream
      if (m && !experts) add_product(config_, m, most, &out);
    }
    const bool slots = experts && parts_experts(block.layer) && uses_slots(1);
    if ((here && experts) || slots) {
      const bool at_once = here && takes_moe_step(block.layer);
      const std::string many = std::string("grouped ") + moe_path(config_, most);
      out.add(slots ? "experts in slots" : "experts", at_once ? "one launch" : moe_path(config_, 1),
              here || uses_slots(most) ? many : "none");
    }
    if (!here || block.kind != BlockKind::kMixer) return;
    if (l.mixer == MixerKind::kGatedDeltaNet) return add_delta(config_, l.delta, &out);
    const int32_t source = l.attention.kv_source;
    const uint32_t owner = source < 0 ? block.layer : static_cast<uint32_t>(source);
    add_attention(config_, formats_[0]->layers[owner], &out);
  });
  return out.text();
}

}  // namespace sharpi::cuda
