// SPDX-License-Identifier: MIT
// What the environment says about compaction (SHARPI_SNAPKV_BUDGET, _WINDOW, _RECENCY): what each
// brings about, that parameters go before it, and that no malformed value is taken. The automatic
// budget, and drafts, which no version speculates with yet.
#include <cstdlib>

#include "engine/engine_case.h"
#include "support/needle.h"
#include "support/system.h"

namespace sharpi::testing {
namespace {

constexpr const char* kNames[] = {"SHARPI_SNAPKV_BUDGET", "SHARPI_SNAPKV_WINDOW",
                                  "SHARPI_SNAPKV_RECENCY"};

class SnapKvEnvironment : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : kNames) test::unset_environment(name);
  }
  static ModelSetup reading(Edit edit = {}) {
    ModelSetup setup = setup_with(std::move(edit), 1);
    setup.use_env = true;
    return setup;
  }
  sharpi_status plan(const ModelSetup& setup, std::string* text) const {
    const ContextPtr context = make_context(setup);
    PlanPtr plan;
    sharpi_error e = SHARPI_ERROR_INIT;
    const sharpi_status s = try_plan(context.get(), file_.path(), setup, &plan, &e);
    *text = e.text;
    return s;
  }
  /// Positions that the first KV head of the first layer holds after a prompt of n tokens.
  std::vector<uint32_t> kept_of(const Loaded& l, uint32_t n) const {
    Chat chat(l.model.get());
    chat.prefill(file_.tokens(n));
    std::vector<uint32_t> out(n);
    uint32_t count = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_kept(chat.get(), 0, 0, out.data(), n, &count, &e), SHARPI_OK)
        << text_of(e);
    out.resize(count);
    return out;
  }
  const MadeModel file_{test::tiny_qwen3()};
};

TEST_F(SnapKvEnvironment, MalformedCountsAreRefusedWithTheNameAndTheValue) {
  for (const char* name : kNames) {
    for (const char* value : {"12abc", "-1", "1.5", "0x10", "1e3", "auto", "1234567890", "1 2"}) {
      test::set_environment(name, value);
      std::string text;
      EXPECT_EQ(plan(reading(), &text), SHARPI_E_INVALID_ARGUMENT) << name << "=" << value;
      EXPECT_NE(text.find(std::string(name) + " is \"" + value + "\"; a count from 0"),
                std::string::npos)
          << text;
      EXPECT_EQ(plan(setup_with({}, 1), &text), SHARPI_OK) << "ignored, but read: " << text;
    }
    for (const char* value : {"", "  ", " 0\t"}) {
      test::set_environment(name, value);
      std::string text;
      EXPECT_EQ(plan(reading(), &text), SHARPI_OK) << name << "=" << value << ": " << text;
    }
    test::unset_environment(name);
  }
}

TEST_F(SnapKvEnvironment, BudgetsThatContradictTheRestAreRefused) {
  std::string text;
  test::set_environment("SHARPI_SNAPKV_BUDGET", "200");
  test::set_environment("SHARPI_SNAPKV_RECENCY", "201");
  EXPECT_EQ(plan(reading(), &text), SHARPI_E_INVALID_ARGUMENT);
  EXPECT_NE(text.find("recency 201 and sinks 0 are more than the budget of 200 rows"),
            std::string::npos)
      << text;
  test::set_environment("SHARPI_SNAPKV_RECENCY", "200");
  EXPECT_EQ(plan(reading(), &text), SHARPI_OK) << text;
  test::set_environment("SHARPI_SNAPKV_WINDOW", "0");
  EXPECT_EQ(plan(reading(), &text), SHARPI_E_INVALID_ARGUMENT);
  EXPECT_NE(text.find("a KV budget needs a capture_window of at least 1"), std::string::npos)
      << text;
  test::set_environment("SHARPI_SNAPKV_WINDOW", "65537");
  EXPECT_EQ(plan(reading(), &text), SHARPI_E_INVALID_ARGUMENT);
  EXPECT_NE(text.find("capture_window is 65537; at most 65536"), std::string::npos) << text;
}

