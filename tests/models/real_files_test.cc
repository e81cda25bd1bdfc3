// SPDX-License-Identifier: MIT
// Real, trained models against HF transformers in f32 (tools/models/make_goldens.py): tokens,
// logits, greedy continuations, perplexity of a book; one computation in any cut; answers of a
// chat.
#include "models/real_files.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "models/text_reader.h"
#include "support/golden.h"
#include "support/needle.h"
#include "support/turn.h"

namespace sharpi::testing {
namespace {

const std::string kFolder = SHARPI_TEST_MODELS;
constexpr uint32_t kRows = kLogitRows;  // readable after one call

class RealModel : public ::testing::TestWithParam<RealFile> {
 protected:
  void SetUp() override {
    path_ = find_real_file(GetParam());
    if (path_.empty()) GTEST_SKIP() << absent_text(GetParam());
    auto golden = load_golden(kFolder + "/" + GetParam().name + ".golden.json");
    ASSERT_TRUE(golden.is_ok()) << golden.status().text();
    golden_ = golden.take();
    ASSERT_EQ(golden_.model, GetParam().file);
  }
  Loaded open(sharpi_arithmetic arithmetic, sharpi_kv_dtype kv = SHARPI_KV_F32) const {
    return open(arithmetic, kv, kv);
  }
  Loaded open(sharpi_arithmetic arithmetic, sharpi_kv_dtype k, sharpi_kv_dtype v,
              bool deterministic = false, uint32_t n_chunk = 256) const {
    ModelSetup setup;
    setup.edit = [=](sharpi_plan_params* p, sharpi_session_params* s) {
      p->arithmetic = arithmetic;
      p->max_logit_rows = std::min(kRows, n_chunk);
      p->n_chunk = n_chunk;
      p->deterministic = deterministic ? 1 : 0;
      s->n_ctx = 2048;
      s->k_dtype = k;
      s->v_dtype = v;
    };
    return load(path_, setup);
  }
  /// The tokens of the book that the golden's perplexity is of.
  std::vector<int32_t> book(const Loaded& loaded) const {
    std::vector<int32_t> tokens = tokens_of(loaded.model.get(), read_text(kFolder + "/alice.txt"));
    EXPECT_GE(tokens.size(), golden_.perplexity.n_tokens);
    tokens.resize(golden_.perplexity.n_tokens);
    return tokens;
  }
  bool begins_with_bos() const {
    // The first case begins as the file wants texts to begin.
    return golden_.arch == "gemma3";
  }

  std::string path_;
  Golden golden_;
};

uint64_t hash_of(const std::vector<int32_t>& tokens) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const int32_t t : tokens) {
    for (int i = 0; i < 4; ++i) {
      h = (h ^ ((static_cast<uint32_t>(t) >> (8 * i)) & 0xFFu)) * 0x100000001B3u;
    }
  }
  return h;
}

TEST_P(RealModel, TokensAreTheReferences) {
  const Loaded loaded = open(SHARPI_ARITHMETIC_FAST);
  const std::vector<int32_t> tokens = book(loaded);
  std::vector<int32_t> first = golden_.cases[0].tokens;
  if (begins_with_bos()) {
    EXPECT_EQ(first[0], loaded.info.bos);
    EXPECT_EQ(tokens_of(loaded.model.get(), "a", SHARPI_TOKENIZE_ADD_SPECIAL)[0], loaded.info.bos);
    first.erase(first.begin());
  }
  for (size_t i = 0; i < first.size(); ++i) ASSERT_EQ(tokens[i], first[i]) << i;
  EXPECT_EQ(hash_of(tokens), golden_.perplexity.hash);
  for (const GoldenCase& c : golden_.cases) {
    EXPECT_EQ(tokens_of(loaded.model.get(), text_of_tokens(loaded.model.get(), c.tokens),
                        begins_with_bos() ? SHARPI_TOKENIZE_ADD_SPECIAL : 0),
              c.tokens);
  }
}

