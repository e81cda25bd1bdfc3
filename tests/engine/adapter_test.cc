// SPDX-License-Identifier: MIT
// Adapters (LoRA) of sessions: a session with one computes what the model with the adapter merged
// into its weights computes; neither chunks nor batch mates change its bits; what it takes is the
// plan's; and what it was read with stays known.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/adapter_case.h"
#include "support/paths.h"
#include "support/watched_new.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kPrompt = 24;

::testing::Environment* const kAdapterEnvironment =
    ::testing::AddGlobalTestEnvironment(new AdapterEnvironment);

std::string recipe_name(const ::testing::TestParamInfo<size_t>& info) {
  std::string name = test::tiny_recipes()[info.param].arch;
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_" + std::to_string(info.param);
}

/// A small model of f32 weights.
class AdapterOf : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    test::ModelFile file(recipe());
    ASSERT_TRUE(file.write(base_.path()));
    spec_ = mapped_spec(base_.path());
    if (const std::string why = why_not_on_gpu(base_.path()); !why.empty()) GTEST_SKIP() << why;
  }
  static test::ModelRecipe recipe() { return for_tier(test::tiny_recipes()[GetParam()]); }
  /// How far logits may be from those of merged weights: another order of sums.
  static double near(double size) { return on_gpu() ? 2e-3 : 2e-4 * std::max(1.0, size); }
  std::vector<int32_t> tokens(size_t n) const {
    std::vector<int32_t> out(n);
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>((i * 37 + 11) % recipe().n_vocab);
    return out;
  }
  test::TempFile base_;
  std::shared_ptr<const ModelSpec> spec_;
};

double worst_of(const std::vector<Logits>& a, const std::vector<Logits>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, distance(a[i], b[i]));
  return worst;
}

TEST_P(AdapterOf, ComputesWhatMergedWeightsCompute) {
  const MadeAdapter made(*spec_, 4, 100);
  const Loaded base = load(base_.path(), setup_with(with_rank(4)));
  ASSERT_TRUE(base.model);
  const AdapterPtr adapter = load_adapter(base.model.get(), made.path());
  ASSERT_TRUE(adapter);
  const auto prompt = tokens(kPrompt);
  Chat plain(base.model.get());
  const auto without = plain.all_logits(prompt, 32);
  for (const float scale : {1.0f, -0.25f}) {
    test::ModelFile merged_file(recipe());
    merge(&merged_file, *spec_, made.path(), double{scale});
    const test::TempFile merged_path;
    ASSERT_TRUE(merged_file.write(merged_path.path()));
    const Loaded merged = load(merged_path.path(), setup_with(with_rank(0)));
    ASSERT_TRUE(merged.model);
    Chat want(merged.model.get()), got(base.model.get());
    choose(got, {{adapter.get(), scale, 0}});
    const auto expected = want.all_logits(prompt, 32), given = got.all_logits(prompt, 32);
    const double size = rms_of(expected), change = worst_of(expected, without);
    EXPECT_LE(worst_of(given, expected), near(size)) << "scale " << scale;
    EXPECT_GE(change, 0.05 * size) << "the adapter would not be noticed, scale " << scale;
  }
}

