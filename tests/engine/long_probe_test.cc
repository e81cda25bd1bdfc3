// SPDX-License-Identifier: MIT
// Probes of more tokens than a chunk, which are looked at in several passes: they choose the rows
// that one pass would choose, leave nothing behind, and a call that fails leaves the session as it
// was. Models of every kind: sliding windows and recurrent layers are what later passes need.
#include <algorithm>

#include "engine_case.h"
#include "support/needle.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kPrompt = 150, kProbe = 75;

Loaded load_with(const std::string& path, uint32_t n_chunk, uint32_t window) {
  return load(path, setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
                p->n_chunk = n_chunk;
                p->arithmetic = SHARPI_ARITHMETIC_EXACT;
                p->deterministic = 1;
                s->k_dtype = s->v_dtype = SHARPI_KV_F32;
                s->n_ctx = 512;
                s->capture_window = window;
              }));
}

sharpi_compact_params by_probe(const std::vector<int32_t>& probe, sharpi_policy policy,
                               uint32_t budget) {
  sharpi_compact_params p = compact_params(policy, budget);
  p.recency = 8;
  p.probe = probe.data();
  p.n_probe = static_cast<uint32_t>(probe.size());
  return p;
}

class LongProbes : public ::testing::TestWithParam<test::ModelRecipe> {};

/// With what was captured before as well as without, and whoever shares the rows out.
TEST_P(LongProbes, ChooseWhatOnePassChooses) {
  const MadeModel file(for_tier(GetParam()));
  const std::vector<int32_t> text = file.tokens(kPrompt), probe = file.tokens(kProbe, 5);
  const Loaded several = load_with(file.path(), 32, 16), one = load_with(file.path(), 128, 0);
  Chat left(several.model.get()), right(one.model.get());
  for (Chat* chat : {&left, &right}) chat->prefill(text);
  for (const sharpi_policy policy :
       {SHARPI_POLICY_GLOBAL, SHARPI_POLICY_SNAPKV, SHARPI_POLICY_DEFENSIVE, SHARPI_POLICY_VALUE,
        SHARPI_POLICY_SPAN, SHARPI_POLICY_RETRIEVAL}) {
    for (const sharpi_layer_budget shares :
         {SHARPI_LAYER_BUDGET_EQUAL, SHARPI_LAYER_BUDGET_SHARED}) {
      if (policy == SHARPI_POLICY_GLOBAL && shares != SHARPI_LAYER_BUDGET_EQUAL) continue;
      sharpi_compact_params p = by_probe(probe, policy, 40);
      p.layer_budget = shares;
      sharpi_error e = SHARPI_ERROR_INIT;
      Chat a = left.fork(), b = right.fork();
      for (Chat* chat : {&a, &b}) {
        ASSERT_EQ(sharpi_session_compact(chat->get(), &p, nullptr, &e), SHARPI_OK)
            << text_of(e) << policy;
        ASSERT_EQ(sharpi_session_reserve(chat->get(), 128, &e), SHARPI_OK) << text_of(e);
      }
      for (uint32_t l = 0; l < 8; ++l) {
        for (uint32_t h = 0; h < 4; ++h) {
          std::vector<uint32_t> rows[2];
          for (const bool second : {false, true}) {
            uint32_t n = 0;
            rows[second].resize(512);
            const sharpi_status s = sharpi_session_kept((second ? b : a).get(), l, h,
                                                        rows[second].data(), 512, &n, nullptr);
            rows[second].resize(s == SHARPI_OK ? n : 0);
          }
          EXPECT_EQ(rows[0], rows[1]) << "policy " << policy << ", layer " << l << ", head " << h;
        }
      }
      for (Chat* chat : {&a, &b}) chat->prefill(slice(text, 0, 3));
      EXPECT_TRUE(same_bits(a.logits(), b.logits())) << "policy " << policy;
    }
  }
}

/// Everything fits, so nothing moves: all that could change is what the probe's passes overwrite.
TEST_P(LongProbes, LeaveNothingBehind) {
  const MadeModel file(for_tier(GetParam()));
  const std::vector<int32_t> text = file.tokens(kPrompt + 20), probe = file.tokens(kProbe, 5);
  const Loaded l = load_with(file.path(), 32, 16);
  Chat chat(l.model.get()), untouched(l.model.get());
  for (Chat* c : {&chat, &untouched}) c->prefill(slice(text, 0, kPrompt));
  const std::vector<char> before = saved(chat);
  const uint64_t held = chat.info().kv_held_bytes;
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_compact_params fits = by_probe(probe, SHARPI_POLICY_SNAPKV, kPrompt);
  ASSERT_EQ(sharpi_session_compact(chat.get(), &fits, nullptr, &e), SHARPI_OK) << text_of(e);
  EXPECT_TRUE(saved(chat) == before);
  EXPECT_EQ(chat.info().kv_held_bytes, held);
  // Stopped by a host in the middle of the layers, behind the probe's passes.
  sharpi_compact_params stopped = by_probe(probe, SHARPI_POLICY_SNAPKV, 40);
  stopped.progress = [](void*, uint32_t, uint64_t, uint64_t) { return 1; };
  EXPECT_EQ(sharpi_session_compact(chat.get(), &stopped, nullptr, &e), SHARPI_E_CANCELLED);
  EXPECT_TRUE(saved(chat) == before);
  sharpi_session_cancel(chat.get());  // before the first pass
  EXPECT_EQ(sharpi_session_compact(chat.get(), &stopped, nullptr, &e), SHARPI_E_CANCELLED);
  EXPECT_TRUE(saved(chat) == before);
  for (Chat* c : {&chat, &untouched}) c->prefill(slice(text, kPrompt, kPrompt + 20));
  EXPECT_TRUE(same_bits(chat.logits(), untouched.logits()));
}

INSTANTIATE_TEST_SUITE_P(Engine, LongProbes,
                         ::testing::ValuesIn(test::with_newer_kinds(test::tiny_recipes())),
                         recipe_name);

}  // namespace
}  // namespace sharpi::testing
