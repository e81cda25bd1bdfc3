// SPDX-License-Identifier: MIT
// Adapters of --lora: what a request chooses of them, and that no answer begins with rows that
// other adapters have read.
#include <gtest/gtest.h>

#include <string>

#include "served.h"

namespace server {
namespace {

class Lora : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    served_ = new Served(
        [](Settings& s) {
          s.loras = {{source_path("tests/fixtures/rand-llama3-lora.gguf"), 0.5f}};
          s.context = 128;
          s.exact = true;
        },
        "rand-llama3-q8_0.gguf");
  }
  static void TearDownTestSuite() {
    delete served_;
    served_ = nullptr;
  }
  static json asked(const json& more) {
    json body = {{"prompt", json::array()}, {"max_tokens", 8}, {"temperature", 0}};
    for (int i = 0; i < 40; ++i) body["prompt"].push_back(5 + i * 7 % 200);
    body.update(more);
    return body;
  }
  static json answer(const json& more) {
    const Answered a = served_->post("/v1/completions", asked(more));
    EXPECT_EQ(a.status, 200) << a.body.dump();
    return a.body;
  }
  static std::string text(const json& completion) { return completion["choices"][0]["text"]; }
  static int cached(const json& completion) {
    return completion["usage"]["prompt_tokens_details"]["cached_tokens"];
  }
  static std::string refusal(const json& lora) {
    const Answered a = served_->post("/v1/completions", asked({{"lora", lora}}));
    EXPECT_EQ(a.status, 400) << a.body.dump();
    return a.body["error"]["message"];
  }
  static Served* served_;
};
Served* Lora::served_ = nullptr;

json scaled(double scale) {
  return {{"lora", json::array({{{"id", 0}, {"scale", scale}}})}};
}

TEST_F(Lora, RequestsChooseAndShareNoRowsOfOthers) {
  const json usual = answer(json::object()), none = answer({{"lora", json::array()}}),
             full = answer(scaled(1));
  EXPECT_NE(text(usual), text(none));
  EXPECT_NE(text(full), text(none));
  EXPECT_NE(text(full), text(usual));
  EXPECT_EQ(cached(none), 0) << "the same prompt, read with the adapter, is no beginning of it";
  EXPECT_EQ(cached(full), 0);
  const json half = answer(scaled(0.5)), zero = answer(scaled(0));
  EXPECT_EQ(text(half), text(usual)) << "the scale of --lora";
  EXPECT_EQ(cached(half), 39);
  EXPECT_EQ(text(zero), text(none));
  EXPECT_EQ(cached(zero), 39);
}

TEST_F(Lora, AreListed) {
  const Answered a = served_->get("/lora-adapters");
  ASSERT_EQ(a.status, 200);
  ASSERT_EQ(a.body.size(), 1u);
  EXPECT_EQ(a.body[0]["id"], 0);
  EXPECT_EQ(a.body[0]["scale"], 0.5);
  EXPECT_NE(a.body[0]["path"].get<std::string>().find("rand-llama3-lora.gguf"), std::string::npos);
}

TEST_F(Lora, WhatIsWrongIsNamed) {
  EXPECT_NE(refusal("poems").find("lora"), std::string::npos);
  EXPECT_NE(refusal(json::array({7})).find("no object"), std::string::npos);
  EXPECT_NE(refusal(json::array({{{"id", 1}}})).find("none of the 1 adapters"), std::string::npos);
  EXPECT_NE(refusal(json::array({{{"id", 0}, {"scale", "much"}}})).find("lora[0].scale"),
            std::string::npos);
  EXPECT_NE(refusal(json::array({{{"scale", 1}}})).find("lora[0].id"), std::string::npos);
  EXPECT_NE(refusal(json::array({{{"id", 0}, {"rank", 1}}})).find("lora[0].rank"),
            std::string::npos);
}

}  // namespace
}  // namespace server
