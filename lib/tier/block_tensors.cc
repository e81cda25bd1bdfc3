// SPDX-License-Identifier: MIT
#include "tier/block_tensors.h"

namespace sharpi {
namespace {

void add(std::vector<TensorRef>* out, const std::vector<const TensorRef*>& refs) {
  for (const TensorRef* r : refs) {
    if (*r) out->push_back(*r);
  }
}

void add_mixer(std::vector<TensorRef>* out, const LayerSpec& l) {
  add(out, {&l.mixer_norm, &l.mixer_post_norm, &l.mixer_residual_norm.weight,
            &l.mixer_residual_norm.bias});
  add(out, l.mixer_products());
  add(out, l.mixer_vectors());
}

void add_ffn(std::vector<TensorRef>* out, const LayerSpec& l) {
  const FfnSpec& f = l.ffn;
  add(out, l.ffn_others());
  if (f.kind == FfnKind::kDense) add(out, {&f.gate, &f.up, &f.down});
}

void add_products(std::vector<TensorRef>* out, const LayerSpec& l, BlockKind kind) {
  const FfnSpec& f = l.ffn;
  const bool dense = f.kind == FfnKind::kDense;
  if (kind == BlockKind::kMixer) add(out, l.mixer_products());
  if (kind == BlockKind::kFfn)
    add(out, {&l.ple_gate, &l.ple_proj, &f.shared_gate, &f.shared_up, &f.shared_down});
  if (kind == (dense ? BlockKind::kFfn : BlockKind::kExperts)) add(out, {&f.gate, &f.up, &f.down});
}

}  // namespace

std::vector<TensorRef> block_products(const ModelSpec& spec, const Block& block) {
  std::vector<TensorRef> out;
  if (block.kind == BlockKind::kEmbedding) {
    add(&out, {&spec.ple_model_proj, &spec.pair.proj});
  } else if (block.kind == BlockKind::kHead) {
    add(&out, {&spec.output});
  } else {
    add_products(&out, spec.layers[block.layer], block.kind);
  }
  return out;
}

std::vector<TensorRef> block_tensors(const ModelSpec& spec, const Block& block) {
  std::vector<TensorRef> out;
  const LayerSpec& l = spec.layers[block.layer];
  switch (block.kind) {
    case BlockKind::kEmbedding:
      add(&out, {&spec.token_embd, &spec.ple_model_proj, &spec.ple_proj_norm, &spec.pair.proj,
                 &spec.pair.embd_norm, &spec.pair.hidden_norm, &spec.position_embd,
                 &spec.token_types, &spec.embd_norm.weight, &spec.embd_norm.bias});
      break;
    case BlockKind::kMixer:
      add_mixer(&out, l);
      break;
    case BlockKind::kFfn:
      add_ffn(&out, l);
      break;
    case BlockKind::kExperts:
      add(&out, {&l.ffn.gate, &l.ffn.up, &l.ffn.down});
      break;
    case BlockKind::kHead:
      add(&out, {&spec.output_norm, &spec.output, &spec.pooled.dense, &spec.pooled.dense_bias,
                 &spec.pooled.out, &spec.pooled.out_bias});
      for (const TensorRef& t : spec.pooled.projections) add(&out, {&t});
      break;
  }
  return out;
}

std::vector<TensorRef> tensors_of_experts_host(const LayerSpec& layer) {
  std::vector<TensorRef> out;
  const FfnSpec& f = layer.ffn;
  add(&out, {&layer.expert_norm(), &f.gate_bias, &f.up_bias, &f.down_bias});
  return out;
}

std::vector<TensorRef> mtp_tensors(const ModelSpec& spec) {
  const MtpSpec& m = spec.mtp;
  std::vector<TensorRef> out;
  add(&out, {&m.pair.embd_norm, &m.pair.hidden_norm, &m.head_norm, &m.pair.proj});
  add_mixer(&out, m.layer);
  add_ffn(&out, m.layer);
  const FfnSpec& f = m.layer.ffn;
  if (f.kind == FfnKind::kMoe) add(&out, {&f.gate, &f.up, &f.down});
  add(&out, {&m.embd, &m.head});
  return out;
}

}  // namespace sharpi
