// SPDX-License-Identifier: MIT
#include "plan/spread.h"

#include <algorithm>
#include <utility>

#include "plan/placement.h"

namespace sharpi {
namespace {

class Spreader {
 public:
  Spreader(const std::vector<MemoryLimit>& devices, const Plan& plan)
      : devices_(devices), asked_(plan.placement), trial_(plan) {
    while (n_layers_ < asked_.mixer.size() && !is_host(asked_.mixer[n_layers_])) ++n_layers_;
  }

  /// Every device is filled up to a share of its limit. False: the last one holds more.
  bool fill(double share) {
    share_ = share;
    starts_.assign(devices_.size() + 1, n_layers_);
    uint32_t at = 0;
    for (size_t d = 0; d < devices_.size(); ++d) {
      starts_[d] = at;
      head_ = d;
      at = end_of(d, at);
      if (at == n_layers_ && fits(d, at)) break;  // with the head
    }
    starts_[head_ + 1] = n_layers_;
    return at == n_layers_ && fits(head_, n_layers_);
  }
  Placement placed() const { return placed_with(starts_, head_); }
  /// Up to the last one with layers.
  size_t n_used() const { return head_ + 1; }
  /// What all devices hold as they are filled, over what they may hold.
  double mean_share() {
    double held = 0, limit = 0;
    trial_.placement = placed();
    for (const MemoryLimit& d : devices_) {
      price({d.sizer}, &trial_);
      held += static_cast<double>(peak_bytes(trial_, d.index));
      limit += static_cast<double>(d.bytes);
    }
    return limit > 0 ? std::min(held / limit, 1.0) : 1;
  }

 private:
  uint64_t limit_of(size_t d) const {
    const uint64_t bytes = devices_[d].bytes;
    return share_ >= 1 ? bytes : static_cast<uint64_t>(static_cast<double>(bytes) * share_);
  }

  /// Layers that devices behind one have to hold.
  uint32_t pinned_behind(size_t d) const {
    uint32_t n = 0;
    while (++d < devices_.size()) n += static_cast<uint32_t>(std::max(devices_[d].n_layers, 0));
    return n;
  }

  /// Behind the last layer of a device that begins with layer `first`.
  uint32_t end_of(size_t d, uint32_t first) {
    const bool last = d + 1 == devices_.size();
    if (devices_[d].n_layers >= 0)
      return std::min(n_layers_, first + static_cast<uint32_t>(devices_[d].n_layers));
    const uint32_t most = std::max(first, n_layers_ - std::min(n_layers_, pinned_behind(d)));
    if (last || (most == n_layers_ && fits(d, n_layers_))) return n_layers_;
    // The head, or layers, go on to the next device.
    std::vector<uint32_t> ends;
    for (uint32_t e = first; e <= most; ++e)
      if (e == first || is_layer_split(*trial_.spec, e)) ends.push_back(e);
    size_t low = 0, high = ends.size();
    head_ = d + 1;
    while (high - low > 1) {
      const size_t middle = low + (high - low) / 2;
      (fits(d, ends[middle]) ? low : high) = middle;
    }
    head_ = d;
    return ends[low];
  }

  /// Whether a device holds layers [its start, end), and the head if that is its.
  bool fits(size_t d, uint32_t end) {
    std::vector<uint32_t> starts = starts_;
    std::fill(starts.begin() + static_cast<std::ptrdiff_t>(d) + 1, starts.end(), n_layers_);
    starts[d + 1] = end;
    trial_.placement = placed_with(starts, head_);
    price({devices_[d].sizer}, &trial_);
    return peak_bytes(trial_, devices_[d].index) <= limit_of(d);
  }