TEST_P(AdapterOf, BitsDependOnNeitherChunksNorBatchMates) {
  const MadeAdapter one(*spec_, 4, 100), two(*spec_, 8, 300);
  for (const sharpi_arithmetic arithmetic : {SHARPI_ARITHMETIC_EXACT, SHARPI_ARITHMETIC_FAST}) {
    const Loaded base = load(base_.path(), setup_with(with_rank(8, arithmetic)));
    ASSERT_TRUE(base.model);
    const AdapterPtr a = load_adapter(base.model.get(), one.path()),
                     b = load_adapter(base.model.get(), two.path());
    ASSERT_TRUE(a && b);
    const std::vector<std::vector<sharpi_adapter_use>> choices = {
        {{a.get(), 1.0f, 0}}, {}, {{b.get(), 0.5f, 0}}, {{b.get(), 0.5f, 0}, {a.get(), -1.0f, 0}}};
    const auto prompt = tokens(kPrompt);
    std::vector<std::vector<Logits>> alone;
    for (const auto& uses : choices) {
      Chat whole(base.model.get()), steps(base.model.get());
      choose(whole, uses);
      choose(steps, uses);
      const auto want = whole.all_logits(prompt, 32);
      expect_same_rows(steps.all_logits(prompt, 1), want, "token by token");
      alone.push_back(want);
    }
    EXPECT_FALSE(same_bits(alone[0].back(), alone[1].back()));
    EXPECT_FALSE(same_bits(alone[2].back(), alone[3].back()));
    std::vector<Chat> chats;
    std::vector<sharpi_session*> handles;
    for (const auto& uses : choices) {
      chats.emplace_back(base.model.get());
      choose(chats.back(), uses);
      chats.back().prefill(prompt.data(), 8);
      handles.push_back(chats.back().get());
    }
    for (uint32_t i = 8; i < kPrompt; ++i) {
      const std::vector<int32_t> next(choices.size(), prompt[i]);
      sharpi_error e = SHARPI_ERROR_INIT;
      ASSERT_EQ(sharpi_decode_batch(handles.data(), next.data(), 4, &e), SHARPI_OK) << text_of(e);
      for (size_t s = 0; s < choices.size(); ++s)
        ASSERT_TRUE(same_bits(chats[s].logits(), alone[s][i])) << "session " << s << " token " << i;
    }
  }
}

/// On a GPU, token by token and in chunks: what the CPU says.
TEST_P(AdapterOf, IsOnAGpuWhatItIsOnTheCpu) {
  if (!on_gpu()) GTEST_SKIP() << "models of this program are on the CPU";
  const MadeAdapter one(*spec_, 4, 100), two(*spec_, 7, 300);
  const auto say = [&](int32_t n_layers, bool deterministic) {
    const Loaded l = load(base_.path(), setup_with([&](auto* p, auto* s) {
                            with_rank(8, SHARPI_ARITHMETIC_EXACT, deterministic)(p, s);
                            p->n_gpu_layers = n_layers;
                            if (n_layers == 0) p->device = 0;
                          }));
    std::vector<Logits> out;
    if (!l.model) return out;
    const AdapterPtr a = load_adapter(l.model.get(), one.path()),
                     b = load_adapter(l.model.get(), two.path());
    for (const auto& uses : std::vector<std::vector<sharpi_adapter_use>>{
             {{a.get(), 1.0f, 0}}, {}, {{b.get(), 0.5f, 0}, {a.get(), -1.0f, 0}}}) {
      Chat chat(l.model.get());
      choose(chat, uses);
      for (const Logits& row : chat.all_logits(tokens(kPrompt), 32)) out.push_back(row);
      for (int32_t t = 3; t < 6; ++t) {
        chat.decode(t);
        out.push_back(chat.logits());
      }
    }
    return out;
  };
  const auto want = say(0, true);
  ASSERT_FALSE(want.empty());
  for (const bool deterministic : {true, false}) {
    const auto got = say(-1, deterministic);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_LE(worst_of(got, want), 2e-3) << deterministic;
  }
}

std::vector<size_t> all_recipes() {
  std::vector<size_t> out(test::tiny_recipes().size());
  std::iota(out.begin(), out.end(), size_t{0});
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, AdapterOf, ::testing::ValuesIn(all_recipes()), recipe_name);

