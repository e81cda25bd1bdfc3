// SPDX-License-Identifier: MIT
// /v1/embeddings and /v1/rerank over a loopback connection to small encoders and a chat model.
#include <gtest/gtest.h>

#include <cmath>

#include "served.h"

namespace server {
namespace {

using Vector = std::vector<double>;

Vector vector_of(const json& entry) {
  return entry["embedding"].get<Vector>();
}

double length_of(const Vector& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum);
}

class Encoders : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto short_texts = [](Settings& s) { s.context = 128; };
    bert_ = new Served(short_texts, "rand-bert.gguf");
    rank_ = new Served(short_texts, "rand-bert-rank.gguf");
  }
  static void TearDownTestSuite() {
    delete bert_;
    delete rank_;
    bert_ = rank_ = nullptr;
  }
  static void refused(const Served& served, const std::string& path, const json& body,
                      const std::string& says, int status = 400) {
    const Answered answer = served.post(path, body);
    EXPECT_EQ(answer.status, status) << answer.body.dump();
    const std::string why = answer.body["error"]["message"].get<std::string>();
    EXPECT_NE(why.find(says), std::string::npos) << why;
  }
  static Served *bert_, *rank_;
};
Served* Encoders::bert_ = nullptr;
Served* Encoders::rank_ = nullptr;

TEST_F(Encoders, TextsListsAndTokensGiveTheSameVectors) {
  const json tokens = bert_->post("/v1/tokenize", {{"prompt", "the cat"}}).body["tokens"];
  const Answered one = bert_->post("/v1/embeddings", {{"input", "the cat"}, {"user", "me"}});
  ASSERT_EQ(one.status, 200) << one.body.dump();
  EXPECT_EQ(one.body["object"], "list");
  EXPECT_EQ(one.body["model"], "rand-bert");
  EXPECT_EQ(one.body["usage"]["prompt_tokens"], tokens.size());
  EXPECT_EQ(one.body["usage"]["total_tokens"], tokens.size());
  const Vector v = vector_of(one.body["data"][0]);
  EXPECT_EQ(v.size(), 32u);
  EXPECT_NEAR(length_of(v), 1, 1e-5);
  const json list = json::array({"the cat", "the cat"});
  const json all = bert_->post("/v1/embeddings", {{"input", list}}).body;
  ASSERT_EQ(all["data"].size(), 2u);
  EXPECT_EQ(all["data"][1]["index"], 1);
  EXPECT_EQ(bert_->post("/v1/embeddings", {{"input", tokens}}).body["data"], one.body["data"]);
  EXPECT_EQ(bert_->post("/v1/embeddings", {{"input", json::array({tokens, tokens})}}).body["data"],
            all["data"]);
}

TEST_F(Encoders, DimensionsAndBase64) {
  const json whole = bert_->post("/v1/embeddings", {{"input", "a"}}).body["data"][0];
  const json some = bert_->post("/v1/embeddings", {{"input", "a"}, {"dimensions", 8}}).body;
  const Vector v = vector_of(some["data"][0]), w = vector_of(whole);
  ASSERT_EQ(v.size(), 8u);
  EXPECT_NEAR(length_of(v), 1, 1e-5);
  EXPECT_NEAR(v[1] / v[0], w[1] / w[0], 1e-4);
  const json coded =
      bert_->post("/v1/embeddings", {{"input", "a"}, {"encoding_format", "base64"}}).body;
  EXPECT_EQ(coded["data"][0]["embedding"].get<std::string>().size(), (32u * 4 + 2) / 3 * 4);
}

TEST_F(Encoders, WhatIsWrongIsSaid) {
  refused(*bert_, "/v1/embeddings", json::object(), "input");
  refused(*bert_, "/v1/embeddings", {{"input", json::array()}}, "input is empty");
  refused(*bert_, "/v1/embeddings", {{"input", 7}}, "input is no text");
  refused(*bert_, "/v1/embeddings", {{"input", json::array({"a", 1.5})}}, "input[1]");
  refused(*bert_, "/v1/embeddings", {{"input", "a"}, {"encoding_format", "x"}}, "encoding_format");
  refused(*bert_, "/v1/embeddings", {{"input", "a"}, {"dimensions", 33}}, "n_dims is 33");
  refused(*bert_, "/v1/embeddings", {{"input", "a"}, {"pooling", "max"}}, "pooling");
  refused(*bert_, "/v1/embeddings", {{"input", "a"}, {"what", 1}}, "what");
  refused(*bert_, "/v1/embeddings", {{"input", words("cat", 200)}}, "at most 128");
  refused(*bert_, "/v1/chat/completions",
          {{"messages", json::array({{{"role", "user"}, {"content", "hi"}}})}}, "");
  refused(*bert_, "/v1/rerank", {{"query", "a"}, {"documents", json::array({"b"})}}, "score head");
  refused(*rank_, "/v1/rerank", {{"query", "a"}, {"documents", json::array()}}, "documents");
  refused(*rank_, "/v1/rerank", {{"query", "a"}, {"documents", json::array({3})}}, "documents[0]");
  refused(*rank_, "/v1/embeddings", {{"input", "a"}}, "reranker");
}

TEST_F(Encoders, DocumentsComeInTheOrderOfTheirScores) {
  const json documents = json::array({"the cat", "on the bank", {{"text", "Alice"}}});
  for (const char* path : {"/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking"}) {
    const Answered all =
        rank_->post(path, {{"query", "Who sat on the bank?"}, {"documents", documents}});
    ASSERT_EQ(all.status, 200) << all.body.dump();
    const json& results = all.body["results"];
    ASSERT_EQ(results.size(), 3u);
    EXPECT_GE(results[0]["relevance_score"], results[1]["relevance_score"]);
    EXPECT_GE(results[1]["relevance_score"], results[2]["relevance_score"]);
    EXPECT_GT(all.body["usage"]["total_tokens"], 3);
  }
  const json some = rank_
                        ->post("/v1/rerank", {{"query", "Who?"},
                                              {"documents", documents},
                                              {"top_n", 1},
                                              {"return_documents", true}})
                        .body;
  ASSERT_EQ(some["results"].size(), 1u);
  EXPECT_TRUE(some["results"][0]["document"]["text"].is_string());
}

TEST(ChatModel, SaysThatAPoolingIsNeededAndTakesOne) {
  const Served served;
  const Answered none = served.post("/v1/embeddings", {{"input", "hi"}});
  EXPECT_EQ(none.status, 400);
  EXPECT_NE(none.body["error"]["message"].get<std::string>().find("qwen3.pooling_type"),
            std::string::npos)
      << none.body.dump();
  const Answered last = served.post("/v1/embeddings", {{"input", "hi"}, {"pooling", "last"}});
  ASSERT_EQ(last.status, 200) << last.body.dump();
  EXPECT_NEAR(length_of(vector_of(last.body["data"][0])), 1, 1e-5);
}

}  // namespace
}  // namespace server
