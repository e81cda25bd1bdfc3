// SPDX-License-Identifier: MIT
// Answers that are written with drafts: alone, and several in the same passes.
#include <gtest/gtest.h>

#include "served.h"

namespace server {
namespace {

// Every drafter leaves the tokens that there are without one, also beside another answer, and in a
// turn that goes on from there.
TEST(Drafting, DraftsChangeNothingButTheSpeed) {
  const char* const hybrid = "tiny-qwen35-q8_0.gguf";
  const Served plain({}, hybrid);
  const std::string text = words("code of snow", 20);
  const json how = {{"max_tokens", 60}, {"logit_bias", endless(plain, false)["logit_bias"]}};
  const json expected = plain.chat(text, how)["choices"];
  const json other = plain.chat(words("snow", 30), how)["choices"];
  const json next = plain.chat(text + "more", how)["choices"];
  const uint32_t both = SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MTP;
  const std::pair<uint32_t, const char*> drafters[] = {
      {SHARPI_DRAFT_NGRAM, "ngram"},
      {SHARPI_DRAFT_MTP, "mtp"},
      {both, "ngram,mtp"},
      {SHARPI_DRAFT_AUTO, "ngram,mtp"},
      {SHARPI_DRAFT_MODEL, "model"},
      {SHARPI_UNSET, "ngram,model"},
      {both | SHARPI_DRAFT_MODEL, "ngram,mtp,model"}};
  for (const auto& each : drafters) {
    const auto drafter = each.first;  // clang 14 takes no binding into a lambda
    const auto& name = each.second;
    SCOPED_TRACE(name);
    const Served served(
        [&](Settings& s) {
          s.draft = drafter;
          s.drafts = 4;
          // It drafts for itself: a smaller one of its vocabulary is not in the tree.
          if (std::string(name).find("model") != std::string::npos) s.draft_model = s.model;
        },
        hybrid);
    EXPECT_EQ(served.chat(text, how)["choices"], expected);
    const json session = served.get("/v1/sharpi/sessions").body["sessions"][0];
    EXPECT_EQ(session["drafters"], name);
    EXPECT_GT(session["n_drafted"], 0) << session.dump();
    EXPECT_EQ(served.metric("sharpi_drafted_tokens_total"), session["n_drafted"]);
    EXPECT_EQ(served.metric("sharpi_accepted_tokens_total"), session["n_accepted"]);
    EXPECT_EQ(session["acceptance"],
              session["n_accepted"].get<double>() / session["n_drafted"].get<double>());
    std::thread beside([&] { EXPECT_EQ(served.chat(words("snow", 30), how)["choices"], other); });
    EXPECT_EQ(served.chat(text, how)["choices"], expected);
    beside.join();
    EXPECT_EQ(served.chat(text + "more", how)["choices"], next);
  }
}

TEST(Drafting, DraftsThatTheFileDoesNotHaveAreLeftOutByAuto) {
  const Served served([](Settings& s) { s.draft = SHARPI_DRAFT_AUTO; });
  served.chat("code");
  EXPECT_EQ(served.get("/v1/sharpi/sessions").body["sessions"][0]["drafters"], "ngram");
  const json plan = served.get("/v1/sharpi/plan").body;
  EXPECT_EQ(plan["settings"]["draft"]["value"], "auto");
  EXPECT_EQ(plan["plan"]["drafters"], SHARPI_DRAFT_NGRAM);
  EXPECT_EQ(plan["plan"]["n_draft"], 8);
  EXPECT_EQ(plan["plan"]["fallbacks"],
            json::array({"the MTP drafter is left out: drafters has MTP, but the file has no block "
                         "for multi-token prediction"}));
}

// How a request went that was asked beside others.
struct Request {
  std::string path;
  json body, choices;
};

std::vector<Request> asked_together(Served* served, std::vector<Request> all) {
  std::vector<std::thread> threads;
  // All begin in the same round, so that none has written before the others are there.
  served->between_steps([&](SessionCache&) {
    for (Request& a : all) {
      threads.emplace_back([served, &a] {
        const Answered answer = served->post(a.path, a.body);
        EXPECT_EQ(answer.status, 200) << answer.body.dump();
        a.choices = answer.body["choices"];
      });
    }
    EXPECT_TRUE(served->becomes([&] { return served->metrics().waiting == all.size(); }));
  });
  for (std::thread& thread : threads) thread.join();
  return all;
}

std::vector<Request> asked_alone(const Served& served, std::vector<Request> all) {
  for (Request& a : all) a.choices = served.post(a.path, a.body).body["choices"];
  return all;
}

void with_drafts(Settings& s) {
  s.slots = 4;
  s.sessions = 12;
  s.draft = SHARPI_DRAFT_NGRAM;
  s.drafts = 4;
}

Request chat_of(const std::string& text, json more) {
  json body = {{"messages", json::array({{{"role", "user"}, {"content", text}}})}};
  body.update(more);
  return {"/v1/chat/completions", body, {}};
}

// What repeats itself, and goes on.
std::vector<Request> repeating(const Served& served, json more) {
  more["logit_bias"] = endless(served, false)["logit_bias"];
  return {chat_of(words("code of snow", 20), more), chat_of(words("snow", 30), more)};
}

TEST(Drafting, AnswersWithDraftsShareTheirPasses) {
  constexpr int kTokens = 96, kRounds = 5;
  Served plain;
  const json how = {{"temperature", 0}, {"max_tokens", kTokens}};
  const std::vector<Request> alone = asked_alone(plain, repeating(plain, how));
  // How many drafts a step takes follows from measured times, so a round on a machine with other
  // work may have none; what it answers is the same.
  bool all_accept = false;
  for (int round = 0; round < kRounds && !all_accept; ++round) {
    Served served(with_drafts);
    const std::vector<Request> together = asked_together(&served, repeating(served, how));
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(together[i].choices, alone[i].choices) << i;
    EXPECT_EQ(served.metric("sharpi_generated_tokens_total"), 2 * kTokens);
    double drafted = 0, accepted = 0;
    const json sessions = served.get("/v1/sharpi/sessions").body["sessions"];
    ASSERT_EQ(sessions.size(), 2u);
    all_accept = true;
    for (const json& session : sessions) {
      all_accept = all_accept && session["n_accepted"] > 0;
      drafted += session["n_drafted"].get<double>();
      accepted += session["n_accepted"].get<double>();
    }
    EXPECT_EQ(served.metric("sharpi_drafted_tokens_total"), drafted);
    EXPECT_EQ(served.metric("sharpi_accepted_tokens_total"), accepted);
    // Every step is a pass, and without drafts it brings a token to either of them.
    all_accept = all_accept && served.metric("sharpi_steps_total") < kTokens;
  }
  EXPECT_TRUE(all_accept) << "in none of " << kRounds << " rounds";
}

// Seeds, biases, log-probabilities, stop strings, schemas and numbers of tokens of their own.
TEST(Drafting, EachAnswerKeepsWhatItAskedFor) {
  Served plain, served(with_drafts);
  const json bias = endless(plain, false)["logit_bias"];
  const json schema = {{"type", "object"},
                       {"properties", {{"code", {{"type", "integer"}}}}},
                       {"required", {"code"}},
                       {"additionalProperties", false}};
  const json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "c"}, {"schema", schema}, {"strict", true}}}};
  const std::vector<std::vector<Request>> rounds = {
      {chat_of(words("code of snow", 20),
               {{"temperature", 0.3}, {"seed", 5}, {"max_tokens", 41}, {"logit_bias", bias}}),
       chat_of(words("snow", 30), {{"temperature", 0},
                                   {"max_tokens", 30},
                                   {"logprobs", true},
                                   {"top_logprobs", 3},
                                   {"logit_bias", bias}}),
       chat_of(words("ember", 4), {{"response_format", format}, {"max_tokens", 40}, {"seed", 7}}),
       chat_of("The code of ember is 97697. What is the code of ember?",
               {{"temperature", 0}, {"max_tokens", 30}, {"stop", "976"}})},
      {chat_of("The code of ember is 97697. What is the code of ember?", {{"temperature", 0}}),
       chat_of(words("code", 25), {{"temperature", 1}, {"seed", 9}, {"max_tokens", 1}}),
       chat_of(words("code", 20),
               {{"temperature", 1}, {"seed", 11}, {"max_tokens", 2}, {"logit_bias", bias}}),
       chat_of(words("which", 30),
               {{"temperature", 0}, {"max_tokens", 60}, {"logit_bias", bias}})}};
  for (const auto& round : rounds) {
    const std::vector<Request> alone = asked_alone(plain, round);
    const std::vector<Request> together = asked_together(&served, round);
    for (size_t i = 0; i < round.size(); ++i) {
      EXPECT_EQ(together[i].choices, alone[i].choices) << round[i].body.dump();
    }
  }
  EXPECT_GT(served.metric("sharpi_accepted_tokens_total"), 0);
}