TEST_P(RealModel, ExactLogitsAgreeAtEveryPosition) {
  const Loaded loaded = open(SHARPI_ARITHMETIC_EXACT);
  ASSERT_GE(golden_.cases[0].tokens.size(), 200u);
  double worst = 0;
  for (size_t c = 0; c < golden_.cases.size(); ++c) {
    const GoldenCase& g = golden_.cases[c];
    Chat chat(loaded.model.get());
    const auto logits = chat.all_logits(g.tokens, kRows);
    for (size_t p = 0; p < logits.size(); ++p) {
      for (size_t i = 0; i < 5; ++i) {
        const double d =
            std::fabs(logits[p][static_cast<size_t>(g.top5[p][i])] - g.top5_logits[p][i]);
        worst = std::max(worst, d);
        ASSERT_LE(d, 2e-3) << "case " << c << " position " << p << " token " << g.top5[p][i];
      }
    }
  }
  RecordProperty("worst", std::to_string(worst));
}

TEST_P(RealModel, ExactGreedyContinuationIsTheReferences) {
  const Loaded loaded = open(SHARPI_ARITHMETIC_EXACT);
  size_t n = 0;
  for (const GoldenCase& g : golden_.cases) {
    Chat chat(loaded.model.get());
    chat.prefill(g.tokens);
    EXPECT_EQ(chat.greedy(static_cast<uint32_t>(g.greedy.size())), g.greedy);
    n += g.greedy.size();
  }
  EXPECT_GE(n, 60u) << "the continuations end early, at near ties";
}

/// The reference has the sums of the first two windows by themselves. perplexity_test goes over the
/// whole text in `fast`.
TEST_P(RealModel, ExactPerplexityOfTwoWindowsIsTheReferences) {
  const GoldenPerplexity& g = golden_.perplexity;
  ASSERT_EQ(g.window_sums.size(), 2u);
  const Loaded exact = open(SHARPI_ARITHMETIC_EXACT);
  const std::vector<int32_t> tokens = book(exact);
  const Turn turn(golden_.arch.size(), 2);
  for (size_t w = 0; w < g.window_sums.size(); ++w) {
    if (!turn.has(w)) continue;
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(w * g.window);
    std::vector<int32_t> window(first, first + g.window);
    if (begins_with_bos()) window.insert(window.begin(), exact.info.bos);
    TextReader reader(exact);
    ASSERT_NO_FATAL_FAILURE(reader.read(window));
    EXPECT_NEAR(reader.sum() / g.window_sums[w], 1.0, 1e-4) << "window " << w;
  }
}

std::vector<double> probabilities(const std::vector<float>& logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  double all = 0;
  for (const float v : logits) {
    p.push_back(std::exp(static_cast<double>(v - top)));
    all += p.back();
  }
  for (double& v : p) v /= all;
  return p;
}

/// How far predictions are from others of the same tokens.
struct Nearness {
  double divergence = 0;  // mean KL in nats
  double same_best = 0;   // share of positions with the same likeliest token
};
Nearness nearness(const std::vector<std::vector<float>>& want,
                  const std::vector<std::vector<float>>& got) {
  Nearness sum;
  for (size_t r = 0; r < want.size(); ++r) {
    const std::vector<double> p = probabilities(want[r]), q = probabilities(got.at(r));
    for (size_t i = 0; i < p.size(); ++i) {
      if (p[i] > 0) sum.divergence += p[i] * std::log(p[i] / std::max(q[i], 1e-300));
    }
    const auto best = [](const std::vector<double>& x) {
      return std::max_element(x.begin(), x.end()) - x.begin();
    };
    sum.same_best += best(p) == best(q) ? 1 : 0;
  }
  const auto n = static_cast<double>(want.size());
  return {sum.divergence / n, sum.same_best / n};
}

