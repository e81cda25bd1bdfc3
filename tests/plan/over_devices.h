// SPDX-License-Identifier: MIT
// Machines on paper with several devices, requests for plans over them, and what a plan's devices
// may hold, counted by hand. Thread rule: plain values.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plan/device_requests.h"
#include "plan/paper_tier.h"

namespace sharpi::test {

inline constexpr DeviceIndex kOne{1}, kTwo{2}, kThree{3};

class OverDevices : public Solving {
 protected:
  using Edit = std::function<void(sharpi_plan_params*, sharpi_session_params*)>;
  /// A machine with a device for each number of bytes, beside the host.
  struct Machine {
    /// Of CUDA's, but those that `tiers` names.
    explicit Machine(const std::vector<uint64_t>& bytes, uint64_t host_bytes = kPlenty,
                     const std::vector<TierId>& tiers = {})
        : host(TierId::kCpu, host_bytes) {
      devices.reserve(bytes.size());
      sizers.push_back(&host);
      for (const uint64_t b : bytes) {
        const auto index = static_cast<uint32_t>(devices.size() + 1);
        const TierId tier = index <= tiers.size() ? tiers[index - 1] : TierId::kCuda;
        devices.emplace_back(tier, b + kDriverShare, nullptr, kNames[index - 1], index);
        sizers.push_back(&devices.back());
      }
    }
    static constexpr const char* kNames[] = {"Card One", "Card Two", "Card Three"};
    PaperTier host;
    std::vector<PaperTier> devices;
    std::vector<const TierSizer*> sizers;
  };
  static Result<std::shared_ptr<const Plan>> ask(const std::shared_ptr<const ModelSpec>& spec,
                                                 const Machine& machine, const Edit& edit = {},
                                                 const PlanEnvironment& environment = {}) {
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = 512;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.session = &s;
    p.n_chunk = 64;
    if (edit) edit(&p, &s);
    return make_plan(spec, machine.sizers, p, environment);
  }
  static std::shared_ptr<const Plan> made(const std::shared_ptr<const ModelSpec>& spec,
                                          const Machine& machine, const Edit& edit = {},
                                          const PlanEnvironment& environment = {}) {
    auto plan = ask(spec, machine, edit, environment);
    EXPECT_TRUE(plan.is_ok()) << plan.status().text();
    return plan.is_ok() ? plan.take() : nullptr;
  }
  static std::string refusal(const std::shared_ptr<const ModelSpec>& spec, const Machine& machine,
                             Code code, const Edit& edit) {
    const auto plan = ask(spec, machine, edit);
    EXPECT_FALSE(plan.is_ok());
    if (plan.is_ok()) return "";
    EXPECT_EQ(plan.status().code(), code) << plan.status().text();
    return plan.status().text();
  }
  static sharpi_device_request request(uint32_t device, int32_t n_layers = -1) {
    sharpi_device_request d;
    sharpi_device_request_init(&d, sizeof d);
    d.device = device;
    d.n_layers = n_layers;
    return d;
  }
  static Edit listed(const std::vector<sharpi_device_request>& list, const Edit& more = {}) {
    return [&list, more](sharpi_plan_params* p, sharpi_session_params* s) {
      p->devices = list.data();
      p->n_devices = static_cast<uint32_t>(list.size());
      if (more) more(p, s);
    };
  }
  static std::shared_ptr<const ModelSpec> of(ModelRecipe recipe, uint32_t n_layers) {
    recipe.n_layers = n_layers;
    recipe.n_ctx = 32768;
    return spec_of(recipe);
  }
  /// "cgghhh": a letter a layer, by its mixer.
  static std::string layers(const Plan& p) {
    std::string out;
    for (const DeviceIndex d : p.placement.mixer) out += device_letter(p.placement, d);
    return out;
  }
  static void expect_within_limits(const Plan& p, const std::vector<uint64_t>& limits) {
    uint64_t all = 0;
    for (const sharpi_plan_device& d : p.device_rows()) {
      uint64_t held = 0;
      for (const MemoryRow& r : p.rows) {
        const bool here = d.device == 0 ? r.kind != SHARPI_ROW_DEVICE
                                        : r.kind == SHARPI_ROW_DEVICE && r.device == d.device;
        held += here ? r.held_bytes * (r.per_session != 0 ? p.model.n_sessions : 1) : 0;
      }
      EXPECT_EQ(d.held_bytes, held) << d.device;
      if (d.device == 0) continue;
      EXPECT_LE(d.peak_bytes, limits[d.device - 1]) << d.device;
      all += d.held_bytes;
    }
    EXPECT_EQ(p.summary().device_held_bytes, all);
    for (uint32_t l = 0; l < p.spec->n_layers(); ++l) {
      const DeviceIndex at = p.placement.mixer[l];
      for (const DeviceIndex own : {p.placement.ffn[l], p.placement.experts[l]})
        EXPECT_TRUE(is_host(own) || own == at) << l;
    }
  }
  /// What a device would hold of a plan with these layers, the embedding and the head.
  static uint64_t bytes_with(const Plan& like, const TierSizer& sizer, uint32_t first, uint32_t end,
                             bool embedding, bool head) {
    Plan p = like;
    const DeviceIndex own = sizer.device();
    p.placement = Placement::all(*p.spec, own == kOne ? kTwo : kOne);
    for (uint32_t l = first; l < end; ++l)
      p.placement.mixer[l] = p.placement.ffn[l] = p.placement.experts[l] = own;
    if (embedding) p.placement.embedding = own;
    if (head) p.placement.head = own;
    uint64_t n = 0;
    for (const MemoryRow& r : p.model_rows(sizer)) n += r.held_bytes;
    for (const MemoryRow& r : p.session_rows(sizer, p.session)) n += r.held_bytes;
    return n;
  }
};

}  // namespace sharpi::test