// One session after the other has no room for another token; who still has some goes on.
TEST(Drafting, AFullContextEndsOnlyItsOwnAnswer) {
  const auto small = [](Settings& s) { s.context = 128; };
  Served plain(small), served([&](Settings&s) {
    with_drafts(s);
    small(s);
  });
  std::vector<Request> all;
  for (const int n : {10, 25, 40}) {
    json body = endless(plain, false);
    body["temperature"] = 0;
    body["messages"][0]["content"] = words("code", n);
    all.push_back({"/v1/chat/completions", body, {}});
  }
  const std::vector<Request> alone = asked_alone(plain, all);
  const std::vector<Request> together = asked_together(&served, all);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(together[i].choices, alone[i].choices) << i;
    EXPECT_EQ(together[i].choices[0]["finish_reason"], "length");
  }
  EXPECT_EQ(asked_alone(served, all)[1].choices, alone[1].choices);
}

// A session that is compacted while it writes has no rows besides those that it kept, and gets
// some.
TEST(Drafting, ACompactedSessionGetsRowsForItsNextTokens) {
  Served served(with_drafts);
  json body = repeating(served, {{"temperature", 0}, {"max_tokens", 300}})[0].body;
  json answer;
  std::thread writer([&] { answer = served.post("/v1/chat/completions", body).body; });
  EXPECT_TRUE(served.becomes([&] { return served.metrics().generated_tokens > 0; }));
  served.between_steps([](SessionCache& sessions) {
    sharpi_compact_params params;
    sharpi_compact_params_init(&params, sizeof params);
    params.budget = 64, params.headroom = 8;
    sessions.compact(sessions.find("s1"), params);
  });
  writer.join();
  EXPECT_EQ(answer["usage"]["completion_tokens"], 300) << answer.dump();
  const json session = served.get("/v1/sharpi/sessions").body["sessions"][0];
  EXPECT_EQ(session["is_compacted"], true);
}

}  // namespace
}  // namespace server