/// Against HF transformers, whose layers compute the same by matrices of their own
/// (tools/models/make_adapter.py); Q and K are permuted in files of this architecture.
TEST(AdapterGolden, LogitsAndGreedyTokensAgree) {
  const std::string folder = test::source_path("tests/fixtures/");
  auto read = load_golden(folder + "rand-llama3-lora.golden.json");
  ASSERT_TRUE(read.is_ok()) << read.status().text();
  const Golden golden = read.take();
  const Loaded l = load(folder + golden.model, setup_with(with_rank(3)));
  ASSERT_TRUE(l.model);
  const AdapterPtr adapter = load_adapter(l.model.get(), folder + "rand-llama3-lora.gguf");
  ASSERT_TRUE(adapter);
  const GoldenCase& g = golden.cases.at(0);
  Chat chat(l.model.get());
  choose(chat, {{adapter.get(), 0.5f, 0}});
  const auto logits = chat.all_logits(g.tokens, 32);
  ASSERT_EQ(logits.size(), g.top5.size());
  for (size_t p = 0; p < logits.size(); ++p) {
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(logits[p][static_cast<size_t>(g.top5[p][i])], g.top5_logits[p][i], 2e-3)
          << "position " << p;
    }
  }
  EXPECT_EQ(chat.greedy(static_cast<uint32_t>(g.greedy.size())), g.greedy);
  Chat plain(l.model.get());
  plain.prefill(g.tokens);
  EXPECT_NE(plain.greedy(static_cast<uint32_t>(g.greedy.size())), g.greedy);
}

/// One model with room for adapters of rank 8.
class Adapters : public ::testing::Test {
 protected:
  void SetUp() override {
    spec_ = mapped_spec(made_.path());
    one_.emplace(*spec_, 4, 100);
    two_.emplace(*spec_, 8, 300, 0.5, GgmlType::kF16);
    loaded_ = load(made_.path(), setup_with(with_rank(8)));
    ASSERT_TRUE(loaded_.model);
  }
  sharpi_status try_load(const std::string& path, sharpi_error* e) const {
    sharpi_adapter* out = nullptr;
    const sharpi_status s = sharpi_adapter_load(loaded_.model.get(), path.c_str(), &out, e);
    EXPECT_EQ(out == nullptr, s != SHARPI_OK);
    sharpi_adapter_destroy(out);
    return s;
  }
  MadeModel made_{test::tiny_qwen35()};
  std::shared_ptr<const ModelSpec> spec_;
  std::optional<MadeAdapter> one_, two_;
  Loaded loaded_;
};

TEST_F(Adapters, SessionsWithoutOneHaveTheModelsBits) {
  const Loaded plain = load(made_.path(), setup_with(with_rank(0)));
  const AdapterPtr a = load_adapter(loaded_.model.get(), one_->path());
  Chat want(plain.model.get()), none(loaded_.model.get()), zero(loaded_.model.get());
  choose(zero, {{a.get(), 0.0f, 0}});
  EXPECT_EQ(zero.info().n_adapters, 0u);
  EXPECT_EQ(zero.info().adapters_id, 0u);
  const auto expected = want.all_logits(made_.tokens(kPrompt), 32);
  expect_same_rows(none.all_logits(made_.tokens(kPrompt), 32), expected, "no adapter");
  expect_same_rows(zero.all_logits(made_.tokens(kPrompt), 32), expected, "scale 0");
}

TEST_F(Adapters, TakeWhatThePlanSays) {
  const std::string first = one_->path(), second = two_->path();
  const char* paths[] = {first.c_str(), second.c_str()};
  const auto name_both = [&](sharpi_plan_params* p, sharpi_session_params* s) {
    with_rank(SHARPI_UNSET)(p, s);
    p->adapters = paths;
    p->n_adapters = 2;
  };
  const Loaded named = load(made_.path(), setup_with(name_both));
  ASSERT_TRUE(named.model);
  EXPECT_EQ(named.plan_info.adapter_rank, 8u) << "the largest of them";
  MemoryRows planned, scratch;
  for (const sharpi_memory_row& r : rows_of_handle(sharpi_plan_rows, named.plan.get())) {
    if (r.purpose == SHARPI_ROW_ADAPTERS) planned.push_back(r);
    if (std::string(r.label) == "products of adapters") scratch.push_back(r);
  }
  ASSERT_EQ(planned.size(), 2u);
  ASSERT_EQ(scratch.size(), 1u);
  EXPECT_EQ(scratch[0].held_bytes, 32u * 4 * 8 * sizeof(float)) << "rows, products, rank";
  bool held = false;
  for (const sharpi_memory_row& r : rows_of_handle(sharpi_model_memory, named.model.get())) {
    held =
        held || (r.label == std::string(scratch[0].label) && r.held_bytes == scratch[0].held_bytes);
    EXPECT_NE(r.purpose, SHARPI_ROW_ADAPTERS);
  }
  EXPECT_TRUE(held);
  for (size_t i = 0; i < 2; ++i) {
    const AdapterPtr a = load_adapter(named.model.get(), paths[i]);
    const MemoryRows rows = rows_of_handle(sharpi_adapter_memory, a.get());
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].held_bytes, planned[i].held_bytes);
    EXPECT_EQ(rows[0].payload_bytes, planned[i].payload_bytes);
    EXPECT_STREQ(rows[0].label, planned[i].label);
    sharpi_adapter_summary info{};
    info.struct_size = sizeof info;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_adapter_info(a.get(), &info, &e), SHARPI_OK) << text_of(e);
    EXPECT_EQ(info.n_weights, adaptable(*spec_).size());
    EXPECT_EQ(info.max_rank, i == 0 ? 4u : 8u);
    EXPECT_EQ(info.held_bytes, rows[0].held_bytes);
    EXPECT_EQ(info.n_parameters * sizeof(float), rows[0].payload_bytes);
    EXPECT_NE(info.content_id, 0u);
  }
}

