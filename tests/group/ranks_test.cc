// SPDX-License-Identifier: MIT
// Models over several processes: the bits of one process, whatever the split; what ranks agree
// about, what is refused, and what is held.
#include <algorithm>

#include "group/rank_case.h"

namespace sharpi::testing {
namespace {

std::vector<int32_t> tokens_for(uint32_t n, uint32_t n_vocab, uint32_t seed = 7) {
  std::vector<int32_t> out;
  for (uint32_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    out.push_back(static_cast<int32_t>((seed >> 8) % n_vocab));
  }
  return out;
}

/// A life of a session: prompts of several chunks, tokens drawn and given, a way back.
void live(Rank& r, uint32_t n_vocab) {
  const SessionPtr s = r.session();
  ASSERT_NE(s, nullptr);
  ASSERT_TRUE(r.seed(s.get(), 5, 0.9f));
  ASSERT_TRUE(r.prefill(s.get(), tokens_for(150, n_vocab), 3));
  for (const uint32_t row : {0u, 1u, 2u}) r.say_logits(s.get(), row);
  for (int i = 0; i < 6; ++i) {
    r.step(s.get());
    r.say_logits(s.get());
  }
  ASSERT_TRUE(r.decode(s.get(), 11));
  r.say_logits(s.get());
  ASSERT_TRUE(r.truncate(s.get(), 0));
  ASSERT_TRUE(r.prefill(s.get(), tokens_for(33, n_vocab, 9)));
  r.say_logits(s.get());
  int32_t token = -1;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_sample(s.get(), nullptr, &token, &e), SHARPI_OK) << text_of(e);
  r.say("sampled " + std::to_string(token));
  r.say("has " + std::to_string(r.n_tokens(s.get())));
}

std::vector<std::string> without_logits(std::vector<std::string> lines) {
  const auto is_logits = [](const std::string& l) { return l.compare(0, 6, "logits") == 0; };
  lines.erase(std::remove_if(lines.begin(), lines.end(), is_logits), lines.end());
  return lines;
}

test::ModelRecipe deeper(test::ModelRecipe recipe, uint32_t n_layers) {
  recipe.n_layers = n_layers;
  recipe.n_mtp = 0;
  return recipe;
}

std::vector<test::ModelRecipe> recipes() {
  std::vector<test::ModelRecipe> out{
      deeper(test::tiny_qwen3(), 4),   deeper(test::tiny_qwen35(), 8),
      deeper(test::tiny_gemma3(), 4),  deeper(test::tiny_gemma4kv(), 8),
      deeper(test::tiny_gpt_oss(), 4), deeper(test::tiny_olmoe(), 3),
      deeper(test::tiny_phi3(), 4),    deeper(test::tiny_deepseek2(), 3)};
  test::ModelRecipe tied = deeper(test::tiny_llama(), 4);
  tied.tied = true;
  out.push_back(tied);
  return out;
}

class Ranks : public ::testing::TestWithParam<test::ModelRecipe> {};

TEST_P(Ranks, GiveTheBitsOfOneProcess) {
  const MadeModel file(GetParam());
  const uint32_t n_layers = GetParam().n_layers, n_vocab = GetParam().n_vocab;
  GroupSetup setup;
  const auto body = [&](Rank& r) {
    ASSERT_TRUE(r.open(file.path(), setup));
    live(r, n_vocab);
  };
  const std::vector<std::string> want = run_ranks(1, body)[0].lines;
  ASSERT_GT(want.size(), 15u);
  std::vector<std::vector<uint32_t>> splits{{}, {1, n_layers - 1}, {n_layers - 1, 1}};
  if (n_layers > 3) splits.push_back({2, n_layers - 2});
  splits.push_back({1, 1, n_layers - 2});
  for (const std::vector<uint32_t>& split : splits) {
    setup.layers = split;
    const uint32_t n = split.empty() ? 2 : static_cast<uint32_t>(split.size());
    const std::vector<RankEnd> ranks = run_ranks(n, body);
    EXPECT_EQ(ranks.back().lines, want) << n << " ranks";
    for (const RankEnd& r : ranks) EXPECT_EQ(without_logits(r.lines), without_logits(want));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Ranks, ::testing::ValuesIn(recipes()), recipe_name);

const test::ModelRecipe kSmall = deeper(test::tiny_qwen3(), 4);

TEST(RanksOfAPlan, HoldWhatWasPlanned) {
  const MadeModel file(kSmall);
  run_ranks(3, [&](Rank& r) {
    ASSERT_TRUE(r.open(file.path(), {}));
    const SessionPtr s = r.session();
    const auto plan = rows_of_handle(sharpi_plan_rows, r.loaded().plan.get());
    MemoryRows held = rows_of_handle(sharpi_model_memory, r.model());
    for (const sharpi_memory_row& row : rows_of_handle(sharpi_session_memory, s.get()))
      held.push_back(row);
    uint64_t planned = 0, taken = 0, between = 0;
    for (const sharpi_memory_row& row : plan) planned += row.transient != 0 ? 0 : row.held_bytes;
    for (const sharpi_memory_row& row : held) {
      taken += row.held_bytes;
      if (std::string(row.label) == "hidden rows between ranks") between += row.held_bytes;
    }
    EXPECT_EQ(planned, taken);
    EXPECT_EQ(between, 64u + 32 * kSmall.n_embd * 4 + 3 * 320);
    const auto logits = [](const sharpi_memory_row& row) {
      return row.purpose == SHARPI_ROW_LOGITS;
    };
    EXPECT_EQ(std::count_if(plan.begin(), plan.end(), logits), r.is_last() ? 1 : 0);
  });
}

TEST(RanksThatDisagree, HearItAndGoOn) {
  const MadeModel file(kSmall);
  const auto ranks = run_ranks(2, [&](Rank& r) {
    ASSERT_TRUE(r.open(file.path(), {}));
    const SessionPtr s = r.session();
    ASSERT_TRUE(r.prefill(s.get(), {1, 2, 3}));
    EXPECT_FALSE(r.prefill(s.get(), {4, r.rank() == 0 ? 5 : 6}));
    if (r.rank() == 0) {
      EXPECT_FALSE(r.decode(s.get(), 1));
    } else {
      EXPECT_EQ(r.step(s.get()), -1);
    }
    EXPECT_EQ(r.n_tokens(s.get()), 3u);
    EXPECT_TRUE(r.decode(s.get(), 9));
    EXPECT_EQ(r.n_tokens(s.get()), 4u);
    EXPECT_FALSE(r.truncate(s.get(), 9));
    EXPECT_FALSE(r.prefill(s.get(), {1 << 20}));
    EXPECT_TRUE(r.truncate(s.get(), 2));
    EXPECT_TRUE(r.decode(s.get(), 9));
  });
  for (const RankEnd& r : ranks) {
    ASSERT_GE(r.lines.size(), 4u);
    EXPECT_EQ(r.lines[0], "prefill 0: -7 rank 1 gives prefill other arguments than rank 0");
    EXPECT_NE(r.lines[1].find("-7 rank 1 is at step, and rank 0 at decode"), std::string::npos);
    EXPECT_NE(r.lines[2].find("-1 rank 0: length 9 is more than the 4 tokens"), std::string::npos);
    EXPECT_NE(r.lines[3].find("-1 rank 0: token 0 is 1048576"), std::string::npos);
  }
}

TEST(RanksThatDisagree, HaveNoModel) {
  const MadeModel file(kSmall);
  test::ModelRecipe seeded = kSmall;
  seeded.seed = 99;
  const MadeModel other(seeded);
  const auto load = [&](const std::string& second, const GroupSetup& of_second) {
    const auto ranks = run_ranks(2, [&](Rank& r) {
      EXPECT_FALSE(r.rank() == 0 ? r.open(file.path(), {}) : r.open(second, of_second));
    });
    EXPECT_EQ(line_of(ranks[0], "load"), line_of(ranks[1], "load"));
    return line_of(ranks[0], "load");
  };
  EXPECT_NE(load(other.path(), {}).find("-7 rank 1 has another file than rank 0"),
            std::string::npos);
  GroupSetup changed;
  changed.edit = [](sharpi_plan_params*, sharpi_session_params* s) { s->n_ctx = 256; };
  EXPECT_EQ(load(file.path(), changed), "load: -7 n_ctx is 256 on rank 1, and 512 on rank 0");
  changed.edit = [](sharpi_plan_params* p, sharpi_session_params*) { p->n_chunk = 16; };
  EXPECT_EQ(load(file.path(), changed), "load: -7 n_chunk is 16 on rank 1, and 32 on rank 0");
  changed = {};
  changed.layers = {1, 3};
  EXPECT_NE(load(file.path(), changed).find("-7 rank 1 begins with layer 1"), std::string::npos);
}

TEST(RanksThatDisagree, AreNoGroup) {
  const auto ranks = run_ranks(2, [&](Rank& r) {
    sharpi_group_params p = r.group_params({});
    if (r.rank() == 1) p.n_ranks = 3;
    EXPECT_FALSE(r.make_group(p));
  });
  for (const RankEnd& r : ranks) {
    EXPECT_EQ(line_of(r, "make"),
              "make: -7 rank 1 says that it is rank 1 of 3, and rank 0 that they are 2");
  }
}

TEST(RanksOfASession, AreRefusedByName) {
  const MadeModel file(kSmall);
  const auto ranks = run_ranks(2, [&](Rank& r) {
    ASSERT_TRUE(r.open(file.path(), {}));
    const SessionPtr s = r.session();
    ASSERT_TRUE(r.prefill(s.get(), {1, 2, 3}));
    sharpi_error e = SHARPI_ERROR_INIT;
    const auto refused = [&](const char* what, sharpi_status status) {
      EXPECT_EQ(status, SHARPI_E_UNSUPPORTED) << what;
      EXPECT_NE(std::string(e.text).find("with a group of processes"), std::string::npos) << e.text;
    };
    sharpi_session* one = s.get();
    sharpi_session* fork = nullptr;
    uint32_t n = 0;
    uint64_t bytes = 0;
    const int32_t token = 1;
    refused("fork", sharpi_session_fork(one, &fork, &e));
    refused("save", sharpi_session_save(one, nullptr, 0, &bytes, &e));
    refused("checkpoint", sharpi_session_checkpoint(one, 0, &e));
    refused("verify", sharpi_session_verify(one, &token, 1, nullptr, &n, &e));
    sharpi_compact_params c;
    sharpi_compact_params_init(&c, sizeof c);
    c.budget = 2;
    refused("compact", sharpi_session_compact(one, &c, nullptr, &e));
    sharpi_sample_params draw;
    sharpi_sample_params_init(&draw, sizeof draw);
    sharpi_logprob best;
    draw.n_logprobs = 1;
    draw.logprobs = &best;
    int32_t drawn = 0;
    refused("n_logprobs", sharpi_session_sample(one, &draw, &drawn, &e));
    std::vector<float> row(kSmall.n_vocab);
    const sharpi_status read = sharpi_session_logits(one, 0, row.data(), kSmall.n_vocab, &n, &e);
    EXPECT_EQ(read, r.is_last() ? SHARPI_OK : SHARPI_E_UNSUPPORTED);
    EXPECT_TRUE(r.decode(one, 4));
  });
  EXPECT_EQ(ranks.size(), 2u);
}

TEST(RanksOfAPlan, AreRefusedByName) {
  const MadeModel file(kSmall);
  const std::vector<std::pair<Edit, std::string>> requests{
      {[](auto*, auto* s) { s->n_ctx = SHARPI_UNSET; }, "n_ctx"},
      {[](auto*, auto* s) { s->kv_budget = 64; }, "kv_budget"},
      {[](auto*, auto* s) { s->capture_window = 16; }, "capture_window"},
      {[](auto*, auto* s) { s->n_checkpoints = 1; }, "n_checkpoints"},
      {[](auto*, auto* s) { s->n_draft = 2; }, "n_draft"},
      {[](auto* p, auto*) { p->max_concurrent = 2; }, "max_concurrent"},
      {[](auto* p, auto*) { p->adapter_rank = 8; }, "adapters"}};
  const auto ranks = run_ranks(2, [&](Rank& r) {
    ASSERT_TRUE(r.make_group(r.group_params({})));
    const ContextPtr context = make_context({});
    const auto refused = [&](const Edit& edit, const std::string& word, uint32_t* layers) {
      const ModelSetup setup = setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
        s->n_ctx = 128;
        p->group = r.group();
        p->rank_layers = layers;
        edit(p, s);
      });
      sharpi_error e = SHARPI_ERROR_INIT;
      PlanPtr plan;
      EXPECT_LT(try_plan(context.get(), file.path(), setup, &plan, &e), 0) << word;
      EXPECT_NE(std::string(e.text).find(word), std::string::npos) << e.text;
    };
    for (const auto& [edit, word] : requests) refused(edit, word, nullptr);
    uint32_t too_many[2] = {3, 3}, none[2] = {0, 4};
    refused([](auto*, auto*) {}, "rank_layers", too_many);
    refused([](auto*, auto*) {}, "rank_layers", none);
  });
  EXPECT_EQ(ranks.size(), 2u);
}

