// SPDX-License-Identifier: MIT
// KV dtypes of a session beside a plan whose layers are on both tiers: what the session gives is
// taken, what it leaves to `auto` is the plan's, for the trunk and the tail apart.
#include "plan/paper_tier.h"
#include "plan/session_plan.h"

namespace sharpi {
namespace {

struct Row {
  const char* what;
  sharpi_kv_dtype k, v, tail_k, tail_v;
  KvDtypePair trunk, tail;
};

class SessionDtype : public test::Solving {
 protected:
  void SetUp() override {
    spec_ = spec_of(test::tiny_qwen3());
    const auto half = static_cast<int32_t>(spec_->n_layers() / 2);
    plan_ = must(spec_, {.layers = half, .device = kPlenty, .tail = SHARPI_KV_BF16});
  }
  void expect(const Row& r) const {
    sharpi_session_params p;
    sharpi_session_params_init(&p, sizeof p);
    p.k_dtype = r.k;
    p.v_dtype = r.v;
    p.tail_k_dtype = r.tail_k;
    p.tail_v_dtype = r.tail_v;
    const auto s = resolve_session(*spec_, plan_->placement, plan_->session, p, {});
    ASSERT_TRUE(s.is_ok()) << r.what << ": " << s.status().text();
    for (size_t l = 0; l < spec_->layers.size(); ++l) {
      const bool trunk = plan_->placement.mixer[l] == DeviceIndex::kHere;
      EXPECT_EQ(s.value().dtypes[l], trunk ? r.trunk : r.tail) << r.what << ", layer " << l;
    }
  }
  std::shared_ptr<const ModelSpec> spec_;
  std::shared_ptr<const Plan> plan_;
};

TEST_F(SessionDtype, WhatIsGivenIsTakenAndTheRestIsThePlans) {
  constexpr sharpi_kv_dtype kAuto = SHARPI_KV_AUTO, kBf16 = SHARPI_KV_BF16, kQ8 = SHARPI_KV_Q8_0;
  const KvDtypePair plan_trunk{KvDtype::kF32, KvDtype::kF32},
      plan_tail{KvDtype::kBf16, KvDtype::kBf16};
  expect({"nothing", kAuto, kAuto, kAuto, kAuto, plan_trunk, plan_tail});
  expect({"the trunk's K", kQ8, kAuto, kAuto, kAuto, {KvDtype::kQ8_0, KvDtype::kF32}, plan_tail});
  expect({"the tail's K", kAuto, kAuto, kQ8, kAuto, plan_trunk, {KvDtype::kQ8_0, KvDtype::kBf16}});
  expect({"the tail's V", kAuto, kAuto, kAuto, kQ8, plan_trunk, {KvDtype::kBf16, KvDtype::kQ8_0}});
  expect({"one of each",
          kAuto,
          kBf16,
          kQ8,
          kAuto,
          {KvDtype::kF32, KvDtype::kBf16},
          {KvDtype::kQ8_0, KvDtype::kBf16}});
}

}  // namespace
}  // namespace sharpi
