// SPDX-License-Identifier: MIT
#include "tier/segment_program.h"

#include <algorithm>

#include "tier/tier.h"

namespace sharpi {
namespace {

class ProgramMaker {
 public:
  ProgramMaker(const ModelSpec& spec, const Placement& placement, const Segment& segment)
      : spec_(spec), placement_(placement), segment_(segment) {
    for (uint32_t l = 0; l < spec.n_layers(); ++l) {
      if (placement.mixer[l] == segment.device) last_mixer_ = l;
    }
  }

  SegmentProgram make() {
    for (const Block& b : segment_.blocks) {
      opens_ = true;
      layer_ = b.layer;
      switch (b.kind) {
        case BlockKind::kEmbedding:
          embedding();
          break;
        case BlockKind::kMixer:
          mixer();
          break;
        case BlockKind::kFfn:
          ffn();
          break;
        case BlockKind::kExperts:
          break;  // they run with their router
        case BlockKind::kHead:
          add(OpKind::kHead);
          break;
      }
    }
    return std::move(program_);
  }

 private:
  void add(OpKind kind) {
    program_.push_back({kind, layer_, opens_});
    opens_ = false;
  }

  void embedding() {
    add(spec_.pair ? OpKind::kEmbedPairs : OpKind::kEmbed);
    if (spec_.d_ple != 0 && !spec_.pair) add(OpKind::kPerLayerInputs);
  }

  /// Where the embedding ran on another tier: what came in are embeddings in front of the first
  /// layer, and no more behind it.
  bool inputs_from_rows() const {
    return spec_.d_ple != 0 && placement_.embedding != segment_.device && layer_ == 0;
  }
  bool inputs_from_tokens() const {
    if (spec_.d_ple == 0 || placement_.embedding == segment_.device) return false;
    if (placement_.mixer[0] == segment_.device) return false;
    for (uint32_t l = 0; l < layer_; ++l) {
      if (placement_.ffn[l] == segment_.device && spec_.layers[l].ple_gate) return false;
    }
    return placement_.ffn[layer_] == segment_.device && spec_.layers[layer_].ple_gate;
  }

  void mixer() {
    const LayerSpec& l = spec_.layers[layer_];
    if (inputs_from_rows()) add(OpKind::kPerLayerInputs);
    switch (l.mixer) {
      case MixerKind::kAttention:
        attention(l);
        break;
      case MixerKind::kGatedDeltaNet:
        add(OpKind::kDeltaIn);
        add(OpKind::kDeltaNet);
        add(OpKind::kDeltaOut);
        break;
      case MixerKind::kMamba2:
        add(OpKind::kMambaIn);
        add(OpKind::kMamba);
        add(OpKind::kMambaOut);
        break;
      case MixerKind::kNone:
        break;
    }
    if (layer_ == last_mixer_ && spec_.has_window()) add(OpKind::kKeepRing);
  }

  void attention(const LayerSpec& l) {
    const bool has_ropes = std::any_of(program_.begin(), program_.end(),
                                       [](const Op& op) { return op.kind == OpKind::kRopeTables; });
    if (!has_ropes) add(OpKind::kRopeTables);
    add(OpKind::kAttentionIn);
    if (l.owns_kv() && l.attention.window != 0) add(OpKind::kKeepRing);
    add(OpKind::kAttentionRows);
    add(OpKind::kAttend);
    add(OpKind::kAttentionOut);
  }

  void ffn() {
    const LayerSpec& l = spec_.layers[layer_];
    if (inputs_from_tokens()) add(OpKind::kPerLayerInputsAgain);
    if (segment_.streamed) add(OpKind::kFetchWeights);
    switch (l.ffn.kind) {
      case FfnKind::kDense:
        add(OpKind::kFfnIn);
        add(OpKind::kFfnOut);
        break;
      case FfnKind::kMoe:
        add(OpKind::kRoute);
        add(OpKind::kExperts);
        if (l.ffn.d_shared != 0) add(OpKind::kSharedExpert);
        break;
      case FfnKind::kNone:
        break;
    }
    if (l.ple_gate) add(OpKind::kInjectPerLayer);
    if (l.output_scale != 1.0f) add(OpKind::kScaleLayer);
    if (segment_.streamed) add(OpKind::kReleaseWeights);
    add(OpKind::kLayerEnd);
  }

