// SPDX-License-Identifier: MIT
// Rows in blocks of one KV head that the CPU chose, on a GPU and on splits of both: what the CPU
// saved goes on there as it does on the CPU, step by step, by few rows and by chunks, and is saved
// as it was; what a GPU chooses is what the CPU chooses, but for scores that are nearly equal.
// Skipped where there is no GPU.
#include <algorithm>
#include <iterator>

#include "cuda/device_test.h"
#include "engine/by_head_case.h"
#include "engine/expected_refusals.h"
#include "support/session_rows.h"

namespace sharpi::testing {
namespace {

class ByHeadTiers : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    spec_ = spec_of(path());
    ASSERT_TRUE(spec_);
    n_ = static_cast<int32_t>(spec_->n_layers());
  }
  /// Nothing where layers that share rows would be parted.
  Loaded open(int32_t layers, sharpi_kv_dtype kv, bool exact) const {
    const ModelSetup setup = setup_with(
        [=](sharpi_plan_params* p, sharpi_session_params* s) {
          watching(kv, exact, false)(p, s);
          p->n_gpu_layers = p->n_gpu_ffn = layers;
          p->stream_rows = SHARPI_UNSET;
          s->tail_k_dtype = s->tail_v_dtype = kv;
          s->n_ctx = 2048;
        },
        4);
    const ContextPtr context = make_context(setup);
    PlanPtr plan;
    sharpi_error e = SHARPI_ERROR_INIT;
    const sharpi_status planned = try_plan(context.get(), path(), setup, &plan, &e);
    if (is_expected_refusal(*spec_, layers, planned == SHARPI_E_UNSUPPORTED, planned == SHARPI_OK,
                            e.text, std::to_string(layers))) {
      return {};
    }
    return load(path(), setup);
  }
  std::shared_ptr<const ModelSpec> spec_;
  int32_t n_ = 0;
};

std::vector<Logits> go_on(Chat* chat, const std::vector<int32_t>& text) {
  std::vector<Logits> out;
  for (const auto& [from, to] : {std::pair<size_t, size_t>{0, 100}, {100, 104}, {104, 105}}) {
    chat->prefill(slice(text, from, to));
    out.push_back(chat->logits());
  }
  for (size_t i = 105; i < 112; ++i) {
    chat->decode(text[i]);
    out.push_back(chat->logits());
  }
  return out;
}

TEST_P(ByHeadTiers, WhatTheCpuSavedGoesOnAlike) {
  const std::vector<int32_t> text = tokens(1112);
  for (const sharpi_kv_dtype kv : stored_dtypes()) {
    for (const bool exact : {true, false}) {
      const std::string what = std::string(dtype_text(kv)) + (exact ? " exact" : " fast");
      const Loaded cpu = open(0, kv, exact);
      Chat a(cpu.model.get());
      a.prefill(slice(text, 0, 1000));
      compact(a, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 200, 400));
      const std::vector<char> blob = saved(a);
      const std::vector<uint32_t> kept = counts(a);
      const std::vector<Logits> want = go_on(&a, slice(text, 1000, 1112));
      for (const int32_t layers : {n_, n_ - 1, n_ / 2}) {
        const Loaded l = open(layers, kv, exact);
        if (!l.model) continue;
        Chat b(l.model.get());
        sharpi_error e = SHARPI_ERROR_INIT;
        ASSERT_EQ(sharpi_session_restore(b.get(), blob.data(), blob.size(), &e), SHARPI_OK)
            << what << ": " << text_of(e);
        EXPECT_TRUE(saved(b) == blob) << what << ", " << layers << " layers";
        EXPECT_EQ(counts(b), kept) << what;
        const std::vector<Logits> got = go_on(&b, slice(text, 1000, 1112));
        if (exact && kv == SHARPI_KV_F32) {
          for (size_t i = 0; i < want.size(); ++i)
            EXPECT_LE(distance(got[i], want[i]), 2e-3) << what << ", " << layers << ", " << i;
        }
        EXPECT_LE(rms_of(got, &want), 0.05 * rms_of(want)) << what << ", " << layers << " layers";
        expect_same_argmax(got, want, what + ", " + std::to_string(layers) + " layers", 1.0f);
      }
    }
  }
}

TEST_P(ByHeadTiers, HeadsKeepWhatTheyKeepOnTheCpu) {
  const std::vector<int32_t> text = tokens(900);
  for (const sharpi_policy policy :
       {SHARPI_POLICY_SNAPKV, SHARPI_POLICY_VALUE, SHARPI_POLICY_DEFENSIVE, SHARPI_POLICY_SPAN}) {
    const Loaded cpu = open(0, SHARPI_KV_F32, true), gpu = open(n_, SHARPI_KV_F32, true);
    const Chat a(cpu.model.get()), b(gpu.model.get());
    for (const Chat* chat : {&a, &b}) {
      const_cast<Chat*>(chat)->prefill(text);
      compact(*chat, params(SHARPI_LAYER_BUDGET_SHARED, policy, 150));
    }
    size_t all = 0, same = 0;
    for (uint32_t l = 0; l < spec_->n_layers(); ++l) {
      for (uint32_t h = 0; h < spec_->layers[l].attention.n_kv_heads; ++h) {
        const std::vector<uint32_t> x = kept(a, l, h), y = kept(b, l, h);
        std::vector<uint32_t> both;
        std::set_intersection(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(both));
        all += x.size();
        same += both.size();
      }
    }
    EXPECT_GT(all, 0u);
    EXPECT_GE(same * 100, all * 99) << "policy " << policy << ": " << same << " of " << all;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ByHeadTiers, ::testing::ValuesIn(trained_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