/// What int8 activations cost: bench/quality_bench has 0.003 and 0.002 nats, and 96%
/// (docs/real_models.md).
TEST_P(RealModel, FastPredictionsStayNearTheExactOnes) {
  const Loaded exact = open(SHARPI_ARITHMETIC_EXACT), fast = open(SHARPI_ARITHMETIC_FAST);
  const std::vector<int32_t>& tokens = golden_.cases[0].tokens;
  Chat a(exact.model.get()), b(fast.model.get());
  const Nearness near = nearness(a.all_logits(tokens, kRows), b.all_logits(tokens, kRows));
  RecordProperty("mean_divergence", std::to_string(near.divergence));
  RecordProperty("same_best", std::to_string(near.same_best));
  EXPECT_GT(near.divergence, 0) << "fast arithmetic is not used";
  EXPECT_LE(near.divergence, 0.006);
  EXPECT_GE(near.same_best, 0.92);
}

/// K and V rows, and between which bounds the mean KL from f32 rows lies, around what
/// bench/quality_bench has over 4096 tokens of either model (docs/real_models.md). They are apart,
/// so that rows of another codec are found.
struct CodecBound {
  const char* name;
  sharpi_kv_dtype k, v;
  double least, most, same_best;
};
constexpr CodecBound kCodecBounds[] = {
    {"bf16", SHARPI_KV_BF16, SHARPI_KV_BF16, 1e-5, 3e-4, 0.96},
    {"q8_0", SHARPI_KV_Q8_0, SHARPI_KV_Q8_0, 4e-4, 3e-3, 0.95},
    {"q8_0_q4", SHARPI_KV_Q8_0, SHARPI_KV_Q4, 3.2e-3, 0.022, 0.85},
    {"q4", SHARPI_KV_Q4, SHARPI_KV_Q4, 0.025, 0.25, 0.65},
};

TEST_P(RealModel, RowsOfEveryCodecStayNearThoseOfF32) {
  std::vector<int32_t> tokens = golden_.cases[0].tokens;
  tokens.resize(96);
  std::vector<std::vector<float>> want;
  {
    const Loaded wide = open(SHARPI_ARITHMETIC_EXACT);
    want = Chat(wide.model.get()).all_logits(tokens, kRows);
  }
  for (const CodecBound& c : kCodecBounds) {
    const Loaded narrow = open(SHARPI_ARITHMETIC_EXACT, c.k, c.v);
    const Nearness near = nearness(want, Chat(narrow.model.get()).all_logits(tokens, kRows));
    RecordProperty(std::string("divergence_") + c.name, std::to_string(near.divergence));
    RecordProperty(std::string("same_best_") + c.name, std::to_string(near.same_best));
    EXPECT_GE(near.divergence, c.least) << c.name;
    EXPECT_LE(near.divergence, c.most) << c.name;
    EXPECT_GE(near.same_best, c.same_best) << c.name;
  }
}

/// bench/text_needles has longer texts and all policies.
TEST_P(RealModel, CompactionKeepsANumberThatABookHides) {
  ModelSetup setup;
  setup.edit = [](sharpi_plan_params*, sharpi_session_params* s) { s->capture_window = 64; };
  const Loaded loaded = load(path_, setup);
  const auto tokens = [&](const std::string& text, uint32_t flags = 0) {
    return tokens_of(loaded.model.get(), text, flags);
  };
  const std::string alice = read_text(kFolder + "/alice.txt"),
                    said = "The secret number of Oslo is";
  const size_t cut = alice.find("\n\n", 1200) + 2, end = alice.find("\n\n", 2400) + 2;
  const auto text =
      tokens(alice.substr(0, cut) + said + " 48213.\n\n" + alice.substr(cut, end - cut),
             SHARPI_TOKENIZE_ADD_SPECIAL);
  const auto question = tokens(said);
  auto answer = tokens(said + " 48213");
  answer.erase(answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(question.size()));
  for (const bool by_probe : {false, true}) {
    Chat chat(loaded.model.get());
    chat.prefill(text);
    if (!by_probe) chat.prefill(question);
    sharpi_compact_params p =
        compact_params(SHARPI_POLICY_AUTO, static_cast<uint32_t>(text.size() / 4));
    if (by_probe) {
      p.probe = question.data();
      p.n_probe = static_cast<uint32_t>(question.size());
    }
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_compact(chat.get(), &p, nullptr, &e), SHARPI_OK) << text_of(e);
    EXPECT_EQ(chat.info().n_slots_max, text.size() / 4);
    if (by_probe) chat.prefill(question);
    EXPECT_EQ(chat.greedy(static_cast<uint32_t>(answer.size())), answer) << by_probe;
  }
}

