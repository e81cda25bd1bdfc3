// SPDX-License-Identifier: MIT
// Weights in place or copied: equal results, plans that say which memory it is, and what a file
// that somebody changes meanwhile may do.
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "engine_case.h"
#include "support/made_models.h"
#include "support/system.h"

namespace sharpi::testing {
namespace {

Edit with_mode(sharpi_load_mode mode) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->load_mode = mode;
    s->n_ctx = 128;
  };
}

class LoadMode : public ::testing::Test {
 protected:
  void use(const test::ModelRecipe& recipe) { file_.emplace(recipe); }
  Loaded load_as(sharpi_load_mode mode) { return load(file_->path(), setup_with(with_mode(mode))); }
  std::optional<MadeModel> file_;
};

TEST_F(LoadMode, CopiesGiveTheSameBitsAndAreInThePlanByteForByte) {
  for (const test::ModelRecipe& recipe : test::tiny_recipes()) {
    use(recipe);
    const Loaded map = load_as(SHARPI_LOAD_MAP), copy = load_as(SHARPI_LOAD_COPY);
    EXPECT_EQ(map.plan_info.load_mode, SHARPI_LOAD_MAP);
    EXPECT_EQ(copy.plan_info.load_mode, SHARPI_LOAD_COPY);
    Chat a(map.model.get()), b(copy.model.get());
    for (Chat* c : {&a, &b}) {
      c->prefill(file_->tokens(40));
      c->decode(3);
    }
    EXPECT_TRUE(same_bits(a.logits(), b.logits())) << recipe.arch;
    EXPECT_TRUE(saved(a) == saved(b)) << recipe.arch;
    if (!on_gpu()) {
      EXPECT_GT(map.plan_info.mapped_bytes, 0u);
    }
    EXPECT_EQ(copy.plan_info.mapped_bytes, 0u) << recipe.arch;
    EXPECT_GE(copy.plan_info.host_held_bytes,
              map.plan_info.host_held_bytes + (on_gpu() ? 0 : map.plan_info.mapped_bytes));
    MemoryRows planned = rows_of_handle(sharpi_plan_rows, copy.plan.get()),
               held = rows_of_handle(sharpi_model_memory, copy.model.get());
    std::erase_if(planned, [](const auto& r) { return r.per_session != 0 || r.transient != 0; });
    ASSERT_EQ(planned.size(), held.size()) << recipe.arch;
    for (size_t i = 0; i < held.size(); ++i) {
      EXPECT_EQ(std::memcmp(&planned[i], &held[i], sizeof held[i]), 0)
          << recipe.arch << ": " << planned[i].label << " " << planned[i].held_bytes << ", "
          << held[i].label << " " << held[i].held_bytes;
      EXPECT_NE(held[i].kind, SHARPI_ROW_MAPPED);
    }
  }
}

/// An older file of latent attention: columns of one matrix are rows of another, in f32.
TEST_F(LoadMode, RowsThatWereColumnsAreTheSameWhetherMappedOrCopied) {
  const std::string path = test::made_model_path("rand-deepseek2");
  if (on_gpu()) GTEST_SKIP() << "only the CPU computes it";
  const Loaded map = load(path, setup_with(with_mode(SHARPI_LOAD_MAP))),
               copy = load(path, setup_with(with_mode(SHARPI_LOAD_COPY)));
  ASSERT_TRUE(map.model && copy.model);
  const std::vector<int32_t> text = {5, 17, 80, 3, 250, 33, 9, 120};
  Chat a(map.model.get()), b(copy.model.get());
  for (Chat* c : {&a, &b}) c->prefill(text);
  EXPECT_TRUE(same_bits(a.logits(), b.logits()));
  uint64_t gathered = 0;
  for (const sharpi_memory_row& r : rows_of_handle(sharpi_model_memory, map.model.get())) {
    if (std::string_view(r.label) == "gathered weights") gathered += r.held_bytes;
  }
  // Of each of three layers: k_b in f32, and v_b in q8_0.
  EXPECT_EQ(gathered, 3u * 4 * (64 * 128 * 4 + 128 * 32 / 32 * 34));
}

