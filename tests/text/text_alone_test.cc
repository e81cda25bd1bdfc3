// SPDX-License-Identifier: MIT
// Files of a vocabulary alone, over the C ABI: tokens, text, metadata and the chat format that the
// vocabulary shows, without one tensor; what needs weights is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "support/abi.h"
#include "text/vocabulary_file.h"

namespace sharpi {
namespace {

using testing::ModelPtr;
using testing::text_of;

class TextAlone : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = ::testing::TempDir() + "sharpi_" + test->name() + std::to_string(::getpid()) + ".gguf";
  }
  void TearDown() override { std::remove(path_.c_str()); }

  ModelPtr open(const VocabularyFile& v) const {
    const test::Bytes bytes = bytes_of(v);
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    sharpi_model* out = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_model_open_text(path_.c_str(), &out, &e), SHARPI_OK) << text_of(e);
    return ModelPtr(out);
  }

  std::string path_;
};

sharpi_model_summary info_of(const ModelPtr& model) {
  sharpi_model_summary info{};
  info.struct_size = sizeof info;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_model_info(model.get(), &info, &e), SHARPI_OK) << text_of(e);
  return info;
}

VocabularyFile vocabulary(const char* architecture = "llama") {
  VocabularyFile v;
  v.add_bytes().add_merge("H", "i");
  v.writer.value("general.architecture", architecture);
  return v;
}

TEST_F(TextAlone, AFileOfAVocabularyHasTokensTextAndMetadata) {
  VocabularyFile v = vocabulary();
  v.writer.value("general.name", "a vocabulary");
  const ModelPtr model = open(v);
  ASSERT_TRUE(model);
  const sharpi_model_summary info = info_of(model);
  EXPECT_EQ(info.n_vocab, 257u);
  EXPECT_STREQ(info.architecture, "llama");
  EXPECT_STREQ(info.name, "a vocabulary");
  EXPECT_STREQ(info.tokenizer, "gpt2 qwen2");
  EXPECT_EQ(info.n_layers, 0u);
  EXPECT_EQ(info.n_parameters, 0u);
  sharpi_error e = SHARPI_ERROR_INIT;
  int32_t ids[8];
  uint32_t n = 0;
  ASSERT_EQ(sharpi_tokenize(model.get(), "Hi!", 3, 0, ids, 8, &n, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(Ids(ids, ids + n), (Ids{256, '!'}));
  char text[64];
  size_t len = 0;
  ASSERT_EQ(sharpi_detokenize(model.get(), ids, n, 0, text, sizeof text, &len, &e), SHARPI_OK)
      << text_of(e);
  EXPECT_EQ(std::string(text, len), "Hi!");
  ASSERT_EQ(sharpi_model_meta(model.get(), "general.name", text, sizeof text, &len, &e), SHARPI_OK)
      << text_of(e);
  EXPECT_EQ(std::string(text, len), "a vocabulary");
}

TEST_F(TextAlone, WhatNeedsWeightsAndAPlanOfSuchAFileAreRefused) {
  const ModelPtr model = open(vocabulary());
  ASSERT_TRUE(model);
  sharpi_error e = SHARPI_ERROR_INIT;
  sharpi_session* session = nullptr;
  EXPECT_EQ(sharpi_session_create(model.get(), nullptr, &session, &e), SHARPI_E_STATE);
  EXPECT_NE(text_of(e).find("text alone"), std::string::npos) << text_of(e);
  sharpi_context* raw = nullptr;
  ASSERT_EQ(sharpi_context_create(nullptr, &raw, &e), SHARPI_OK) << text_of(e);
  const testing::ContextPtr context(raw);
  sharpi_plan* plan = nullptr;
  EXPECT_EQ(sharpi_plan_create(context.get(), path_.c_str(), nullptr, &plan, &e), SHARPI_E_FORMAT);
  EXPECT_EQ(plan, nullptr);
}

struct FormatCase {
  const char* what;
  const char* architecture;
  std::vector<const char*> controls;
  const char* jinja;
  sharpi_chat_kind kind;
  const char* rendered;  // of one message "a", or what the refusal says
};

TEST_F(TextAlone, TheChatFormatIsWhatTheFileShows) {
  const FormatCase cases[] = {
      {"a template comes before what tokens show",
       "olmoe",
       {"<|im_start|>", "<|im_end|>"},
       "{{ messages[0].content }}!",
       SHARPI_CHAT_TEMPLATE,
       "a!"},
      {"ChatML",
       "olmoe",
       {"<|im_start|>", "<|im_end|>"},
       "",
       SHARPI_CHAT_CHATML,
       "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"},
      {"Gemma 4",
       "gemma4",
       {"<|turn>", "<turn|>"},
       "",
       SHARPI_CHAT_GEMMA,
       "<|turn>user\na<turn|>\n<|turn>model\n"},
      {"Gemma 3",
       "gemma3",
       {"<start_of_turn>", "<end_of_turn>"},
       "",
       SHARPI_CHAT_GEMMA3,
       "<start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\n"},
      {"OLMoE", "olmoe", {}, "", SHARPI_CHAT_OLMOE, "<|user|>\na\n<|assistant|>\n"},
      {"half a pair is none",
       "llama",
       {"<|im_start|>", "<|turn>", "<end_of_turn>"},
       "",
       SHARPI_CHAT_UNKNOWN,
       "no chat template"},
      {"OLMoE's markers in another architecture",
       "llama",
       {"<|user|>", "<|assistant|>"},
       "",
       SHARPI_CHAT_UNKNOWN,
       "no chat template"},
  };
  for (const FormatCase& c : cases) {
    VocabularyFile v = vocabulary(c.architecture);
    for (const char* token : c.controls) v.add(token, TokenKind::kControl);
    if (*c.jinja != '\0') v.writer.value("tokenizer.chat_template", c.jinja);
    const ModelPtr model = open(v);
    ASSERT_TRUE(model) << c.what;
    EXPECT_EQ(info_of(model).chat, c.kind) << c.what;
    sharpi_message message{};
    message.role = "user";
    message.content = "a";
    message.content_len = 1;
    sharpi_chat_params params;
    sharpi_chat_params_init(&params, sizeof params);
    params.messages = &message;
    params.n_messages = 1;
    char text[256];
    size_t len = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    const sharpi_status status =
        sharpi_chat_format(model.get(), &params, text, sizeof text, &len, &e);
    if (c.kind == SHARPI_CHAT_UNKNOWN) {
      EXPECT_EQ(status, SHARPI_E_UNSUPPORTED) << c.what;
      EXPECT_NE(text_of(e).find(c.rendered), std::string::npos) << c.what << text_of(e);
    } else {
      ASSERT_EQ(status, SHARPI_OK) << c.what << text_of(e);
      EXPECT_EQ(std::string(text, len), c.rendered) << c.what;
    }
  }
}

}  // namespace
}  // namespace sharpi