TEST_P(RealModel, DecodePrefillAndChunksAreOneComputation) {
  const std::vector<int32_t> tokens(golden_.cases[0].tokens.begin(),
                                    golden_.cases[0].tokens.begin() + 48);
  const Loaded whole =
      open(SHARPI_ARITHMETIC_FAST, SHARPI_KV_F32, SHARPI_KV_F32, /*deterministic=*/true);
  Chat a(whole.model.get());
  const auto want = a.all_logits(tokens, kRows);
  const auto expect_same = [&](const std::vector<std::vector<float>>& got, const char* how) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t p = 0; p < want.size(); ++p) ASSERT_EQ(got[p], want[p]) << how << " position " << p;
  };
  Chat b(whole.model.get());
  expect_same(b.all_logits(tokens, 7), "calls of 7 tokens");
  Chat c(whole.model.get());
  expect_same(c.all_logits(tokens, 1), "calls of one token");
  const Loaded chunks = open(SHARPI_ARITHMETIC_FAST, SHARPI_KV_F32, SHARPI_KV_F32,
                             /*deterministic=*/true, /*n_chunk=*/16);
  Chat d(chunks.model.get());
  d.prefill(tokens, 16);
  for (uint32_t i = 0; i < 16; ++i) {
    ASSERT_EQ(d.logits(i), want[want.size() - 1 - i]) << "chunks of 16, row " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, RealModel, ::testing::Values(kSmolLm2, kGemma3),
                         [](const auto& row) {
                           std::string name = row.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// The greedy answer to one question, in the turns of the model's own template, which has a system
/// turn of its own.
std::string answer(const Loaded& loaded, const std::string& question) {
  sharpi_message message{};
  message.role = "user";
  message.content = question.c_str();
  message.content_len = question.size();
  sharpi_chat_params params;
  sharpi_chat_params_init(&params, sizeof params);
  params.messages = &message;
  params.n_messages = 1;
  std::vector<int32_t> prompt(question.size() + 256);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_chat_tokenize(loaded.model.get(), &params, prompt.data(),
                                 static_cast<uint32_t>(prompt.size()), &n, &e),
            SHARPI_OK)
      << text_of(e);
  prompt.resize(n);
  EXPECT_EQ(prompt, tokens_of(loaded.model.get(),
                              "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
                              "trained by Hugging Face<|im_end|>\n<|im_start|>user\n" +
                                  question + "<|im_end|>\n<|im_start|>assistant\n",
                              SHARPI_TOKENIZE_PARSE_SPECIAL));
  Chat chat(loaded.model.get());
  chat.prefill(prompt);
  std::vector<int32_t> said;
  for (int i = 0; i < 40; ++i) {
    const int32_t token = chat.argmax();
    if (sharpi_token_is_end(loaded.model.get(), token) != 0) break;
    said.push_back(token);
    chat.decode(token);
  }
  return text_of_tokens(loaded.model.get(), said);
}

TEST(RealChat, SmolLm2AnswersArithmeticAndAFactOfTheContext) {
  const std::string path = find_real_file(kSmolLm2);
  if (path.empty()) GTEST_SKIP() << absent_text(kSmolLm2);
  // In `fast` a model of this size has near ties that the instruction set decides.
  ModelSetup setup;
  setup.edit = [](sharpi_plan_params* p, sharpi_session_params*) {
    p->arithmetic = SHARPI_ARITHMETIC_EXACT;
  };
  const Loaded loaded = load(path, setup);
  ASSERT_TRUE(loaded.model);
  const std::string sum = answer(loaded, "What is 2 + 2?");
  EXPECT_NE(sum.find(" 4."), std::string::npos) << sum;
  const std::string fact =
      answer(loaded, "My name is Clara and my dog is called Biscuit. What is my dog called?");
  EXPECT_EQ(fact.find("Biscuit"), 0u) << fact;
}

}  // namespace
}  // namespace sharpi::testing
