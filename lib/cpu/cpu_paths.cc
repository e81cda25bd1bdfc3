// SPDX-License-Identifier: MIT
#include "cpu/cpu_paths.h"

#include "cpu/attention_select.h"
#include "cpu/delta_net.h"
#include "cpu/mamba2_shape.h"
#include "kv/codec.h"
#include "tier/block_tensors.h"
#include "tier/kernel_paths.h"

namespace sharpi::cpu {
namespace {

std::string dtype_names(const KvDtypePair& d) {
  const std::string k = kv_dtype_name(d.k), v = kv_dtype_name(d.v);
  return k == v ? k : k + "+" + v;
}

}  // namespace

std::string kernel_paths(const MatmulConfig& config, ThreadPool& pool, const Plan& plan) {
  KernelPaths out;
  const ModelSpec& spec = *plan.spec;
  const KernelSet& kernels = *config.kernels;
  const Matmul probe(config, &pool, nullptr, 0);
  const uint32_t most = plan.model.max_rows();
  each_block(spec, plan.placement, [&](const Block& block, DeviceIndex device) {
    if (device != DeviceIndex::kHost) return;
    for (const TensorRef& w : block_products(spec, block)) {
      const GgmlType type = w.tensor->type;
      out.add(ggml_traits(type).name, probe.path(type, 1, false), probe.path(type, most, false));
    }
    if (block.kind != BlockKind::kMixer) return;
    const LayerSpec& l = spec.layers[block.layer];
    switch (l.mixer) {
      case MixerKind::kGatedDeltaNet:
        out.add("delta net", delta_net_path(kernels, l.delta.head_dim, config.deterministic, 1),
                delta_net_path(kernels, l.delta.head_dim, config.deterministic, most));
        return;
      case MixerKind::kMamba2: {
        const Mamba2Shape shape = mamba2_shape(l.mamba);
        out.add("mamba-2", mamba2_path(kernels, shape, config.deterministic, 1),
                mamba2_path(kernels, shape, config.deterministic, most));
        return;
      }
      case MixerKind::kNone:
        return;
      case MixerKind::kAttention:
        break;
    }
    const int32_t source = l.attention.kv_source;
    const KvDtypePair dtypes =
        plan.session.dtypes[source < 0 ? block.layer : static_cast<uint32_t>(source)];
    KvView kv;
    kv.k_dtype = dtypes.k;
    kv.v_dtype = dtypes.v;
    kv.head_dim = l.attention.head_dim;
    const bool by_rows = !config.exact && !config.deterministic;
    const Named<AttentionTable>& usual = attention_kernels(kernels, config.exact, kv);
    const Named<AttentionTable>& many = by_rows ? attention_chunk_kernels(kernels, kv) : usual;
    const uint32_t group = l.attention.n_heads / l.attention.n_kv_heads;
    const Named<AttentionTable>& row = by_rows ? attention_row_kernels(kernels, kv, group) : usual;
    out.add("attention " + dtype_names(dtypes), row.name, many.name);
  });
  return std::string("cpu ") + isa_name(kernels.isa) + out.text();
}

}  // namespace sharpi::cpu
