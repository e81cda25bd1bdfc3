// SPDX-License-Identifier: MIT
#include "plan/placement.h"

#include <algorithm>

namespace sharpi {
namespace {

Status above(const char* name, int32_t value, uint32_t n, const char* what) {
  return Status::error(Code::kInvalidArgument, "%s is %d, but the model has only %u %s", name,
                       value, n, what);
}

/// `inner` blocks can only be on the GPU with the `outer` blocks of their layers.
Status check_nested(const char* inner, int32_t n_inner, const char* outer, int32_t n_outer,
                    const char* why) {
  if (n_outer < 0 || n_inner <= n_outer) return Status::ok();
  return Status::error(Code::kInvalidArgument, "%s is %d and %s is %d, but %s", inner, n_inner,
                       outer, n_outer, why);
}

Status check_counts(const ModelSpec& spec, const sharpi_plan_params& p) {
  const uint32_t n = spec.n_layers();
  const auto layers = static_cast<int64_t>(n);
  if (p.n_gpu_layers > layers) return above("n_gpu_layers", p.n_gpu_layers, n, "layers");
  if (p.n_gpu_ffn > layers) return above("n_gpu_ffn", p.n_gpu_ffn, n, "layers");
  if (p.n_gpu_experts > layers) return above("n_gpu_experts", p.n_gpu_experts, n, "layers");
  const char* with_layer = "an FFN block can only be on the GPU with its layer";
  const char* with_ffn = "a layer's routed experts can only be on the GPU with its FFN block";
  SHARPI_TRY(check_nested("n_gpu_ffn", p.n_gpu_ffn, "n_gpu_layers", p.n_gpu_layers, with_layer));
  SHARPI_TRY(
      check_nested("n_gpu_experts", p.n_gpu_experts, "n_gpu_layers", p.n_gpu_layers, with_ffn));
  SHARPI_TRY(check_nested("n_gpu_experts", p.n_gpu_experts, "n_gpu_ffn", p.n_gpu_ffn, with_ffn));
  if (p.gpu_ends > 0 && p.n_gpu_layers == 0) {
    return Status::error(Code::kInvalidArgument,
                         "gpu_ends is %d and n_gpu_layers is 0, but the embedding and the head can "
                         "only be on the GPU with layers",
                         p.gpu_ends);
  }
  if (p.gpu_ends == 2 && spec.tied_output) {
    return Status::error(Code::kInvalidArgument,
                         "gpu_ends is 2, but the embedding and the head are one tensor");
  }
  return Status::ok();
}

Status check_expert_pins(const ModelSpec& spec, const sharpi_plan_params& p) {
  const uint32_t n = routed_experts(spec);
  const bool wanted = p.n_expert_slots > 0 || p.n_gpu_experts > 0;
  if (n == 0 && wanted) {
    const bool slots = p.n_expert_slots > 0;
    return Status::error(Code::kUnsupported, "%s is %d, but the model has no routed experts",
                         slots ? "n_expert_slots" : "n_gpu_experts",
                         slots ? p.n_expert_slots : p.n_gpu_experts);
  }
  if (p.n_expert_slots <= 0) return Status::ok();
  if (p.n_expert_slots > static_cast<int64_t>(n)) {
    return above("n_expert_slots", p.n_expert_slots, n, "routed experts");
  }
  const char* nothing =
      "slots serve experts that are on the CPU while their FFN block is on the GPU";
  for (const auto& [name, value] :
       {std::pair{"n_gpu_layers", p.n_gpu_layers}, std::pair{"n_gpu_ffn", p.n_gpu_ffn}}) {
    if (value != 0 && (value < 0 || value != p.n_gpu_experts)) continue;
    return Status::error(Code::kInvalidArgument, "n_expert_slots is %d and %s is %d, but %s",
                         p.n_expert_slots, name, value, nothing);
  }
  if (p.n_gpu_experts == static_cast<int64_t>(spec.n_layers())) {
    return Status::error(
        Code::kInvalidArgument,
        "n_expert_slots is %d and n_gpu_experts is %d, but then no expert is left for a slot",
        p.n_expert_slots, p.n_gpu_experts);
  }
  return Status::ok();
}

Status check_device(const sharpi_plan_params& p, const DeviceAbility& device) {
  const char* pin = device_pin(p);
  if (pin == nullptr) return Status::ok();
  if (p.device == 0) {
    return Status::error(Code::kInvalidArgument,
                         "device is 0, which is the host, but %s asks for blocks on a GPU", pin);
  }
  if (!device.exists) {
    return Status::error(Code::kUnsupported, "%s asks for blocks on a GPU, but there is %s", pin,
                         device.why_none.c_str());
  }
  if (device.expert_slots || p.n_expert_slots <= 0) return Status::ok();
  return Status::error(
      Code::kUnsupported,
      "n_expert_slots is %d, but the device cannot compute single experts of this model",
      p.n_expert_slots);
}

Status no_such_split(const ModelSpec& spec, uint32_t n) {
  uint32_t below = n, over = n;
  while (!is_layer_split(spec, below)) --below;  // 0 always is one
  while (!is_layer_split(spec, over)) ++over;    // and so is the number of layers
  return Status::error(Code::kUnsupported,
                       "n_gpu_layers %u would put layers that share KV rows on different devices; "
                       "%u and %u would not",
                       n, below, over);
}

/// Least FFN blocks that leave `slots` experts from layer `first` on to slots.
Result<uint32_t> ffn_for_slots(const ModelSpec& spec, uint32_t slots, uint32_t first,
                               uint32_t most) {
  uint32_t n = 0, f = first;
  for (; f < most && n < slots; ++f) {
    const FfnSpec& ffn = spec.layers[f].ffn;
    n += ffn.kind == FfnKind::kMoe ? ffn.n_experts : 0;
  }
  if (n >= slots) return slots == 0 ? 0u : f;
  return Status::error(Code::kInvalidArgument,
                       "n_expert_slots is %u, but only %u routed experts are on the CPU with their "
                       "FFN block on the GPU",
                       slots, n);
}

}  // namespace

const char* device_pin(const sharpi_plan_params& p) {
  if (p.n_gpu_layers > 0) return "n_gpu_layers";
  if (p.n_gpu_ffn > 0) return "n_gpu_ffn";
  if (p.n_gpu_experts > 0) return "n_gpu_experts";
  if (p.n_expert_slots > 0) return "n_expert_slots";
  if (p.gpu_ends > 0) return "gpu_ends";
  if (p.device != SHARPI_UNSET && p.device != 0) return "device";
  const auto* end = p.devices + p.n_devices;
  const bool listed = std::any_of(p.devices, end, [](const auto& d) { return d.device != 0; });
  return listed ? "devices" : nullptr;
}

uint32_t listed_layers(const sharpi_plan_params& p) {
  int64_t n = 0;
  for (uint32_t i = 0; i < p.n_devices; ++i) n += std::max(p.devices[i].n_layers, 0);
  return static_cast<uint32_t>(std::min<int64_t>(n, UINT32_MAX));
}

bool is_layer_split(const ModelSpec& spec, uint32_t n) {
  for (uint32_t l = n; l < spec.n_layers(); ++l) {
    const int32_t source = spec.layers[l].kv_source();
    if (source >= 0 && static_cast<uint32_t>(source) < n) return false;
  }
  return true;
}

uint32_t routed_experts(const ModelSpec& spec) {
  uint32_t n = 0;
  for (const LayerSpec& l : spec.layers) n += l.ffn.kind == FfnKind::kMoe ? l.ffn.n_experts : 0;
  return n;
}

Result<PlacementLadder> PlacementLadder::create(const ModelSpec& spec, const sharpi_plan_params& p,
                                                const DeviceAbility& device) {
  SHARPI_TRY(check_counts(spec, p));
  SHARPI_TRY(check_expert_pins(spec, p));
  SHARPI_TRY(check_device(p, device));
  PlacementLadder ladder(spec);
  const uint32_t n = spec.n_layers();
  const bool moe = routed_experts(spec) != 0 && device.expert_slots;
  ladder.pinned_slots_ = moe ? p.n_expert_slots : 0;
  if (!device.exists || p.n_gpu_layers == 0) {
    ladder.pinned_slots_ = 0;
    ladder.rungs_.push_back({});
    return ladder;
  }
  Range layers{n, 1};
  const uint32_t listed = listed_layers(p);
  layers.least = std::max(layers.least, listed);
  if (p.n_gpu_layers > 0) layers.most = layers.least = static_cast<uint32_t>(p.n_gpu_layers);
  if (!is_layer_split(spec, layers.most)) return no_such_split(spec, layers.most);
  Range experts{layers.most, 0}, ffn{layers.most, 0};
  if (p.n_gpu_ffn >= 0) ffn.most = ffn.least = static_cast<uint32_t>(p.n_gpu_ffn);
  if (p.n_gpu_experts >= 0) {
    experts.most = experts.least = static_cast<uint32_t>(p.n_gpu_experts);
  } else if (moe && p.n_expert_slots >= 0) {
    experts.most = 0;  // what slots serve is on the CPU
  }
  experts.most = std::min(experts.most, ffn.most);
  // A pinned count keeps the blocks that it needs where they are.
  const uint32_t slots = p.n_expert_slots > 0 ? static_cast<uint32_t>(p.n_expert_slots) : 0;
  SHARPI_TRY_ASSIGN(const uint32_t needed,
                    ffn_for_slots(spec, slots, experts.least, std::max(ffn.most, experts.least)));
  ffn.least = std::max({ffn.least, experts.least, needed});
  layers.least = std::max(layers.least, ffn.least);
  if (!moe) experts = ffn;  // a layer's experts go with its FFN block
  ladder.layers_ = layers;
  ladder.ffn_ = ffn;
  ladder.experts_ = experts;
  ladder.together_ = !moe;
  ladder.pinned_ends_ = p.gpu_ends;
  ladder.may_leave_ = listed == 0 && p.n_gpu_layers < 0 && p.gpu_ends <= 0 && ffn.least == 0;
  ladder.keep(ladder.ends().front());
  return ladder;
}

/// Rungs until no block of a kind that may go is left.
void PlacementLadder::give(Give kind, Rung* at) {
  const auto push = [&] {
    at->n_ffn = std::min(at->n_ffn, at->n_mixers);
    at->n_experts = std::min(at->n_experts, at->n_ffn);
    rungs_.push_back(*at);
  };
  switch (kind) {
    case Give::kExperts:
      if (together_ || at->n_experts <= experts_.least) return;
      at->n_experts = experts_.least;
      return push();
    case Give::kFfn:
      while (at->n_ffn > ffn_.least) {
        --at->n_ffn;
        push();
      }
      return;
    case Give::kLayers:
      for (uint32_t m = at->n_mixers; m-- > layers_.least;) {
        if (!is_layer_split(*spec_, m)) continue;
        at->n_mixers = m;
        push();
      }
      return;
  }
}

void PlacementLadder::make_rungs() {
  if (layers_.most == 0) return;  // nothing may be on a device
  rungs_.clear();
  Rung at{layers_.most, ffn_.most, std::min(experts_.most, ffn_.most), ends_};
  rungs_.push_back(at);
  for (const Give kind : order_) give(kind, &at);
  if (pinned_ends_ < 0 && ends_ != Ends::kNone) {
    at.ends = Ends::kNone;
    rungs_.push_back(at);
  }
  if (may_leave_ && pinned_slots_ <= 0) rungs_.push_back({});
}

void PlacementLadder::order_by(const GiveOrder& order) {
  order_ = order;
  make_rungs();
}

std::vector<Ends> PlacementLadder::ends() const {
  if (layers_.most == 0 || pinned_ends_ == 0) return {Ends::kNone};
  if (pinned_ends_ == 2) return {Ends::kHead};
  if (pinned_ends_ > 0) return {Ends::kBoth};
  if (spec_->tied_output) return {Ends::kBoth, Ends::kNone};
  return {Ends::kBoth, Ends::kHead, Ends::kNone};
}

void PlacementLadder::keep(Ends ends) {
  ends_ = ends;
  make_rungs();
}

bool PlacementLadder::order_matters() const {
  const auto free = [](const Range& r) { return r.most > r.least ? 1 : 0; };
  const int ends_may_go = ends().size() > 1 ? 1 : 0;
  return free(layers_) + free(ffn_) + (together_ ? 0 : free(experts_)) + ends_may_go > 1;
}

size_t PlacementLadder::least_rung() const {
  const bool leaves = rungs_.size() > 1 && rungs_.back().n_mixers == 0;
  return rungs_.size() - (leaves ? 2 : 1);
}

Placement PlacementLadder::at(size_t rung, uint32_t n_expert_slots) const {
  const Rung& r = rungs_[rung];
  Placement p = Placement::all(*spec_, DeviceIndex::kHost);
  std::fill_n(p.mixer.begin(), r.n_mixers, DeviceIndex::kHere);
  std::fill_n(p.ffn.begin(), r.n_ffn, DeviceIndex::kHere);
  std::fill_n(p.experts.begin(), r.n_experts, DeviceIndex::kHere);
  if (r.ends == Ends::kBoth) p.embedding = DeviceIndex::kHere;
  if (r.ends != Ends::kNone) p.head = DeviceIndex::kHere;
  p.n_expert_slots =
      static_cast<uint32_t>(std::min<uint64_t>(n_expert_slots, p.n_parted_experts(*spec_)));
  return p;
}

uint32_t PlacementLadder::max_slots(size_t rung) const {
  return static_cast<uint32_t>(at(rung, 0).n_parted_experts(*spec_));
}

std::string PlacementLadder::describe(size_t rung) const {
  const Rung& r = rungs_[rung];
  if (r.n_mixers == 0) return "everything on the CPU";
  std::string text = std::to_string(r.n_mixers) + " of " + std::to_string(spec_->n_layers()) +
                     " layers, " + std::to_string(r.n_ffn) + " FFN blocks";
  if (routed_experts(*spec_) != 0) {
    text += ", the routed experts of " + std::to_string(r.n_experts) + " layers";
  }
  if (r.ends == Ends::kBoth) text += ", the embedding and the head";
  if (r.ends == Ends::kHead) text += ", the head";
  return text + " on the GPU";
}

}  // namespace sharpi
