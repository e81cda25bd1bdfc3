// SPDX-License-Identifier: MIT
// The scheduler without connections: what is done between two steps, counted.
#include "scheduler.h"

#include <gtest/gtest.h>

#include <future>

#include "served.h"

namespace server {
namespace {

// The parts of a server below its connections.
struct Parts {
  explicit Parts(std::vector<std::string> more) {
    more.insert(more.begin(), {"--model", fixture_path("tiny-qwen3-q8_0.gguf"), "--context", "2048",
                               "--threads", "1", "--ignore-env"});
    settings = read_settings(more, {});
    engine = std::make_unique<Engine>(settings);
    scheduler = std::make_unique<Scheduler>(*engine, settings, metrics);
  }
  // Of n tokens; no token that ends may be drawn.
  Generation asked(uint32_t n, uint32_t max_tokens) const {
    Generation out;
    for (uint32_t i = 0; i < n; ++i) out.prompt.push_back(300 + static_cast<int32_t>(i % 97));
    for (int32_t i = 0; i < static_cast<int32_t>(engine->info().n_vocab); ++i) {
      if (!engine->ends(i)) continue;
      out.sampling.bias_tokens.push_back(i);
      out.sampling.bias_values.push_back(-100);
    }
    out.max_tokens = max_tokens;
    return out;
  }
  /// @param tokens gets those of the answer, where it is not null.
  static Outcome outcome(Job& job, Tokens* tokens = nullptr) {
    std::vector<Piece> pieces;
    while (job.take(&pieces, std::chrono::milliseconds(100))) {
      if (tokens == nullptr) continue;
      for (const Piece& piece : pieces) {
        if (piece.token >= 0) tokens->push_back(piece.token);
      }
    }
    return job.outcome();
  }

  Settings settings;
  std::unique_ptr<Engine> engine;
  Metrics metrics;
  std::unique_ptr<Scheduler> scheduler;
};

TEST(Scheduler, BetweenTwoTokensIsALookWhetherSomebodyIsThere) {
  const Parts parts({});
  uint32_t looks = 0;  // the first one when it is begun, the others before a token each
  const auto job = parts.scheduler->submit(parts.asked(3, 1000), [&looks] { return ++looks == 6; });
  const Outcome outcome = Parts::outcome(*job);
  EXPECT_EQ(outcome.finish, Finish::kCancelled);
  EXPECT_EQ(outcome.usage.completion_tokens, 5u);
  EXPECT_EQ(looks, 6u);  // none behind the one that found nobody
}

TEST(Scheduler, TokensOfOtherAnswersComeBetweenTheChunksOfALongPrompt) {
  const Parts parts({"--prefill-chunk", "32"});
  std::shared_ptr<Job> writer, reader;
  std::vector<uint64_t> written;  // tokens so far, at each round while the long prompt is read
  parts.scheduler->run([&](SessionCache&) {
    writer = parts.scheduler->submit(parts.asked(3, 100));
    reader = parts.scheduler->submit(parts.asked(1000, 1), [&] {
      written.push_back(parts.metrics.generated_tokens);
      return false;
    });
  });
  EXPECT_EQ(Parts::outcome(*reader).finish, Finish::kLength);
  EXPECT_EQ(Parts::outcome(*writer).finish, Finish::kLength);
  // A look when both are begun, the short prompt being read first; then one before each chunk.
  ASSERT_EQ(written.size(), 1u + 32u);
  for (size_t i = 0; i < written.size(); ++i) EXPECT_EQ(written[i], i);
}

// The deadline is for places. While the compute thread is long over something else (memory for
// another session, say), who has a place waits on.
TEST(Scheduler, OnlyWhoWaitsForAPlaceIsSentAway) {
  const Parts parts({"--slots", "2"});
  Scheduler& scheduler = *parts.scheduler;
  std::promise<void> busy, go_on;
  std::thread holder([&] {
    scheduler.run([&](SessionCache&) {
      busy.set_value();
      go_on.get_future().wait();
    });
  });
  busy.get_future().wait();
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 3; ++i) {
    Generation generation;
    generation.prompt = {300, 301 + i, 302};
    generation.max_tokens = 2;
    jobs.push_back(scheduler.submit(std::move(generation)));
  }
  EXPECT_FALSE(jobs[0]->expire());
  EXPECT_FALSE(jobs[1]->expire());
  EXPECT_TRUE(jobs[2]->expire());
  go_on.set_value();
  holder.join();
  for (const auto& job : jobs) {
    std::vector<Piece> pieces;
    while (job->take(&pieces, std::chrono::milliseconds(100))) {
    }
  }
  EXPECT_EQ(jobs[0]->outcome().finish, Finish::kLength);
  EXPECT_EQ(jobs[1]->outcome().finish, Finish::kLength);
  EXPECT_EQ(jobs[2]->outcome().finish, Finish::kCancelled);
}

TEST(Scheduler, WhoGoesAwayLeavesTheOthersTheirStepsWithDrafts) {
  constexpr uint32_t kTokens = 80;
  Tokens alone, together;
  const Parts plain({"--deterministic"});
  Parts::outcome(*plain.scheduler->submit(plain.asked(200, kTokens)), &alone);
  const Parts parts({"--deterministic", "--draft", "ngram"});
  std::shared_ptr<Job> stays, leaves;
  uint32_t looks = 0;
  parts.scheduler->run([&](SessionCache&) {
    stays = parts.scheduler->submit(parts.asked(200, kTokens));
    leaves = parts.scheduler->submit(parts.asked(150, 1000), [&looks] { return ++looks == 9; });
  });
  EXPECT_EQ(Parts::outcome(*stays, &together).finish, Finish::kLength);
  EXPECT_EQ(Parts::outcome(*leaves).finish, Finish::kCancelled);
  EXPECT_EQ(looks, 9u);
  EXPECT_EQ(together.size(), kTokens);
  EXPECT_EQ(together, alone);
  EXPECT_GT(parts.metrics.accepted_tokens, 0u);
}

}  // namespace
}  // namespace server
