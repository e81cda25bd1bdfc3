// SPDX-License-Identifier: MIT
// Batches over several processes, whole and in parts: the bits of one process, what is refused,
// and how a batch is cut.
#include <algorithm>

#include "group/rank_case.h"
#include "plan/part_plan.h"

namespace sharpi::testing {
namespace {

test::ModelRecipe deeper(test::ModelRecipe recipe, uint32_t n_layers) {
  recipe.n_layers = n_layers;
  recipe.n_mtp = 0;
  return recipe;
}

std::vector<int32_t> tokens_for(uint32_t n) {
  std::vector<int32_t> out;
  for (uint32_t i = 0; i < n; ++i) out.push_back(static_cast<int32_t>((i * 37 + n) % 300));
  return out;
}

GroupSetup in_parts(uint32_t n) {
  GroupSetup setup;
  setup.batch_parts = n;
  setup.edit = [](sharpi_plan_params* p, sharpi_session_params*) {
    p->deterministic = 1;
    p->max_batch = 6;
  };
  return setup;
}

struct Company {
  std::vector<SessionPtr> owned;
  std::vector<sharpi_session*> all;
};

Company make_company(Rank& r, const std::vector<uint32_t>& lengths) {
  Company c;
  for (const uint32_t n : lengths) {
    c.owned.push_back(r.session());
    c.all.push_back(c.owned.back().get());
    EXPECT_TRUE(r.seed(c.all.back(), n, 0.9f));
    EXPECT_TRUE(r.prefill(c.all.back(), tokens_for(n)));
  }
  return c;
}

sharpi_status step(Rank& r, const std::vector<sharpi_session*>& sessions,
                   sharpi_error* e = nullptr) {
  std::vector<int32_t> tokens(sessions.size(), -1);
  std::vector<sharpi_batch_step> steps;
  for (size_t i = 0; i < sessions.size(); ++i)
    steps.push_back({sessions[i], nullptr, &tokens[i], 1, 9});
  const auto n = static_cast<uint32_t>(steps.size());
  const sharpi_status done = sharpi_step_batch(steps.data(), sizeof steps[0], n, e);
  for (size_t i = 0; i < sessions.size(); ++i) {
    EXPECT_EQ(steps[i].n_tokens, done == SHARPI_OK ? 1u : 0u);
    if (done == SHARPI_OK) r.say("token " + std::to_string(tokens[i]));
  }
  for (sharpi_session* s : sessions)
    if (done == SHARPI_OK) r.say_logits(s);
  return done;
}

sharpi_status decode(const std::vector<sharpi_session*>& sessions,
                     const std::vector<int32_t>& tokens, sharpi_error* e = nullptr) {
  return sharpi_decode_batch(sessions.data(), tokens.data(), static_cast<uint32_t>(sessions.size()),
                             e);
}

void live(Rank& r, const std::string& path, const GroupSetup& setup) {
  ASSERT_TRUE(r.open(path, setup));
  const Company c = make_company(r, {40, 3, 150, 17, 64});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(r, c.all), SHARPI_OK);
  const std::vector<sharpi_session*> two{c.all[3], c.all[1]};
  EXPECT_EQ(decode(two, {5, 6}), SHARPI_OK);
  for (sharpi_session* s : two) r.say_logits(s);
  EXPECT_EQ(step(r, two), SHARPI_OK);
  EXPECT_GE(r.step(c.all[1]), 0);
  EXPECT_EQ(step(r, c.all), SHARPI_OK);
  for (sharpi_session* s : c.all) r.say("has " + std::to_string(r.n_tokens(s)));
}

class Batches : public ::testing::TestWithParam<test::ModelRecipe> {};

TEST_P(Batches, GiveTheBitsOfOneProcess) {
  const MadeModel file(GetParam());
  const auto run = [&](uint32_t n_ranks, uint32_t n_parts) {
    return run_ranks(n_ranks, [&](Rank& r) { live(r, file.path(), in_parts(n_parts)); });
  };
  const std::vector<std::string> want = run(1, 0)[0].lines;
  ASSERT_GT(want.size(), 40u);
  const std::pair<uint32_t, uint32_t> cuts[] = {{2, 0}, {2, 1}, {2, 2}, {2, 64}, {3, 2}, {3, 3}};
  for (const auto& [n_ranks, n_parts] : cuts) {
    const std::vector<RankEnd> ranks = run(n_ranks, n_parts);
    EXPECT_EQ(ranks.back().lines, want) << n_ranks << " ranks, " << n_parts << " parts";
    EXPECT_EQ(line_of(ranks[0], "token"), line_of(ranks.back(), "token"));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Batches,
                         ::testing::Values(deeper(test::tiny_qwen3(), 4),
                                           deeper(test::tiny_qwen35(), 6),
                                           deeper(test::tiny_gemma3(), 4),
                                           deeper(test::tiny_olmoe(), 3)),
                         recipe_name);

const test::ModelRecipe kSmall = deeper(test::tiny_qwen3(), 4);

/// Two exchanges of rank 0 with each other rank, and a message for each part.
TEST(Batch, GoesInThePartsThatRankZeroSays) {
  const MadeModel file(kSmall);
  for (const uint32_t n_parts : {0u, 1u, 2u, 3u, 9u}) {
    run_ranks(3, [&](Rank& r) {
      ASSERT_TRUE(r.open(file.path(), in_parts(r.rank() == 0 ? n_parts : 2)));
      const Company c = make_company(r, {3, 5, 4});
      const uint64_t before = r.link().n_messages();
      EXPECT_EQ(step(r, c.all), SHARPI_OK);
      const uint32_t want = std::clamp(n_parts, 1u, 3u);  // so few tokens are best together
      EXPECT_TRUE(r.rank() != 0 || r.link().n_messages() - before == 8 + want);
    });
  }
}

TEST(Batch, IsRefusedOnAllRanks) {
  const MadeModel file(kSmall);
  const auto ranks = run_ranks(2, [&](Rank& r) {
    ASSERT_TRUE(r.open(file.path(), in_parts(2)));
    const Company c = make_company(r, {30, 3, 8});
    const bool other = r.rank() == 1;
    sharpi_error e = SHARPI_ERROR_INIT;
    const auto refused = [&](sharpi_status got, sharpi_status want, const std::string& word) {
      EXPECT_EQ(got, want) << e.text;
      EXPECT_NE(std::string(e.text).find(word), std::string::npos) << e.text;
      EXPECT_EQ(r.n_tokens(c.all[0]) + r.n_tokens(c.all[1]) + r.n_tokens(c.all[2]), 41u);
    };
    sharpi_session *a = c.all[0], *b = c.all[1], *d = c.all[2];
    refused(step(r, {a, other ? d : b}, &e), SHARPI_E_MISMATCH, "rank 1 gives step other arg");
    refused(step(r, other ? c.all : std::vector{a, b}, &e), SHARPI_E_MISMATCH, "rank 1 gives");
    refused(decode({a, b}, {1, other ? 3 : 2}, &e), SHARPI_E_MISMATCH, "rank 1 gives decode");
    refused(other ? step(r, {a, b}, &e) : decode({a, b}, {1, 2}, &e), SHARPI_E_MISMATCH,
            "rank 1 is at step");
    refused(decode({a, b}, {1, 1 << 20}, &e), SHARPI_E_INVALID_ARGUMENT, "rank 0: token 1 is");
    if (other) sharpi_session_cancel(b);
    refused(step(r, c.all, &e), SHARPI_E_CANCELLED, "rank 1: steps[1] was cancelled");
    EXPECT_EQ(e.native_code, 1);
    std::vector<SessionPtr> many;
    std::vector<sharpi_session*> seven = c.all;
    while (seven.size() < 7) seven.push_back(many.emplace_back(r.session()).get());
    refused(decode(seven, std::vector<int32_t>(7, 1), &e), SHARPI_E_INVALID_ARGUMENT,
            "the plan's max_batch is 6");
    refused(step(r, {a, seven[6]}, &e), SHARPI_E_STATE, "rank 1: steps[1]");  // it has no logits
    const int32_t one = 1;
    sharpi_batch_read read{a, &one, 1, 0, nullptr};
    refused(sharpi_verify_batch(&read, sizeof read, 1, &e), SHARPI_E_UNSUPPORTED, "drafts");
    EXPECT_EQ(step(r, c.all), SHARPI_OK);
  });
  // Nothing of it has changed what comes then.
  const auto alone = run_ranks(1, [&](Rank& r) {
    ASSERT_TRUE(r.open(file.path(), in_parts(2)));
    EXPECT_EQ(step(r, make_company(r, {30, 3, 8}).all), SHARPI_OK);
  });
  EXPECT_EQ(ranks[1].lines, alone[0].lines);
}

TEST(Batch, IsCutWhereItsPartsAreAlike) {
  const auto ends = [](const std::vector<uint32_t>& lengths, uint32_t n) {
    std::vector<uint32_t> out(n);
    cut_batch(lengths, n, out.data());
    return out;
  };
  using Ends = std::vector<uint32_t>;
  EXPECT_EQ(ends({9, 9, 9, 9}, 1), Ends{4});
  EXPECT_EQ(ends({9, 9, 9, 9}, 2), (Ends{2, 4}));
  EXPECT_EQ(ends({9, 9, 9, 9}, 4), (Ends{1, 2, 3, 4}));
  EXPECT_EQ(ends({90, 9, 9, 9}, 2), (Ends{1, 4}));
  EXPECT_EQ(ends({9, 9, 9, 90}, 2), (Ends{3, 4}));
  EXPECT_EQ(ends({9, 90, 9}, 3), (Ends{1, 2, 3}));
  EXPECT_EQ(ends({900, 0, 0, 0}, 3), (Ends{1, 2, 4}));
  EXPECT_EQ(ends(Ends(64, 0xffffffff), 2), (Ends{32, 64}));
}

TEST(Batch, IsCutOnlyWhereThatIsSooner) {
  RankCost dense;
  dense.weights = 1000;
  dense.token = 1;
  const auto parts = [&](const RankCost& c, uint32_t n_ranks, uint32_t n_tokens) {
    return parts_of_batch(std::vector<RankCost>(n_ranks, c), std::vector<uint32_t>(8, n_tokens));
  };
  EXPECT_EQ(parts_of_batch(std::vector(2, dense), std::vector{1000000u}), 1u);
  EXPECT_EQ(parts(dense, 2, 0), 1u);
  // 2 (w + a) against (p + 1) (w + a / p): of a = 2 w both take 6 w.
  EXPECT_EQ(parts(dense, 2, 250), 1u);
  EXPECT_EQ(parts(dense, 2, 600), 2u);  // 10.2 w against 11.6 w
  EXPECT_EQ(parts(dense, 2, 50000), 8u);
  EXPECT_EQ(parts(dense, 3, 500), 2u);
  RankCost experts = dense;  // all that parts read of them is their own, until they use all
  experts.weights = 0;
  experts.experts = 1 << 20;
  experts.experts_read = 1;
  EXPECT_GT(parts(experts, 2, 0), 2u);
  experts.experts_read = 1 << 20;
  EXPECT_EQ(parts(experts, 2, 0), 1u);
}

}  // namespace
}  // namespace sharpi::testing