TEST_F(Adapters, BudgetsHoldForThem) {
  const std::string path = two_->path();
  const char* paths[] = {path.c_str()};
  sharpi_plan_summary whole{};
  const auto with_budget = [&](uint64_t budget) {
    return [&, budget](sharpi_plan_params* p, sharpi_session_params* s) {
      with_rank(SHARPI_UNSET)(p, s);
      p->adapters = paths;
      p->n_adapters = 1;
      if (budget != 0) (on_gpu() ? p->device_budget : p->host_budget) = budget;
    };
  };
  whole = load(made_.path(), setup_with(with_budget(0))).plan_info;
  const uint64_t bytes = on_gpu() ? whole.device_held_bytes : whole.host_held_bytes;
  const Loaded tight = load(made_.path(), setup_with(with_budget(bytes)));
  ASSERT_TRUE(tight.model) << "all that the plan says fits its own sum";
  const Chat chat(tight.model.get());
  sharpi_error e = SHARPI_ERROR_INIT;
  {
    const AdapterPtr a = load_adapter(tight.model.get(), path);
    sharpi_adapter* more = nullptr;
    EXPECT_EQ(sharpi_adapter_load(tight.model.get(), path.c_str(), &more, &e),
              SHARPI_E_DOES_NOT_FIT);
    EXPECT_NE(std::string(e.text).find("are missing"), std::string::npos) << e.text;
  }
  EXPECT_TRUE(load_adapter(tight.model.get(), path)) << "what went is there again";
  PlanPtr plan;
  const sharpi_status less =
      try_plan(tight.context.get(), made_.path(), setup_with(with_budget(bytes - 1)), &plan, &e);
  if (!on_gpu()) {
    EXPECT_EQ(less, SHARPI_E_DOES_NOT_FIT) << "one byte less";
    return;
  }
  ASSERT_EQ(less, SHARPI_OK) << "something gives way: " << text_of(e);
  sharpi_plan_summary info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(sharpi_plan_info(plan.get(), &info, &e), SHARPI_OK) << text_of(e);
  EXPECT_LT(info.device_held_bytes, bytes);
}

TEST_F(Adapters, DecodeAllocatesNothing) {
  const AdapterPtr a = load_adapter(loaded_.model.get(), one_->path()),
                   b = load_adapter(loaded_.model.get(), two_->path());
  Chat chat(loaded_.model.get());
  choose(chat, {{a.get(), 1.0f, 0}, {b.get(), 0.5f, 0}});
  chat.prefill(made_.tokens(8));
  chat.decode(1);
  const uint64_t before = allocations();
  for (int32_t t = 2; t < 6; ++t) chat.decode(t);
  EXPECT_EQ(allocations(), before);
}

