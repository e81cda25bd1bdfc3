// SPDX-License-Identifier: MIT
#include "tier/segment.h"

#include <algorithm>
#include <utility>

namespace sharpi {

std::vector<Segment> make_segments(const ModelSpec& spec, const Placement& placement,
                                   const Placement* home) {
  if (home == nullptr) home = &placement;
  std::vector<Segment> segments;
  const auto add = [&](DeviceIndex device, DeviceIndex weights, BlockKind kind, uint32_t layer) {
    if (segments.empty() || segments.back().device != device) {
      Segment next;
      next.device = device;
      next.index = static_cast<uint32_t>(segments.size());
      next.first_here = std::none_of(segments.begin(), segments.end(),
                                     [&](const Segment& s) { return s.device == device; });
      segments.push_back(std::move(next));
    }
    const bool streamed = home != &placement && device != weights;
    segments.back().blocks.push_back(Block{kind, layer, streamed});
    segments.back().streamed = segments.back().streamed || streamed;
  };
  if (spec.part.has_embedding())
    add(placement.embedding, home->embedding, BlockKind::kEmbedding, 0);
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    add(placement.mixer[l], home->mixer[l], BlockKind::kMixer, l);
    add(placement.ffn[l], home->ffn[l], BlockKind::kFfn, l);
    if (spec.layers[l].ffn.kind == FfnKind::kMoe) {
      add(placement.ffn[l], home->experts[l], BlockKind::kExperts, l);
    }
  }
  if (spec.part.has_head()) add(placement.head, home->head, BlockKind::kHead, 0);
  for (Segment& s : segments) s.program = make_program(spec, placement, s);
  return segments;
}

}  // namespace sharpi
