// SPDX-License-Identifier: MIT
#include "plan/placement.h"

#include <algorithm>

namespace sharpi {
namespace {

Status above(const char* name, int32_t value, uint32_t n_layers) {
  return Status::error(Code::kInvalidArgument, "%s is %d, the model has %u layers", name, value,
                       n_layers);
}

Status check_pins(const ModelSpec& spec, const sharpi_plan_params& p, bool has_device) {
  const uint32_t n = spec.n_layers();
  const auto layers = static_cast<int64_t>(n);
  if (p.n_gpu_layers > layers) return above("n_gpu_layers", p.n_gpu_layers, n);
  if (p.n_gpu_ffn > layers) return above("n_gpu_ffn", p.n_gpu_ffn, n);
  if (p.n_gpu_layers >= 0 && p.n_gpu_ffn > p.n_gpu_layers) {
    return Status::error(Code::kInvalidArgument,
                         "n_gpu_ffn is %d and n_gpu_layers %d: an FFN block can only be on the GPU "
                         "with its layer",
                         p.n_gpu_ffn, p.n_gpu_layers);
  }
  const bool wants_device = p.n_gpu_layers > 0 || p.n_gpu_ffn > 0 || p.n_expert_slots > 0 ||
                            (p.device != SHARPI_UNSET && p.device != 0);
  if (wants_device && !has_device) {
    return Status::error(Code::kUnsupported,
                         "blocks on a GPU are asked for, but there is no CUDA device");
  }
  if (p.n_expert_slots > 0) {
    return Status::error(Code::kUnsupported,
                         "n_expert_slots is %d: single experts on the GPU are not in this version; "
                         "a layer's experts go with its FFN block (n_gpu_ffn)",
                         p.n_expert_slots);
  }
  return Status::ok();
}

Status no_such_split(const ModelSpec& spec, uint32_t n) {
  uint32_t below = n, over = n;
  while (!is_layer_split(spec, below)) --below;  // 0 always is one
  while (!is_layer_split(spec, over)) ++over;    // and so is the number of layers
  return Status::error(Code::kUnsupported,
                       "n_gpu_layers %u would part layers that share KV rows; %u and %u do not", n,
                       below, over);
}

}  // namespace

bool is_layer_split(const ModelSpec& spec, uint32_t n) {
  for (uint32_t l = n; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (layer.mixer != MixerKind::kAttention || layer.attention.kv_source < 0) continue;
    if (static_cast<uint32_t>(layer.attention.kv_source) < n) return false;
  }
  return true;
}

Result<PlacementLadder> PlacementLadder::create(const ModelSpec& spec, const sharpi_plan_params& p,
                                                bool has_device) {
  SHARPI_TRY(check_pins(spec, p, has_device));
  PlacementLadder ladder(spec);
  const uint32_t n = spec.n_layers();
  if (!has_device || p.n_gpu_layers == 0) {
    ladder.rungs_.push_back({});
    return ladder;
  }
  const bool pinned = p.n_gpu_layers > 0, ffn_pinned = p.n_gpu_ffn >= 0;
  const uint32_t most = pinned ? static_cast<uint32_t>(p.n_gpu_layers) : n;
  if (!is_layer_split(spec, most)) return no_such_split(spec, most);
  const uint32_t first_ffn = ffn_pinned ? static_cast<uint32_t>(p.n_gpu_ffn) : most;
  const uint32_t last_ffn = ffn_pinned ? first_ffn : 0;
  for (uint32_t f = first_ffn + 1; f-- > last_ffn;) ladder.rungs_.push_back({most, f, true});
  if (!pinned) {
    for (uint32_t m = most; m-- > std::max(1u, last_ffn);) {
      if (is_layer_split(spec, m)) ladder.rungs_.push_back({m, last_ffn, true});
    }
  }
  const Rung least = ladder.rungs_.back();
  ladder.rungs_.push_back({least.n_mixers, least.n_ffn, false});
  if (!pinned && last_ffn == 0) ladder.rungs_.push_back({});
  return ladder;
}

Placement PlacementLadder::at(size_t rung) const {
  const Rung& r = rungs_[rung];
  Placement p = Placement::all(*spec_, TierId::kCpu);
  std::fill_n(p.mixer.begin(), r.n_mixers, TierId::kCuda);
  std::fill_n(p.ffn.begin(), r.n_ffn, TierId::kCuda);
  std::fill_n(p.experts.begin(), r.n_ffn, TierId::kCuda);
  if (r.ends) p.embedding = p.head = TierId::kCuda;
  return p;
}

std::string PlacementLadder::describe(size_t rung) const {
  const Rung& r = rungs_[rung];
  if (r.n_mixers == 0) return "everything on the CPU";
  std::string text = std::to_string(r.n_mixers) + " of " + std::to_string(spec_->n_layers()) +
                     " layers, " + std::to_string(r.n_ffn) + " FFN blocks";
  return text + (r.ends ? ", the embedding and the head on the GPU" : " on the GPU");
}

}  // namespace sharpi
