// SPDX-License-Identifier: MIT
// What a model says about itself: segments and their times, effective placement, paths.
#include <algorithm>
#include <span>

#include "base/json.h"
#include "engine/model.h"
#include "tier/block_tensors.h"

namespace sharpi {
namespace {

sharpi_segment_info describe(const Plan& plan, const Segment& segment) {
  const ModelSpec& spec = *plan.spec;
  sharpi_segment_info s{};
  s.tier = plan.tier_of(segment.device);
  s.device = index_of(segment.device);
  bool any_layer = false;
  for (const Block& b : segment.blocks) {
    s.n_streamed += b.streamed ? 1 : 0;
    switch (b.kind) {
      case BlockKind::kEmbedding:
        s.has_embedding = 1;
        continue;
      case BlockKind::kHead:
        s.has_head = 1;
        continue;
      case BlockKind::kMixer:
        ++s.n_mixers;
        break;
      case BlockKind::kFfn:
        ++s.n_ffn;
        break;
      case BlockKind::kExperts:
        ++s.n_experts;
        break;
    }
    if (!any_layer) s.first_layer = b.layer;
    any_layer = true;
    s.n_layers = b.layer + 1 - s.first_layer;
  }
  for (const Block& b : segment.blocks) {
    if (!b.streamed) continue;
    for (const TensorRef& t : block_tensors(spec, b)) s.streamed_bytes += t.bytes();
  }
  return s;
}

std::string segment_json(const sharpi_segment_info& s) {
  std::string out;
  JsonObject o(&out);
  o.text("tier", tier_name(s.tier));
  o.number("device", s.device);
  o.number("list", s.list);
  o.number("first_layer", s.first_layer);
  o.number("n_layers", s.n_layers);
  o.number("has_embedding", s.has_embedding);
  o.number("has_head", s.has_head);
  o.number("n_mixers", s.n_mixers);
  o.number("n_ffn", s.n_ffn);
  o.number("n_experts", s.n_experts);
  o.number("n_streamed", s.n_streamed);
  o.number("n_calls", s.n_calls);
  o.number("n_rows", s.n_rows);
  o.number("streamed_bytes", s.streamed_bytes);
  o.real("seconds", s.seconds);
  o.close();
  return out;
}

std::string step_json(uint32_t tier, DeviceIndex device, const std::vector<std::string>& lines) {
  std::string out, does;
  for (const std::string& line : lines)
    does.append(does.empty() ? "" : ", ").append(json_string(line));
  JsonObject o(&out);
  o.text("tier", tier_name(tier));
  o.number("device", index_of(device));
  o.raw("does", "[" + does + "]");
  o.close();
  return out;
}

/// What a step of one row does; text_of(segment): its lines.
template <class F>
std::string steps_json(const Plan& plan, std::span<const Segment> segments, F text_of) {
  std::string steps;
  for (const Segment& s : segments) {
    steps += (steps.empty() ? "" : ", ") + step_json(plan.tier_of(s.device), s.device, text_of(s));
  }
  return "[" + steps + "]";
}

/// The block for multi-token prediction, which drafts.
std::string mtp_json(const Plan& plan, const MtpModel& mtp) {
  std::string out;
  JsonObject o(&out);
  o.text("paths", mtp.paths());
  o.raw("step",
        steps_json(plan, mtp.segments(), [&](const Segment& s) { return mtp.step_text(s); }));
  o.close();
  return out;
}

/// One letter a layer.
std::string letters(const Placement& p, const std::vector<DeviceIndex>& devices) {
  std::string out;
  for (const DeviceIndex d : devices) out += device_letter(p, d);
  return out;
}

std::string experts_json(const sharpi_expert_stats& e) {
  std::string out;
  JsonObject o(&out);
  o.number("n_slots", e.n_slots);
  o.number("n_resident", e.n_resident);
  o.number("n_pinned", e.n_pinned);
  o.number("slot_bytes", e.slot_bytes);
  o.number("n_uses", e.n_uses);
  o.number("n_hits", e.n_hits);
  o.number("n_promotions", e.n_promotions);
  o.number("n_evictions", e.n_evictions);
  o.number("promoted_bytes", e.promoted_bytes);
  o.close();
  return out;
}

std::string placement_json(const Placement& p) {
  std::string out;
  JsonObject o(&out);
  o.text("embedding", letters(p, {p.embedding}));
  o.text("mixers", letters(p, p.mixer));
  o.text("ffn", letters(p, p.ffn));
  o.text("experts", letters(p, p.experts));
  o.text("head", letters(p, {p.head}));
  o.close();
  return out;
}

}  // namespace

std::vector<sharpi_segment_info> Model::segment_stats() const {
  std::vector<sharpi_segment_info> out;
  uint32_t list = 0;
  for (const Route* r : {&placed_, &streamed_}) {
    for (size_t i = 0; i < r->segments.size(); ++i) {
      sharpi_segment_info s = describe(*plan_, r->segments[i]);
      const SegmentTimes& t = r->times[i];
      s.list = list;
      s.n_calls = t.n_calls.load(std::memory_order_relaxed);
      s.n_rows = t.n_rows.load(std::memory_order_relaxed);
      s.streamed_bytes *= s.n_calls;
      s.seconds = static_cast<double>(t.nanoseconds.load(std::memory_order_relaxed)) * 1e-9;
      out.push_back(s);
    }
    ++list;
  }
  return out;
}

std::string Model::json() const {
  std::string out, segments;
  for (const sharpi_segment_info& s : segment_stats()) {
    segments += (segments.empty() ? "" : ", ") + segment_json(s);
  }
  JsonObject o(&out);
  o.text("architecture", spec().architecture);
  if (spec().left_out.empty()) {
    o.raw("left_out", "null");
  } else {
    o.text("left_out", spec().left_out);
  }
  o.raw("placement", placement_json(plan_->placement));
  if (stream_rows_ == SHARPI_UNSET) {
    o.raw("stream_rows", "null");
  } else {
    o.number("stream_rows", stream_rows_);
  }
  o.text("paths", paths());
  o.raw("step", steps_json(*plan_, placed_.segments, [&](const Segment& s) {
          return tiers_[tier_index(s.device)]->step_text(s);
        }));
  o.raw("experts", experts_json(expert_stats()));
  o.raw("segments", "[" + segments + "]");
  o.raw("mtp", mtp_ ? mtp_json(*plan_, *mtp_) : "null");
  o.raw("draft", draft_ ? draft_->json() : "null");
  o.close();
  return out;
}

}  // namespace sharpi