  Placement placed_with(const std::vector<uint32_t>& starts, size_t head) const {
    Placement p = asked_;
    const auto put = [](DeviceIndex* at, DeviceIndex device) {
      if (!is_host(*at)) *at = device;
    };
    DeviceIndex first = devices_[head].index;
    for (size_t d = devices_.size(); d-- > 0;) {
      const DeviceIndex device = devices_[d].index;
      if (starts[d] == 0 && starts[d + 1] > 0) first = device;
      for (uint32_t l = starts[d]; l < starts[d + 1]; ++l) {
        p.mixer[l] = device;
        put(&p.ffn[l], device);
        put(&p.experts[l], device);
      }
    }
    put(&p.embedding, first);
    put(&p.head, devices_[head].index);
    put(&p.draft, devices_[head].index);
    return p;
  }

  const std::vector<MemoryLimit>& devices_;
  const Placement asked_;
  Plan trial_;
  std::vector<uint32_t> starts_;  // of each device's layers, and behind the last one's
  size_t head_ = 0;               // the device with the head
  uint32_t n_layers_ = 0;         // that are not on the host
  double share_ = 1;
};

/// All blocks of one device.
void put_on(DeviceIndex device, Placement* p) {
  const auto put = [device](DeviceIndex* at) {
    if (!is_host(*at)) *at = device;
  };
  for (DeviceIndex* at : {&p->embedding, &p->head, &p->draft}) put(at);
  for (std::vector<DeviceIndex>* list : {&p->mixer, &p->ffn, &p->experts})
    for (DeviceIndex& at : *list) put(&at);
}

bool is_pinned(const MemoryLimit& device) {
  return device.n_layers >= 0;
}

/// A layer is not cut, so some devices hold more than the mean, and the least share is sought.
/// Pre: fill(1).
void fill_evenly(Spreader* spreader) {
  constexpr int kSteps = 8;
  double low = spreader->mean_share() / 2, high = std::min(8 * low, 1.0);
  if (!spreader->fill(high)) high = 1;
  for (int i = 0; i < kSteps; ++i) {
    const double middle = (low + high) / 2;
    (spreader->fill(middle) ? high : low) = middle;
  }
  spreader->fill(high);
}

}  // namespace

void spread(const std::vector<MemoryLimit>& devices, bool all, Plan* plan) {
  if (devices.empty()) return;
  if (devices.size() == 1) return put_on(devices[0].index, &plan->placement);
  Spreader spreader(devices, *plan);
  const bool fits = spreader.fill(1);
  if (fits && all) fill_evenly(&spreader);
  const bool pinned = std::any_of(devices.begin(), devices.end(), is_pinned);
  if (fits && !all && !pinned && spreader.n_used() > 1) {
    const std::vector<MemoryLimit> used(
        devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(spreader.n_used()));
    Spreader among_used(used, *plan);
    if (among_used.fill(1)) fill_evenly(&among_used);
    plan->placement = among_used.placed();
    return;
  }
  plan->placement = spreader.placed();
}

void spread_slots(uint32_t n_slots, const std::vector<MemoryLimit>& devices, Plan* plan) {
  Placement& p = plan->placement;
  p.slots_of.assign(kMaxDevices, 0);
  const uint64_t all = p.n_parted_experts(*plan->spec);
  p.n_expert_slots = static_cast<uint32_t>(std::min<uint64_t>(n_slots, all));
  uint64_t before = 0, given = 0;
  for (const MemoryLimit& d : devices) {
    before += p.n_parted_experts(*plan->spec, d.index);
    const uint64_t until = all == 0 ? 0 : p.n_expert_slots * before / all;
    p.slots_of[index_of(d.index)] = static_cast<uint32_t>(until - given);
    given = until;
  }
}

Status check_shared_rows(const Plan& plan) {
  for (uint32_t l = 0; l < plan.spec->n_layers(); ++l) {
    const int32_t source = plan.spec->layers[l].kv_source();
    if (source < 0) continue;
    const DeviceIndex here = plan.placement.mixer[l],
                      there = plan.placement.mixer[static_cast<size_t>(source)];
    if (here == there) continue;
    return Status::error(
        Code::kUnsupported,
        "layer %u reads the KV rows of layer %d, but the list of devices puts them "
        "on devices %u and %u",
        l, source, index_of(here), index_of(there));
  }
  return Status::ok();
}

}  // namespace sharpi
