// SPDX-License-Identifier: MIT
// Machines that exist only in tests: a host, and a device of any size that takes weights, expert
// slots and KV rows and nothing else, so that every byte of a plan can be counted by hand.
// Thread rule: plain values.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kv/kv_layout.h"
#include "plan/plan.h"
#include "support/tiny_model.h"

namespace sharpi::test {

inline uint64_t mixer_bytes(const LayerSpec& l) {
  const AttentionSpec& a = l.attention;
  const DeltaNetSpec& d = l.delta;
  const Mamba2Spec& m = l.mamba;
  uint64_t n = a.q.bytes() + a.k.bytes() + a.v.bytes() + a.o.bytes();
  n += d.qkv.bytes() + d.gate.bytes() + d.alpha.bytes() + d.beta.bytes() + d.out.bytes();
  n += m.gate.bytes() + m.xbc.bytes() + m.dt.bytes() + m.out.bytes();
  return n;
}
inline uint64_t routed_bytes(const LayerSpec& l) {
  const FfnSpec& f = l.ffn;
  return f.kind == FfnKind::kMoe ? f.gate.bytes() + f.up.bytes() + f.down.bytes() : 0;
}
/// Dense FFN, or router and shared expert.
inline uint64_t ffn_bytes(const LayerSpec& l) {
  const FfnSpec& f = l.ffn;
  const uint64_t dense =
      f.kind == FfnKind::kDense ? f.gate.bytes() + f.up.bytes() + f.down.bytes() : 0;
  return dense + f.router.bytes() + f.shared_gate.bytes() + f.shared_up.bytes() +
         f.shared_down.bytes();
}

class PaperTier final : public TierSizer {
 public:
  PaperTier(TierId id, uint64_t bytes, const char* cannot = nullptr, const char* name = "paper",
            uint32_t index = 1)
      : id_(id),
        here_(is_host(id) ? DeviceIndex::kHost : DeviceIndex::kHere),
        bytes_(bytes),
        cannot_(cannot),
        name_(name),
        index_(index) {}
  TierId tier() const override { return id_; }
  uint32_t device_index() const override { return is_host(id_) ? 0 : index_; }
  uint64_t free_bytes() const override { return bytes_; }
  uint64_t total_bytes() const override { return bytes_; }
  std::string device_name() const override { return name_; }
  std::string device_id() const override {
    return device_id_.empty() ? "paper-" + std::to_string(device_index()) : device_id_;
  }
  void be(const std::string& device_id) { device_id_ = device_id; }
  /// It shares a model with nobody.
  void stay_alone() { alone_ = true; }
  Status check_beside(const ModelSpec&,
                      const std::vector<const TierSizer*>& others) const override {
    if (!alone_) return Status::ok();
    return Status::error(Code::kUnsupported, "%s stays alone, without %s", name_,
                         others.front()->device_name().c_str());
  }
  Status check_model(const ModelSpec&, const Placement&) const override {
    return cannot_ == nullptr ? Status::ok() : Status::error(Code::kUnsupported, "%s", cannot_);
  }
  uint64_t expert_slot_bytes(const ModelSpec& spec, const Placement& p) const override {
    uint64_t n = 0;
    for (uint32_t l = 0; l < spec.n_layers() && !is_host(id_); ++l) {
      if (p.parts_experts(spec, l))
        n = std::max(n, routed_bytes(spec.layers[l]) / spec.layers[l].ffn.n_experts);
    }
    return n;
  }
  /// Bytes of activations for a token of a chunk.
  void work_in(uint64_t bytes) { token_bytes_ = bytes; }
  std::vector<MemoryRow> model_rows(const ModelSpec& spec, const Placement& p,
                                    const ModelShape& model, const SessionShape&) const override {
    uint64_t n = 1;
    for (size_t l = 0; l < spec.layers.size(); ++l) {
      if (p.mixer[l] == here_) n += mixer_bytes(spec.layers[l]);
      if (p.ffn[l] == here_) n += ffn_bytes(spec.layers[l]);
      if (p.experts[l] == here_) n += routed_bytes(spec.layers[l]);
    }
    const auto own = [&](const TensorRef& w) {
      const bool lent = std::find(spec.lent.begin(), spec.lent.end(), w.tensor) != spec.lent.end();
      return lent ? 0 : w.bytes();
    };
    if (p.embedding == here_) n += own(spec.token_embd) + spec.pair.proj.bytes();
    if (p.head == here_ && !spec.tied_output) n += own(spec.output);
    std::vector<MemoryRow> rows{row(SHARPI_ROW_WEIGHTS, "weights", n)};
    const uint64_t slots = p.n_expert_slots * expert_slot_bytes(spec, p);
    if (slots != 0) rows.push_back(row(SHARPI_ROW_EXPERTS, "expert slots", slots));
    const uint64_t work = model.n_chunk * token_bytes_;
    if (work != 0) rows.push_back(row(SHARPI_ROW_ACTIVATIONS, "activations", work));
    return rows;
  }
  std::vector<MemoryRow> session_rows(const ModelSpec& spec, const Placement& p,
                                      const ModelShape& model,
                                      const SessionShape& session) const override {
    std::vector<bool> here(spec.layers.size());
    for (size_t l = 0; l < here.size(); ++l) here[l] = p.mixer[l] == here_;
    const uint32_t slots = session.capacity(model.n_chunk);
    const KvLayout layout = make_kv_layout(
        spec, here, session.dtypes, {session.n_ctx, slots, session.rewind, model.n_chunk, false});
    uint64_t held = 0, payload = 0;
    for (const KvGroup& g : layout.groups) {
      held += g.block_bytes(g.capacity);
      payload += g.payload_bytes(g.capacity);
    }
    if (held == 0) return {};
    MemoryRow r = row(SHARPI_ROW_KV, "KV rows", held);
    r.payload_bytes = payload;
    r.per_session = 1;
    return {r};
  }

