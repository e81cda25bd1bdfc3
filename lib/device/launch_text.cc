// SPDX-License-Identifier: MIT
// A list of launches for people (sharpi_model_json()).
#include "device/launches.h"

namespace sharpi::device {
namespace {

/// "attn_q" of "blk.3.attn_q.weight".
std::string weight_name(const TensorRef& w) {
  std::string name(w.tensor->name);
  if (name.starts_with("blk.")) name.erase(0, name.find('.', 4) + 1);
  if (name.ends_with(".weight")) name.resize(name.size() - std::string(".weight").size());
  return name;
}

std::string sum_text(const RowSum& sum) {
  if (!sum.adds) return sum.scale != 1.0f ? "scale" : "copy";
  std::string text = sum.x == kNoRows ? "norm" : "add";
  if (sum.norm != nullptr && *sum.norm) text.append(" ").append(weight_name(*sum.norm));
  return text;
}

std::string link_text(const RowLink& link) {
  std::string text = link.sum.adds ? sum_text(link.sum) : std::string();
  for (uint32_t t = 0; t < link.product.n_tasks; ++t) {
    if (!text.empty()) text.append(", ");
    text.append(weight_name(*link.product.tasks[t].w));
  }
  return text;
}

/// Links of one launch, with what stands between the first `before` of them and the others.
std::string joined(const LaunchList& list, const Launch& l, const char* between) {
  std::string text;
  const auto append = [&](const std::string& part) {
    text.append(text.empty() ? "[" : " | ").append(part);
  };
  const uint32_t before = l.has_before ? 1 : 0;
  for (uint32_t i = 0; i < l.n_links; ++i) {
    if (between != nullptr && i == before) append(between);
    append(link_text(list.links[l.first_link + i]));
  }
  if (between != nullptr && before == l.n_links) append(between);
  return text.append("]");
}

/// What stands between a mixer's first and last products.
const char* name_in_mixer(LaunchKind kind) {
  switch (kind) {
    case LaunchKind::kRows:
      return "rows";
    case LaunchKind::kReplay:
      return "replay scores";
    case LaunchKind::kAttention:
      return "attention";
    case LaunchKind::kLatentQueries:
      return "latent queries";
    case LaunchKind::kLatentOutputs:
      return "latent outputs";
    case LaunchKind::kDeltaNet:
      return "delta net";
    case LaunchKind::kMamba:
      return "mamba";
    default:
      return "";  // name_of() has it
  }
}

/// What is the same in every list.
const char* name_of(LaunchKind kind) {
  switch (kind) {
    case LaunchKind::kEmbed:
      return "embed";
    case LaunchKind::kEmbedPairs:
      return "embed pairs";
    case LaunchKind::kPerLayerTable:
      return "per-layer table";
    case LaunchKind::kPerLayerCombine:
      return "per-layer inputs";
    case LaunchKind::kRopeTables:
      return "rope tables";
    case LaunchKind::kKeepRing:
      return "keep ring";
    case LaunchKind::kRows:
    case LaunchKind::kReplay:
    case LaunchKind::kAttention:
    case LaunchKind::kLatentQueries:
    case LaunchKind::kLatentOutputs:
    case LaunchKind::kDeltaNet:
    case LaunchKind::kMamba:
      return name_in_mixer(kind);
    case LaunchKind::kActivation:
      return "activation";
    case LaunchKind::kRouter:
      return "choose experts";
    case LaunchKind::kSharedGate:
      return "shared gate";
    case LaunchKind::kExperts:
      return "experts";
    case LaunchKind::kSendRows:
      return "ask the host";
    case LaunchKind::kSlotExperts:
      return "experts in slots";
    case LaunchKind::kAnswers:
      return "the host's answer";
    case LaunchKind::kPerLayerGate:
      return "per-layer gate";
    case LaunchKind::kHeadRows:
      return "pick rows";
    case LaunchKind::kLogits:
      return "logits";
    case LaunchKind::kHiddenRows:
      return "hidden rows";
    case LaunchKind::kFetchWeights:
      return "fetch weights";
    case LaunchKind::kReleaseWeights:
      return "release weights";
    case LaunchKind::kProduct:
    case LaunchKind::kChain:
    case LaunchKind::kResidual:
    case LaunchKind::kMoeStep:
    case LaunchKind::kAdapters:
    case LaunchKind::kLayerEnd:
      break;  // text_of() has them; at the end of a layer nothing is launched
  }
  return "";
}

std::string text_of(const LaunchList& list, const Launch& l) {
  if (l.kind == LaunchKind::kProduct) return link_text(list.links[l.first_link]);
  if (l.kind == LaunchKind::kAdapters)
    return "adapters of " + link_text({list.links[l.first_link].product, {}, l.layer});
  if (l.kind == LaunchKind::kChain) return joined(list, l, nullptr);
  if (l.kind == LaunchKind::kMoeStep) return joined(list, l, "experts");
  return l.kind == LaunchKind::kResidual ? sum_text(l.sum) : name_of(l.kind);
}

bool belongs_to_a_layer(const LaunchList& list, const Launch& l) {
  switch (l.kind) {
    case LaunchKind::kEmbed:
    case LaunchKind::kEmbedPairs:
    case LaunchKind::kPerLayerTable:
    case LaunchKind::kPerLayerCombine:
    case LaunchKind::kRopeTables:
    case LaunchKind::kHeadRows:
    case LaunchKind::kLogits:
    case LaunchKind::kHiddenRows:
      return false;
    case LaunchKind::kProduct: {
      const RowProduct& p = list.links[l.first_link].product;
      return !p.of_head && p.tasks[0].y != Buf::kPle && p.x != Buf::kPair;
    }
    default:
      return true;
  }
}

}  // namespace

std::vector<std::string> launch_text(const LaunchList& list) {
  std::vector<LayerText> layers;
  for (const Launch& l : list.launches) {
    const std::string text = text_of(list, l);
    if (text.empty()) continue;
    const int64_t layer = belongs_to_a_layer(list, l) ? int64_t{l.layer} : -1;
    if (layers.empty() || layers.back().layer != layer) layers.push_back({layer, {}});
    std::string& line = layers.back().text;
    line.append(line.empty() ? "" : "; ").append(text);
  }
  return join_layers(layers);
}

}  // namespace sharpi::device