TEST_F(Adapters, SessionsKeepThemAlive) {
  Chat chat(loaded_.model.get()), want(loaded_.model.get());
  AdapterPtr a = load_adapter(loaded_.model.get(), one_->path());
  choose(want, {{a.get(), 1.0f, 0}});
  choose(chat, {{a.get(), 1.0f, 0}});
  const auto expected = want.all_logits(made_.tokens(kPrompt), 32);
  choose(want, {});
  a.reset();
  loaded_.model.reset();
  loaded_.plan.reset();
  loaded_.context.reset();
  expect_same_rows(chat.all_logits(made_.tokens(kPrompt), 32), expected, "after destroy");
}

TEST_F(Adapters, WhatWasReadWithOthersStaysKnown) {
  const AdapterPtr a = load_adapter(loaded_.model.get(), one_->path()),
                   b = load_adapter(loaded_.model.get(), two_->path());
  Chat chat(loaded_.model.get());
  choose(chat, {{a.get(), 1.0f, 0}});
  EXPECT_EQ(chat.info().n_other_tokens, 0u) << "nothing was read";
  chat.prefill(made_.tokens(8));
  choose(chat, {{a.get(), 1.0f, 0}});
  EXPECT_EQ(chat.info().n_other_tokens, 0u) << "the same ones";
  choose(chat, {{a.get(), 0.5f, 0}});
  EXPECT_EQ(chat.info().n_other_tokens, 8u) << "another scale";
  const uint64_t half = chat.info().adapters_id;
  choose(chat, {{b.get(), 0.5f, 0}});
  EXPECT_NE(chat.info().adapters_id, half);
  chat.prefill(made_.tokens(4));
  const Chat fork = chat.fork();
  EXPECT_EQ(fork.info().n_other_tokens, 8u);
  EXPECT_EQ(fork.info().adapters_id, chat.info().adapters_id);
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_truncate(chat.get(), 0, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(chat.info().n_other_tokens, 0u);
  EXPECT_EQ(chat.info().n_adapters, 1u);
}

TEST_F(Adapters, SavedSessionsAskForTheirOwn) {
  const AdapterPtr a = load_adapter(loaded_.model.get(), one_->path()),
                   b = load_adapter(loaded_.model.get(), two_->path()),
                   again = load_adapter(loaded_.model.get(), one_->path());
  const auto prompt = made_.tokens(12);
  Chat chat(loaded_.model.get());
  chat.prefill(prompt.data(), 4);
  choose(chat, {{a.get(), 1.0f, 0}});
  chat.prefill(prompt.data() + 4, 8);
  const std::vector<char> blob = saved(chat);
  sharpi_error e = SHARPI_ERROR_INIT;
  const std::vector<std::vector<sharpi_adapter_use>> others = {
      {}, {{b.get(), 1.0f, 0}}, {{a.get(), 0.5f, 0}}, {{a.get(), 1.0f, 0}, {b.get(), 1.0f, 0}}};
  for (const auto& uses : others) {
    Chat other(loaded_.model.get());
    choose(other, uses);
    EXPECT_EQ(sharpi_session_restore(other.get(), blob.data(), blob.size(), &e), SHARPI_E_MISMATCH);
    EXPECT_NE(std::string(e.text).find("adapters"), std::string::npos) << e.text;
    EXPECT_EQ(other.info().n_tokens, 0u);
  }
  Chat same(loaded_.model.get());
  choose(same, {{again.get(), 1.0f, 0}});
  ASSERT_EQ(sharpi_session_restore(same.get(), blob.data(), blob.size(), &e), SHARPI_OK)
      << text_of(e);
  EXPECT_EQ(same.info().n_other_tokens, 4u);
  EXPECT_TRUE(same_bits(same.logits(), chat.logits()));
  same.decode(3);
  chat.decode(3);
  EXPECT_TRUE(same_bits(same.logits(), chat.logits()));
  EXPECT_EQ(saved(same), saved(chat));
  Chat plain(loaded_.model.get());
  plain.prefill(prompt);
  const std::vector<char> none = saved(plain);
  EXPECT_EQ(sharpi_session_restore(same.get(), none.data(), none.size(), &e), SHARPI_E_MISMATCH);
}

TEST_F(Adapters, RefusesWhatDoesNotGo) {
  const AdapterPtr a = load_adapter(loaded_.model.get(), one_->path());
  Chat chat(loaded_.model.get());
  sharpi_error e = SHARPI_ERROR_INIT;
  const auto set = [&](std::vector<sharpi_adapter_use> uses) {
    return sharpi_session_set_adapters(chat.get(), uses.data(), sizeof(sharpi_adapter_use),
                                       static_cast<uint32_t>(uses.size()), &e);
  };
  EXPECT_EQ(set({{nullptr, 1.0f, 0}}), SHARPI_E_INVALID_ARGUMENT);
  EXPECT_EQ(set({{a.get(), NAN, 0}}), SHARPI_E_INVALID_ARGUMENT);
  EXPECT_EQ(set({{a.get(), INFINITY, 0}}), SHARPI_E_INVALID_ARGUMENT);
  EXPECT_EQ(set({{a.get(), 1.0f, 0}, {a.get(), 1.0f, 0}}), SHARPI_E_INVALID_ARGUMENT);
  EXPECT_EQ(set({{a.get(), 1.0f, 7}}), SHARPI_E_INVALID_ARGUMENT);
  EXPECT_EQ(set(std::vector<sharpi_adapter_use>(17, {a.get(), 1.0f, 0})),
            SHARPI_E_INVALID_ARGUMENT);
  EXPECT_EQ(chat.info().n_adapters, 0u) << "nothing changed";
  const Loaded other = load(made_.path(), setup_with(with_rank(8)));
  const AdapterPtr foreign = load_adapter(other.model.get(), one_->path());
  EXPECT_EQ(set({{foreign.get(), 1.0f, 0}}), SHARPI_E_INVALID_ARGUMENT);
  EXPECT_NE(std::string(e.text).find("another model"), std::string::npos) << e.text;

  EXPECT_EQ(try_load("/no/such/file.gguf", &e), SHARPI_E_NOT_FOUND);
  EXPECT_EQ(try_load(made_.path(), &e), SHARPI_E_FORMAT) << "a model is no adapter";
  const MadeAdapter wide(*spec_, 16, 1);
  EXPECT_EQ(try_load(wide.path(), &e), SHARPI_E_DOES_NOT_FIT);
  EXPECT_NE(std::string(e.text).find("rank 16"), std::string::npos) << e.text;
  const Loaded none = load(made_.path(), setup_with(with_rank(0)));
  sharpi_adapter* out = nullptr;
  EXPECT_EQ(sharpi_adapter_load(none.model.get(), one_->path().c_str(), &out, &e),
            SHARPI_E_UNSUPPORTED);
  EXPECT_NE(std::string(e.text).find("planned without adapters"), std::string::npos) << e.text;
}

TEST_F(Adapters, PlansRefuseWhatDoesNotGo) {
  const std::string path = two_->path();
  const char* paths[] = {path.c_str(), nullptr};
  sharpi_error e = SHARPI_ERROR_INIT;
  PlanPtr plan;
  const auto with = [&](uint32_t n, uint32_t rank) {
    return setup_with([&, n, rank](sharpi_plan_params* p, sharpi_session_params* s) {
      with_rank(rank)(p, s);
      p->adapters = paths;
      p->n_adapters = n;
    });
  };
  EXPECT_EQ(try_plan(loaded_.context.get(), made_.path(), with(1, 4), &plan, &e),
            SHARPI_E_INVALID_ARGUMENT);
  EXPECT_NE(std::string(e.text).find("has rank 8"), std::string::npos) << e.text;
  EXPECT_EQ(try_plan(loaded_.context.get(), made_.path(), with(2, 8), &plan, &e),
            SHARPI_E_INVALID_ARGUMENT);
  EXPECT_EQ(try_plan(loaded_.context.get(), made_.path(), with(0, 5000), &plan, &e),
            SHARPI_E_INVALID_ARGUMENT);
  const MadeModel another(test::tiny_llama());
  EXPECT_EQ(try_plan(loaded_.context.get(), another.path(), with(1, 8), &plan, &e),
            SHARPI_E_MISMATCH);
}

}  // namespace
}  // namespace sharpi::testing