TEST_F(SnapKvEnvironment, TheWindowIsCapturedWhereABudgetWantsIt) {
  test::set_environment("SHARPI_SNAPKV_WINDOW", "40");
  EXPECT_EQ(load(file_.path(), reading()).plan_info.capture_window, 0u) << "nothing is scored";
  test::set_environment("SHARPI_SNAPKV_BUDGET", "100");
  EXPECT_EQ(load(file_.path(), reading()).plan_info.capture_window, 40u);
  const Loaded given =
      load(file_.path(),
           reading([](sharpi_plan_params*, sharpi_session_params* s) { s->capture_window = 24; }));
  EXPECT_EQ(given.plan_info.capture_window, 24u) << "the parameter goes first";
  test::unset_environment("SHARPI_SNAPKV_WINDOW");
  EXPECT_EQ(load(file_.path(), reading()).plan_info.capture_window, 64u);
}

TEST_F(SnapKvEnvironment, TheLastRowsThatItNamesAreKept) {
  constexpr uint32_t kPrompt = 400;
  const auto last_run = [](const std::vector<uint32_t>& kept) {
    uint32_t n = 0;
    while (n < kept.size() && kept[kept.size() - 1 - n] == kPrompt - 1 - n) ++n;
    return n;
  };
  test::set_environment("SHARPI_SNAPKV_BUDGET", "120");
  test::set_environment("SHARPI_SNAPKV_RECENCY", "110");
  const auto many = kept_of(load(file_.path(), reading()), kPrompt);
  EXPECT_EQ(many.size(), 120u);
  EXPECT_GE(last_run(many), 110u);
  test::set_environment("SHARPI_SNAPKV_RECENCY", "4");
  const auto few = kept_of(load(file_.path(), reading()), kPrompt);
  EXPECT_EQ(few.size(), 120u);
  EXPECT_GE(last_run(few), 4u);
  EXPECT_LT(last_run(few), 64u) << "a random model asks for older rows too";
  // The parameter goes first.
  const auto given = kept_of(
      load(file_.path(),
           reading([](sharpi_plan_params*, sharpi_session_params* s) { s->recency = 110; })),
      kPrompt);
  EXPECT_GE(last_run(given), 110u);
  const auto off = kept_of(
      load(file_.path(),
           reading([](sharpi_plan_params*, sharpi_session_params* s) { s->prompt_budget = 0; })),
      kPrompt);
  EXPECT_EQ(off.size(), kPrompt);
}

/// From 256 MiB of rows on, a quarter of the context, at least 1024 rows.
TEST(AutomaticBudget, CompactsWhereTheCacheIsLarge) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_layers = 4;
  recipe.n_heads = recipe.n_kv_heads = 16;
  recipe.head_dim = 128;
  const MadeModel file(recipe);
  constexpr uint32_t kPrompt = 1100;
  for (const sharpi_kv_dtype kv : {SHARPI_KV_F32, SHARPI_KV_BF16}) {
    // Of f32 a row of all layers has 64 KiB: 256 MiB at 4096 tokens, half of it in bf16.
    const Loaded l =
        load(file.path(), setup_with([=](sharpi_plan_params*, sharpi_session_params* s) {
               s->n_ctx = 4096;
               s->prompt_budget = SHARPI_BUDGET_AUTO;
               s->k_dtype = s->v_dtype = kv;
             }));
    Chat chat(l.model.get());
    chat.prefill(file.tokens(kPrompt));
    const bool large = kv == SHARPI_KV_F32;
    EXPECT_EQ(chat.info().is_compacted, large ? 1u : 0u);
    EXPECT_EQ(chat.info().n_slots_max, large ? 1024u : kPrompt);
    // Asked for by name it keeps all rows of a small cache.
    sharpi_compact_params p = compact_params(SHARPI_POLICY_AUTO, SHARPI_BUDGET_AUTO);
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_compact(chat.get(), &p, nullptr, &e), SHARPI_OK) << text_of(e);
    EXPECT_EQ(chat.info().n_slots_max, large ? 1024u : kPrompt);
  }
}

}  // namespace
}  // namespace sharpi::testing
