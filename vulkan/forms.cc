// SPDX-License-Identifier: MIT
#include "vulkan/forms.h"

#include <algorithm>

#include "tier/block_tensors.h"
#include "tier/kernel_paths.h"

namespace sharpi::vulkan {
namespace {

/// Rows from which tiles are taken: one that is filled to a quarter costs what its rows cost one by
/// one.
constexpr uint32_t kTiledRows = 17;

const char* text_of(RowForm form, bool tiles) {
  switch (form) {
    case RowForm::kBytes:
      return "int8 dots";
    case RowForm::kHalves:
      return "f16 matrices";
    case RowForm::kFloats:
      break;
  }
  return tiles ? "f32 tiles" : "f32";
}

/// A query head's own matrix of latent attention, for all heads.
bool is_of_heads(const LayerSpec& l, const TensorRef& w) {
  const LatentSpec& latent = l.attention.latent;
  return w.tensor == latent.k_b.tensor || w.tensor == latent.v_b.tensor;
}

const char* attention_text(const Profile& f, const ModelShape& model, const device::KvLayer& kv,
                           uint32_t rows, bool by_head) {
  if (attends_in_shares(f, model, kv.head_dim, rows)) return "split";
  return matrix_split(f, model, kv, rows) != 0 && !by_head ? "f16 matrices" : "f32";
}

}  // namespace

bool in_tiles(const ModelShape& model, uint32_t rows) {
  return rows >= kTiledRows && !model.deterministic;
}

RowForm row_form(const Profile& f, const ModelShape& model, const TensorRef& w, uint32_t rows,
                 bool as_floats) {
  if (model.exact) return RowForm::kFloats;
  switch (w.tensor->type) {
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
      return RowForm::kFloats;
    default:
      break;
  }
  if (!in_tiles(model, rows)) return f.byte_dots && !as_floats ? RowForm::kBytes : RowForm::kFloats;
  return f.matrix_threads != 0 && w.n_in % kMatrixDeep == 0 ? RowForm::kHalves : RowForm::kFloats;
}

bool takes_floats(const ModelSpec& spec, const TensorRef& w) {
  return std::any_of(spec.layers.begin(), spec.layers.end(), [&](const LayerSpec& l) {
    if (l.mixer == MixerKind::kMamba2) return l.mamba.out.tensor == w.tensor;
    if (l.mixer != MixerKind::kAttention || !l.ffn.beside_dense()) return false;
    const AttentionSpec& a = l.attention;
    return a.q.tensor == w.tensor || a.k.tensor == w.tensor || a.v.tensor == w.tensor ||
           a.o.tensor == w.tensor;
  });
}

bool experts_in_tiles(const ModelShape& model, uint32_t n_experts, uint32_t n_used, uint32_t rows) {
  constexpr uint32_t kPairs = 4;  // of an expert, on average
  return in_tiles(model, rows) && uint64_t{rows} * n_used >= uint64_t{kPairs} * n_experts;
}

bool experts_by_matrices(const Profile& f, const ModelShape& model, const FfnSpec& ffn,
                         uint32_t rows) {
  const TensorRef& up = ffn.fused_gate_up ? ffn.gate : ffn.up;
  const auto halves = [&](const TensorRef& w) {
    return row_form(f, model, w, rows) == RowForm::kHalves;
  };
  const bool like_gate = !ffn.gate || up.tensor->type == ffn.gate.tensor->type;
  return halves(up) && halves(ffn.down) && like_gate;
}

bool attends_in_shares(const Profile& f, const ModelShape& model, uint32_t head_dim,
                       uint32_t rows) {
  return rows <= kShareRows && f.least_shares != 0 && !model.deterministic && head_dim % 4 == 0;
}

uint32_t matrix_split(const Profile& f, const ModelShape& model, const device::KvLayer& kv,
                      uint32_t rows) {
  const uint32_t dim = kv.head_dim;
  if (model.exact || !in_tiles(model, rows) || !f.matrix_attention) return 0;
  if (dim % 32 == 0 && dim <= 128) return 1;
  if (dim % 32 == 0 && dim <= 256) return 2;
  return dim % 64 == 0 && dim <= 512 ? 4 : 0;
}

std::string block_paths(const device::LoadedModel& model, const Profile& f) {
  const ModelShape& shape = model.plan->model;
  const uint32_t most = shape.max_rows();
  KernelPaths out;
  const auto add_attention = [&](const device::KvLayer& kv) {
    const auto add = [&](bool by_head) {
      const std::string heads = "heads of " + std::to_string(kv.head_dim);
      out.add(by_head ? "attention over rows by head, " + heads : "attention, " + heads,
              attention_text(f, shape, kv, 1, by_head),
              attention_text(f, shape, kv, most, by_head));
    };
    add(false);
    // Such rows have no form by matrices.
    if (kv.window == 0 && matrix_split(f, shape, kv, most) != 0) add(true);
  };
  each_block(model.spec(), model.plan->placement, [&](const Block& block, DeviceIndex device) {
    const bool experts = block.kind == BlockKind::kExperts;
    const bool here = device == DeviceIndex::kHere;
    const bool slots = experts && model.parts_experts(block.layer) && model.uses_slots(1);
    for (const TensorRef& w : block_products(model.spec(), block)) {
      const bool floats = takes_floats(model.spec(), w);
      const char* few = text_of(row_form(f, shape, w, 1, floats), false);
      if (experts && (here || slots)) {
        const FfnSpec& ffn = model.spec().layers[block.layer].ffn;
        const bool tiles = experts_in_tiles(shape, ffn.n_experts, ffn.n_used, most);
        const bool matrices = experts_by_matrices(f, shape, ffn, most);
        out.add(slots ? "experts in slots" : "experts", few,
                !tiles     ? few
                : matrices ? "f16 matrices"
                           : "f32 tiles");
      } else if (block.kind == BlockKind::kMixer &&
                 is_of_heads(model.spec().layers[block.layer], w)) {
        out.add("matrices of heads", "f32", in_tiles(shape, most) ? "f32 tiles" : "f32");
      } else if (!experts && model.weight(w) != nullptr) {
        out.add(ggml_traits(w.tensor->type).name, few,
                text_of(row_form(f, shape, w, most, floats), in_tiles(shape, most)));
      }
    }
    if (!here || block.kind != BlockKind::kMixer) return;
    switch (model.spec().layers[block.layer].mixer) {
      case MixerKind::kGatedDeltaNet:
        return out.add("delta net", "recurrence", "recurrence");
      case MixerKind::kMamba2:
        return out.add("mamba-2", "recurrence", "recurrence");
      case MixerKind::kNone:
        return;
      case MixerKind::kAttention:
        break;
    }
    const int32_t source = model.spec().layers[block.layer].attention.kv_source;
    const uint32_t owner = source < 0 ? block.layer : static_cast<uint32_t>(source);
    add_attention(model.format(0).layers[owner]);
  });
  return out.text();
}

}  // namespace sharpi::vulkan