/// Bad input that one process can see alone.
TEST(AGroup, IsRefusedForWhatItIsMadeOf) {
  Rank r(0, 2, {-1, -1}, stderr);
  sharpi_group* g = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  const auto refused = [&](const std::function<void(sharpi_group_params*)>& edit,
                           sharpi_status status, const char* word) {
    sharpi_group_params p = r.group_params({});
    edit(&p);
    EXPECT_EQ(sharpi_group_create(&p, &g, &e), status) << word;
    EXPECT_NE(std::string(e.text).find(word), std::string::npos) << e.text;
    EXPECT_EQ(g, nullptr);
  };
  constexpr sharpi_status kBad = SHARPI_E_INVALID_ARGUMENT;
  refused([](auto* p) { p->rank = 2; }, kBad, "rank 2 is out of range");
  refused([](auto* p) { p->n_ranks = 1; }, kBad, "n_ranks 1 is out of range");
  refused([](auto* p) { p->n_ranks = 257; }, kBad, "n_ranks 257 is out of range");
  refused([](auto* p) { p->timeout_ms = 0; }, kBad, "timeout_ms is 0");
  refused([](auto* p) { p->abandon = nullptr; }, kBad, "2 of the three functions");
  refused([](auto* p) { p->nccl_comm = p; }, kBad, "nccl_comm is given");
  refused([](auto* p) { p->nccl_library = "x"; }, kBad, "nccl_library is given");
  refused([](auto* p) { p->batch_parts = 65; }, kBad, "batch_parts 65 is out of range");
  refused(
      [](auto* p) {
        p->send = nullptr, p->receive = nullptr, p->abandon = nullptr;
        p->nccl_comm = p;
        p->nccl_library = "/nowhere/libnccl.so.2";
      },
      SHARPI_E_UNSUPPORTED, "NCCL cannot be opened");
}

}  // namespace
}  // namespace sharpi::testing