  const ModelSpec& spec_;
  const Placement& placement_;
  const Segment& segment_;
  SegmentProgram program_;
  uint32_t layer_ = 0;
  uint32_t last_mixer_ = 0;
  bool opens_ = false;
};

bool belongs_to_a_layer(OpKind kind) {
  return kind != OpKind::kEmbed && kind != OpKind::kEmbedPairs && kind != OpKind::kRopeTables &&
         kind != OpKind::kPerLayerInputs && kind != OpKind::kPerLayerInputsAgain &&
         kind != OpKind::kHead;
}

}  // namespace

SegmentProgram make_program(const ModelSpec& spec, const Placement& placement,
                            const Segment& segment) {
  return ProgramMaker(spec, placement, segment).make();
}

const char* op_name(OpKind kind) {
  switch (kind) {
    case OpKind::kEmbed:
      return "embed";
    case OpKind::kEmbedPairs:
      return "embed pairs";
    case OpKind::kPerLayerInputs:
      return "per-layer inputs";
    case OpKind::kPerLayerInputsAgain:
      return "per-layer inputs of tokens embedded again";
    case OpKind::kRopeTables:
      return "rope tables";
    case OpKind::kAttentionIn:
      return "attention in";
    case OpKind::kKeepRing:
      return "keep ring";
    case OpKind::kAttentionRows:
      return "attention rows";
    case OpKind::kAttend:
      return "attend";
    case OpKind::kAttentionOut:
      return "attention out";
    case OpKind::kDeltaIn:
      return "delta in";
    case OpKind::kDeltaNet:
      return "delta net";
    case OpKind::kDeltaOut:
      return "delta out";
    case OpKind::kMambaIn:
      return "mamba in";
    case OpKind::kMamba:
      return "mamba";
    case OpKind::kMambaOut:
      return "mamba out";
    case OpKind::kFetchWeights:
      return "fetch weights";
    case OpKind::kFfnIn:
      return "ffn in";
    case OpKind::kFfnOut:
      return "ffn out";
    case OpKind::kRoute:
      return "route";
    case OpKind::kExperts:
      return "experts";
    case OpKind::kSharedExpert:
      return "shared expert";
    case OpKind::kInjectPerLayer:
      return "inject per-layer input";
    case OpKind::kScaleLayer:
      return "scale";
    case OpKind::kReleaseWeights:
      return "release weights";
    case OpKind::kLayerEnd:
      return "layer end";
    case OpKind::kHead:
      return "head";
  }
  return "";
}

std::vector<std::string> program_text(const SegmentProgram& program) {
  std::vector<LayerText> layers;
  for (const Op& op : program) {
    if (op.kind == OpKind::kLayerEnd) continue;
    const int64_t layer = belongs_to_a_layer(op.kind) ? int64_t{op.layer} : -1;
    if (layers.empty() || layers.back().layer != layer) layers.push_back({layer, {}});
    std::string& text = layers.back().text;
    text += (text.empty() ? "" : ", ") + std::string(op_name(op.kind));
  }
  return join_layers(layers);
}

std::vector<std::string> join_layers(const std::vector<LayerText>& layers) {
  struct Line {
    std::vector<int64_t> layers;  // ascending; none: of no layer
    std::string text;
  };
  std::vector<Line> lines;
  for (const LayerText& l : layers) {
    if (l.text.empty()) continue;
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
      return l.layer >= 0 && !line.layers.empty() && line.text == l.text;
    });
    Line& line = same == lines.end() ? lines.emplace_back() : *same;
    line.text = l.text;
    if (l.layer >= 0) line.layers.push_back(l.layer);
  }
  std::vector<std::string> out;
  for (const Line& line : lines) {
    std::string text = line.layers.empty() ? "" : line.layers.size() == 1 ? "layer " : "layers ";
    for (size_t i = 0; i < line.layers.size();) {
      size_t last = i;
      while (last + 1 < line.layers.size() && line.layers[last + 1] == line.layers[last] + 1)
        ++last;
      text.append(i == 0 ? "" : ", ").append(std::to_string(line.layers[i]));
      if (last != i) text.append("-").append(std::to_string(line.layers[last]));
      i = last + 1;
    }
    out.push_back(text.append(line.layers.empty() ? "" : ": ").append(line.text));
  }
  return out;
}

}  // namespace sharpi