TEST_F(LoadMode, AfterACopyNothingTouchesTheFile) {
  for (const test::ModelRecipe& recipe : {test::tiny_qwen3(), test::tiny_gemma4kv()}) {
    use(recipe);
    const Loaded map = load_as(SHARPI_LOAD_MAP);
    Chat whole(map.model.get());
    whole.prefill(file_->tokens(40));
    const Logits want = whole.logits();
    const Loaded copy = load_as(SHARPI_LOAD_COPY);
    ASSERT_EQ(truncate(file_->path().c_str(), 0), 0);
    Chat chat(copy.model.get());
    chat.prefill(file_->tokens(40));
    EXPECT_TRUE(same_bits(chat.logits(), want));
    char text[64];
    size_t n = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(
        sharpi_model_meta(copy.model.get(), "general.architecture", text, sizeof text, &n, &e),
        SHARPI_OK)
        << text_of(e);
    EXPECT_EQ(std::string(text, n), recipe.arch);
  }
}

/// Rotations are asked for by bounded sessions and by drafters, and their divisors are a tensor.
TEST_F(LoadMode, AfterACopyNewSessionsOfAnyKindDoNotTouchTheFile) {
  for (const bool drafts : {false, true}) {
    for (const test::ModelRecipe& recipe : {test::tiny_llama(), test::tiny_gemma4kv()}) {
      use(recipe);
      const MadeModel drafter(recipe);
      const Loaded copy =
          load(file_->path(), setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
                 with_mode(SHARPI_LOAD_COPY)(p, s);
                 p->n_chunk = 32;
                 if (drafts) {
                   p->draft_path = drafter.path().c_str();
                   s->n_draft = 4, s->drafters = SHARPI_DRAFT_MODEL;
                 } else {
                   s->kv_budget = 64, s->recency = 16, s->capture_window = 16;
                 }
               }));
      for (const std::string& path : {file_->path(), drafter.path()})
        ASSERT_EQ(truncate(path.c_str(), 0), 0);
      Chat chat(copy.model.get());
      chat.prefill(file_->tokens(100));
      chat.decode(3);
      EXPECT_EQ(chat.info().n_tokens, 101u);
    }
  }
}

/// What a drafter's load reports comes behind the model's own, and may be cancelled too.
TEST_F(LoadMode, DraftModelsReportTheirProgress) {
  use(test::tiny_qwen3());
  const MadeModel drafter(test::tiny_qwen3());
  const ModelSetup setup = setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
    with_mode(SHARPI_LOAD_COPY)(p, s);
    p->draft_path = drafter.path().c_str();
    s->n_draft = 4, s->drafters = SHARPI_DRAFT_MODEL;
  });
  const ContextPtr context = make_context(setup);
  PlanPtr plan;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(try_plan(context.get(), file_->path(), setup, &plan, &e), SHARPI_OK) << text_of(e);
  struct Seen {
    int ends = 0, cancel_behind = 99;
  };
  const auto progress = [](void* user, uint32_t, uint64_t done, uint64_t total) -> int32_t {
    auto* seen = static_cast<Seen*>(user);
    if (seen->ends >= seen->cancel_behind) return 1;
    seen->ends += done == total ? 1 : 0;
    return 0;
  };
  sharpi_model* model = nullptr;
  Seen whole;
  ASSERT_EQ(sharpi_model_load(plan.get(), progress, &whole, &model, &e), SHARPI_OK) << text_of(e);
  sharpi_model_destroy(model);
  EXPECT_GE(whole.ends, 2);
  Seen stopped;
  stopped.cancel_behind = whole.ends - 1;  // in the last thing that is loaded
  model = nullptr;
  EXPECT_EQ(sharpi_model_load(plan.get(), progress, &stopped, &model, &e), SHARPI_E_CANCELLED);
  EXPECT_EQ(model, nullptr);
}