 private:
  MemoryRow row(uint32_t purpose, const char* label, uint64_t n) const {
    const bool device = !is_host(id_);
    return make_row(id_, device_index(), purpose, device ? SHARPI_ROW_DEVICE : SHARPI_ROW_ANONYMOUS,
                    label, n, n);
  }
  TierId id_;
  DeviceIndex here_;  // in placements as it sees them
  bool alone_ = false;
  uint64_t bytes_, token_bytes_ = 0;
  const char *cannot_, *name_;
  uint32_t index_;
  std::string device_id_;
};

/// What plans leave to a GPU's driver of the memory that is free.
constexpr uint64_t kDriverShare = 256ull << 20;

struct PaperRequest {
  int32_t layers = -1, ffn = -1, experts = -1, slots = -1, ends = -1;
  uint64_t device = 0;  // bytes that plans may use of the device; 0 = there is none
  uint64_t device_budget = SHARPI_ALL_FREE, host_budget = SHARPI_ALL_FREE;
  uint32_t n_ctx = 512;
  sharpi_kv_dtype kv = SHARPI_KV_AUTO, tail = SHARPI_KV_AUTO;
  uint32_t n_sessions = 1, on_device = SHARPI_UNSET;
  double device_rate = 0, pcie_rate = 0, host_rate = 0;
  const char* cannot = nullptr;                      // why the device cannot compute the model
  uint32_t drafters = 0;                             // with four drafts
  uint64_t token_bytes = 0;                          // of activations on the device
  std::shared_ptr<const ModelSpec> draft = nullptr;  // of the model that drafts
};

class Solving : public ::testing::Test {
 protected:
  static std::shared_ptr<const ModelSpec> spec_of(const ModelRecipe& recipe, bool sparse = false) {
    auto spec = load_model(ModelFile(recipe), sparse);
    EXPECT_TRUE(spec.is_ok()) << spec.status().text();
    return spec.take();
  }
  static Result<std::shared_ptr<const Plan>> plan(const std::shared_ptr<const ModelSpec>& spec,
                                                  const PaperRequest& r,
                                                  const PlanMachine* machine = nullptr) {
    const PaperTier host(TierId::kCpu, 1ull << 40);
    PaperTier device(TierId::kCuda, r.device + kDriverShare, r.cannot);
    device.work_in(r.token_bytes);
    std::vector<const TierSizer*> sizers{&host};
    if (r.device != 0) sizers.push_back(&device);
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = r.n_ctx;
    s.n_draft = r.drafters == 0 ? 0 : 4;
    s.drafters = r.drafters;
    s.k_dtype = s.v_dtype = r.kv;
    s.tail_k_dtype = s.tail_v_dtype = r.tail;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.n_gpu_layers = r.layers;
    p.n_gpu_ffn = r.ffn;
    p.n_gpu_experts = r.experts;
    p.n_expert_slots = r.slots;
    p.gpu_ends = r.ends;
    p.device = r.on_device;
    p.device_budget = r.device_budget;
    p.host_budget = r.host_budget;
    p.n_sessions = r.n_sessions;
    p.device_rate = r.device_rate;
    p.pcie_rate = r.pcie_rate;
    p.host_rate = r.host_rate;
    p.session = &s;
    return make_plan(spec, sizers, p, {}, machine, r.draft);
  }
  static std::shared_ptr<const Plan> must(const std::shared_ptr<const ModelSpec>& spec,
                                          const PaperRequest& r,
                                          const PlanMachine* machine = nullptr) {
    auto made = plan(spec, r, machine);
    EXPECT_TRUE(made.is_ok()) << made.status().text();
    return made.is_ok() ? made.take() : nullptr;
  }
  /// The text of the refusal.
  static std::string refused(const std::shared_ptr<const ModelSpec>& spec, const PaperRequest& r,
                             Code code, const std::string& part) {
    const auto made = plan(spec, r);
    EXPECT_FALSE(made.is_ok()) << part;
    if (made.is_ok()) return "";
    EXPECT_EQ(made.status().code(), code) << made.status().text();
    EXPECT_NE(made.status().text().find(part), std::string::npos) << made.status().text();
    return made.status().text();
  }
  static constexpr uint64_t kPlenty = 1ull << 40;
};

}  // namespace sharpi::test
