// SPDX-License-Identifier: MIT
#include "cpu/cpu_paths.h"

#include "cpu/attention_select.h"
#include "cpu/delta_net.h"
#include "kv/codec.h"
#include "tier/block_tensors.h"
#include "tier/kernel_paths.h"

namespace sharpi::cpu {
namespace {

std::string attention_name(const AttentionTable& t) {
  if (&t == &kAttentionAmx) return "bf16-amx";
  if (&t == &kAttentionAmxWide) return "2xbf16-amx";
  if (&t == &kAttentionBf16) return "bf16-dot";
  if (&t == &kAttentionQ8Row) return "int8-row";
  if (&t == &kAttentionAvx512) return "f32-avx512";
  return &t == &kAttentionAvx2 ? "f32-avx2" : "f32-scalar";
}

std::string dtype_names(const KvDtypePair& d) {
  const std::string k = kv_dtype_name(d.k), v = kv_dtype_name(d.v);
  return k == v ? k : k + "+" + v;
}

}  // namespace

std::string kernel_paths(const MatmulConfig& config, ThreadPool& pool, const Plan& plan) {
  KernelPaths out;
  const ModelSpec& spec = *plan.spec;
  const Isa isa = config.isa;
  const Matmul probe(config, &pool, nullptr, 0);
  const uint32_t most = plan.model.max_rows();
  each_block(spec, plan.placement, [&](const Block& block, TierId tier) {
    if (tier != TierId::kCpu) return;
    for (const TensorRef& w : block_products(spec, block)) {
      const GgmlType type = w.tensor->type;
      out.add(ggml_traits(type).name, probe.path(type, 1, false), probe.path(type, most, false));
    }
    if (block.kind != BlockKind::kMixer) return;
    const LayerSpec& l = spec.layers[block.layer];
    if (l.mixer == MixerKind::kGatedDeltaNet) {
      out.add("delta net", delta_net_path(isa, l.delta.head_dim, config.deterministic, 1),
              delta_net_path(isa, l.delta.head_dim, config.deterministic, most));
      return;
    }
    const int32_t source = l.attention.kv_source;
    const KvDtypePair dtypes =
        plan.session.dtypes[source < 0 ? block.layer : static_cast<uint32_t>(source)];
    KvView kv;
    kv.k_dtype = dtypes.k;
    kv.v_dtype = dtypes.v;
    kv.head_dim = l.attention.head_dim;
    const bool by_rows = !config.exact && !config.deterministic;
    const AttentionTable& usual = attention_table(isa, config.exact, kv);
    const AttentionTable& many = by_rows ? attention_chunk_table(isa, kv) : usual;
    const uint32_t group = l.attention.n_heads / l.attention.n_kv_heads;
    const AttentionTable& row = by_rows ? attention_row_table(isa, kv, group) : usual;
    out.add("attention " + dtype_names(dtypes), attention_name(row), attention_name(many));
  });
  return std::string("cpu ") + isa_name(isa) + out.text();
}

}  // namespace sharpi::cpu