TEST_F(LoadMode, AHostBudgetCountsCopies) {
  use(test::tiny_qwen3());
  const auto plan_with = [&](sharpi_load_mode mode, uint64_t budget, sharpi_error* e) {
    const ModelSetup setup = setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
      with_mode(mode)(p, s);
      p->host_budget = budget;
    });
    const ContextPtr context = make_context(setup);
    PlanPtr plan;
    return try_plan(context.get(), file_->path(), setup, &plan, e);
  };
  if (on_gpu()) GTEST_SKIP() << "no weights of this model are in host memory";
  const uint64_t enough = load_as(SHARPI_LOAD_MAP).plan_info.host_peak_bytes;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(plan_with(SHARPI_LOAD_MAP, enough, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(plan_with(SHARPI_LOAD_COPY, enough, &e), SHARPI_E_DOES_NOT_FIT);
  EXPECT_NE(std::string(e.text).find("load_mode MAP"), std::string::npos) << e.text;
  // What does not fit with MAP either is not recommended.
  EXPECT_EQ(plan_with(SHARPI_LOAD_COPY, 1, &e), SHARPI_E_DOES_NOT_FIT);
  EXPECT_EQ(std::string(e.text).find("load_mode MAP"), std::string::npos) << e.text;
}

TEST_F(LoadMode, WeightsAreCopiesUnlessAPlanAsksForTheMappedFile) {
  sharpi_plan_params p;
  sharpi_plan_params_init(&p, sizeof p);
  EXPECT_EQ(p.load_mode, SHARPI_LOAD_COPY);
  use(test::tiny_qwen3());
  const ModelSetup setup =
      setup_with([](sharpi_plan_params*, sharpi_session_params* s) { s->n_ctx = 128; });
  const Loaded l = load(file_->path(), setup);
  EXPECT_EQ(l.plan_info.load_mode, SHARPI_LOAD_COPY);
  EXPECT_EQ(l.plan_info.mapped_bytes, 0u);
  for (const sharpi_memory_row& r : rows_of_handle(sharpi_model_memory, l.model.get()))
    EXPECT_NE(r.kind, SHARPI_ROW_MAPPED) << r.label;
}

TEST_F(LoadMode, AFileThatChangesWhileItIsLoadedIsAMismatch) {
  for (const sharpi_load_mode mode : {SHARPI_LOAD_MAP, SHARPI_LOAD_COPY}) {
    use(test::tiny_qwen3());
    const ModelSetup setup = setup_with(with_mode(mode));
    const ContextPtr context = make_context(setup);
    PlanPtr plan;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(try_plan(context.get(), file_->path(), setup, &plan, &e), SHARPI_OK) << text_of(e);
    const auto touch = [](void* user, uint32_t, uint64_t, uint64_t) -> int32_t {
      EXPECT_TRUE(test::set_modified(static_cast<const char*>(user), 1000));
      return 0;
    };
    std::string path = file_->path();
    sharpi_model* model = nullptr;
    EXPECT_EQ(sharpi_model_load(plan.get(), touch, path.data(), &model, &e), SHARPI_E_MISMATCH);
    EXPECT_NE(std::string(e.text).find("was changed while"), std::string::npos) << e.text;
    EXPECT_EQ(model, nullptr);
  }
}

TEST_F(LoadMode, WeightsThatAreNoNumbersAreTheFilesFault) {
  const test::ModelRecipe recipe = test::tiny_qwen3();
  for (const bool later : {false, true}) {
    if (later && on_gpu()) continue;  // its weights are copies already
    use(recipe);
    if (!later) spoil(file_->path(), recipe.n_embd);
    const Loaded l = load_as(SHARPI_LOAD_MAP);
    if (later) spoil(file_->path(), recipe.n_embd);
    Chat chat(l.model.get());
    chat.prefill(file_->tokens(5));
    int32_t token = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_sample(chat.get(), nullptr, &token, &e),
              later ? SHARPI_E_MISMATCH : SHARPI_E_FORMAT)
        << text_of(e);
    EXPECT_NE(std::string(e.text).find(later ? "was changed while" : "weights are damaged"),
              std::string::npos)
        << e.text;
  }
}

}  // namespace
}  // namespace sharpi::testing
