// SPDX-License-Identifier: MIT
// What single draws take besides the sampler: masks, biases, log-probabilities, work meanwhile.
#include <cmath>
#include <numeric>

#include "engine/engine_case.h"

namespace sharpi::testing {
namespace {

sharpi_sample_params sample_defaults() {
  sharpi_sample_params p;
  sharpi_sample_params_init(&p, sizeof p);
  return p;
}

/// A mask with exactly these tokens.
std::vector<uint32_t> mask_of(uint32_t n_vocab, const std::vector<int32_t>& tokens) {
  std::vector<uint32_t> words((n_vocab + 31) / 32);
  for (const int32_t t : tokens) {
    words[static_cast<size_t>(t) / 32] |= 1u << (static_cast<uint32_t>(t) % 32);
  }
  return words;
}

class Sample : public ModelTest {
 protected:
  void SetUp() override {
    ModelTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    loaded_ = load(path());
    prompt_ = golden_.cases.front().tokens;
  }
  Chat ready(uint64_t seed = 0, float temperature = 1.0f, uint32_t top_k = 40) {
    Chat chat(loaded_.model.get());
    sharpi_sampler_params p;
    sharpi_sampler_params_init(&p, sizeof p);
    p.seed = seed, p.temperature = temperature, p.top_k = top_k;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_set_sampler(chat.get(), &p, &e), SHARPI_OK) << text_of(e);
    chat.prefill(prompt_);
    return chat;
  }
  static int32_t draw(const Chat& chat, const sharpi_sample_params& p) {
    int32_t token = -1;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_sample(chat.get(), &p, &token, &e), SHARPI_OK) << text_of(e);
    return token;
  }
  /// Ids by logit, best first.
  static std::vector<int32_t> by_logit(const Logits& l) {
    std::vector<int32_t> ids(l.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      return l[static_cast<size_t>(a)] > l[static_cast<size_t>(b)];
    });
    return ids;
  }
  Loaded loaded_;
  std::vector<int32_t> prompt_;
};
INSTANTIATE_TEST_SUITE_P(Models, Sample, ::testing::ValuesIn(trained_models()), model_name);

TEST_P(Sample, GreedyTakesTheBestAllowedToken) {
  const Chat chat = ready(0, 0.0f);
  const std::vector<int32_t> best = by_logit(chat.logits());
  const uint32_t n = chat.n_vocab();
  EXPECT_EQ(draw(chat, sample_defaults()), best[0]);
  for (const size_t rank : {size_t{1}, size_t{7}, size_t{100}, best.size() - 300}) {
    // Everything from this rank down, then a few tokens alone.
    const std::vector<uint32_t> below =
        mask_of(n, {best.begin() + static_cast<ptrdiff_t>(rank), best.end()});
    const std::vector<uint32_t> few = mask_of(n, {best[rank], best[rank + 3]});
    for (const auto* mask : {&below, &few}) {
      sharpi_sample_params p = sample_defaults();
      p.allowed_mask = mask->data();
      p.mask_words = static_cast<uint32_t>(mask->size());
      EXPECT_EQ(draw(chat, p), best[rank]) << rank;
    }
  }
}

/// The same random number decides among the same tokens, whether the mask is read where the logits
/// are or the row is brought over: a bias of -inf on all others takes the second way.
/// A tier may find the best logits with the pass that makes them, once a draw has asked for some. A
/// fork's are read when it draws.
TEST_P(Sample, DrawsAreOfTheLogitsThatAreThere) {
  for (const bool greedy : {true, false}) {
    Chat chat = ready(9, greedy ? 0.0f : 1.0f, greedy ? 0 : 40);
    const auto expect_same = [&](const char* when) {
      const Chat fork = chat.fork();
      const int32_t drawn = draw(chat, sample_defaults());
      EXPECT_EQ(drawn, draw(fork, sample_defaults())) << when;
      if (greedy) {
        EXPECT_EQ(drawn, chat.argmax()) << when;
      }
    };
    expect_same("behind the prompt");
    chat.decode(prompt_[0]);
    expect_same("behind a token");
    const std::vector<char> blob = saved(chat);
    chat.prefill({prompt_[1], prompt_[2], prompt_[3]});
    expect_same("behind three tokens");
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_restore(chat.get(), blob.data(), blob.size(), &e), SHARPI_OK)
        << text_of(e);
    expect_same("behind what was restored");
    chat.prefill({prompt_[1], prompt_[2], prompt_[3]}, 2);
    expect_same("of two rows the first");
  }
}

TEST_P(Sample, AMaskDrawsWhatABiasOfAllOthersDraws) {
  for (const uint32_t top_k : {40u, 5u, 0u}) {
    const Chat masked = ready(11, 1.0f, top_k), biased = ready(11, 1.0f, top_k);
    const std::vector<int32_t> best = by_logit(masked.logits());
    for (const size_t n_allowed : {size_t{1}, size_t{3}, size_t{12}, size_t{400}}) {
      std::vector<int32_t> allowed, others;
      for (size_t i = 0; i < best.size(); ++i) {
        (i % 3 == 1 && allowed.size() < n_allowed ? allowed : others).push_back(best[i]);
      }
      const std::vector<uint32_t> mask = mask_of(masked.n_vocab(), allowed);
      const std::vector<float> never(others.size(), -INFINITY);
      sharpi_sample_params by_mask = sample_defaults(), by_bias = sample_defaults();
      by_mask.allowed_mask = mask.data();
      by_mask.mask_words = static_cast<uint32_t>(mask.size());
      by_bias.bias_tokens = others.data();
      by_bias.bias_values = never.data();
      by_bias.n_bias = static_cast<uint32_t>(others.size());
      for (int i = 0; i < 8; ++i) {
        const int32_t token = draw(masked, by_mask);
        EXPECT_EQ(token, draw(biased, by_bias)) << n_allowed << " of top " << top_k;
        EXPECT_NE(std::find(allowed.begin(), allowed.end(), token), allowed.end());
      }
    }
  }
}

TEST_P(Sample, LogProbabilitiesAreTheSoftmaxOfTheLogits) {
  const Chat chat = ready(5);
  const Logits l = chat.logits();
  const std::vector<int32_t> best = by_logit(l);
  double sum = 0;
  for (const float x : l) sum += std::exp(static_cast<double>(x));
  const auto want = [&](int32_t t) {
    return static_cast<double>(l[static_cast<size_t>(t)]) - std::log(sum);
  };
  std::vector<sharpi_logprob> out(6, {-7, 1.0f});
  sharpi_sample_params p = sample_defaults();
  p.logprobs = out.data();
  p.n_logprobs = 5;
  const int32_t token = draw(chat, p);
  EXPECT_EQ(token, draw(ready(5), sample_defaults())) << "log-probabilities change no draw";
  EXPECT_EQ(out[0].token, token);
  EXPECT_NEAR(static_cast<double>(out[0].logprob), want(token), 1e-4);
  for (size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(out[i].token, best[i - 1]);
    EXPECT_NEAR(static_cast<double>(out[i].logprob), want(best[i - 1]), 1e-4);
  }
  EXPECT_EQ(out[5].token, -7) << "no more than n_logprobs entries are written";
  p.n_logprobs = 1;
  draw(chat, p);
  EXPECT_EQ(out[1].token, best[0]) << "one entry is the token alone";
}

struct Heard {
  int n = 0;
  int32_t token = -1;
  sharpi_session* session = nullptr;
  sharpi_status nested = 1;
  static void work(void* user, int32_t token) {
    auto* h = static_cast<Heard*>(user);
    ++h->n;
    h->token = token;
    sharpi_error e = SHARPI_ERROR_INIT;
    h->nested = sharpi_session_decode(h->session, 1, &e);
  }
};

TEST_P(Sample, StepsTellTheTokenMeanwhileOnce) {
  const Chat chat = ready(3), plain = ready(3);
  Heard heard;
  heard.session = chat.get();
  sharpi_sample_params p = sample_defaults();
  p.meanwhile = Heard::work;
  p.user_data = &heard;
  sharpi_error e = SHARPI_ERROR_INIT;
  for (int i = 0; i < 3; ++i) {
    int32_t a = -1, b = -2;
    uint32_t n = 0;
    ASSERT_EQ(sharpi_session_step(chat.get(), &p, &a, 1, &n, &e), SHARPI_OK) << text_of(e);
    ASSERT_EQ(sharpi_session_step(plain.get(), nullptr, &b, 1, &n, &e), SHARPI_OK) << text_of(e);
    ASSERT_EQ(a, b);
    if (sharpi_token_is_end(loaded_.model.get(), a)) break;
    EXPECT_EQ(heard.n, i + 1);
    EXPECT_EQ(heard.token, a);
    EXPECT_EQ(heard.nested, SHARPI_E_BUSY) << "the session is in use";
  }
  EXPECT_TRUE(same_bits(chat.logits(), plain.logits()));
  int32_t token = 0;
  EXPECT_EQ(sharpi_session_sample(chat.get(), &p, &token, &e), SHARPI_E_INVALID_ARGUMENT);
  EXPECT_NE(std::string(e.text).find("meanwhile"), std::string::npos) << e.text;
}

TEST_P(Sample, WhatIsWrongIsNamedAndDrawsNothing) {
  const Chat chat = ready(9), twin = ready(9);
  const std::vector<uint32_t> none((chat.n_vocab() + 31) / 32);
  const int32_t outside = static_cast<int32_t>(chat.n_vocab());
  const float nan = NAN, one = 1.0f;
  sharpi_logprob room[1];
  struct Case {
    std::function<void(sharpi_sample_params*)> edit;
    sharpi_status status;
    const char* says;
  };
  const Case cases[] = {
      {[&](auto* p) { p->allowed_mask = none.data(), p->mask_words = uint32_t(none.size()); },
       SHARPI_E_STATE, "allowed_mask leaves none"},
      {[&](auto* p) { p->allowed_mask = none.data(); }, SHARPI_E_INVALID_ARGUMENT,
       "allowed_mask is set but mask_words is 0"},
      {[&](auto* p) { p->mask_words = 1; }, SHARPI_E_INVALID_ARGUMENT, "allowed_mask is null"},
      {[&](auto* p) { p->n_bias = 1; }, SHARPI_E_INVALID_ARGUMENT, "bias_tokens is null"},
      {[&](auto* p) { p->n_bias = 1, p->bias_tokens = &outside, p->bias_values = &one; },
       SHARPI_E_INVALID_ARGUMENT, "outside the vocabulary"},
      {[&](auto* p) { p->n_bias = 1, p->bias_tokens = prompt_.data(), p->bias_values = &nan; },
       SHARPI_E_INVALID_ARGUMENT, "bias_values[0]"},
      {[&](auto* p) { p->n_logprobs = 1; }, SHARPI_E_INVALID_ARGUMENT, "logprobs is null"},
      {[&](auto* p) { p->logprobs = room, p->n_logprobs = chat.n_vocab() + 1; },
       SHARPI_E_INVALID_ARGUMENT, "n_logprobs"},
  };
  for (const Case& c : cases) {
    sharpi_sample_params p = sample_defaults();
    c.edit(&p);
    sharpi_error e = SHARPI_ERROR_INIT;
    int32_t token = -5;
    uint32_t n = 0;
    EXPECT_EQ(sharpi_session_sample(chat.get(), &p, &token, &e), c.status) << text_of(e);
    EXPECT_NE(std::string(e.text).find(c.says), std::string::npos) << e.text;
    EXPECT_EQ(sharpi_session_step(chat.get(), &p, &token, 1, &n, &e), c.status) << text_of(e);
    EXPECT_EQ(n, 0u);
    EXPECT_EQ(token, -5);
  }
  EXPECT_EQ(draw(chat, sample_defaults()), draw(twin, sample_defaults()));
}

TEST_P(Sample, TokensSayTheirBytesAndWhatTheyAre) {
  const sharpi_model* model = loaded_.model.get();
  sharpi_error e = SHARPI_ERROR_INIT;
  char text[256];
  size_t n = 0;
  uint32_t n_control = 0, n_end = 0;
  for (int32_t t = 0; t < static_cast<int32_t>(loaded_.info.n_vocab); ++t) {
    const uint32_t a = sharpi_token_attributes(model, t);
    ASSERT_EQ(sharpi_token_bytes(model, t, text, sizeof text, &n, &e), SHARPI_OK) << text_of(e);
    EXPECT_EQ((a & SHARPI_TOKEN_END) != 0, sharpi_token_is_end(model, t) == 1) << t;
    n_control += (a & SHARPI_TOKEN_CONTROL) != 0;
    n_end += (a & SHARPI_TOKEN_END) != 0;
    if ((a & SHARPI_TOKEN_CONTROL) != 0) {
      EXPECT_GT(n, 0u) << "a control token is spelled: " << t;
      continue;
    }
    char plain[256];
    size_t length = 0;
    ASSERT_EQ(sharpi_detokenize(model, &t, 1, 0, plain, sizeof plain, &length, &e), SHARPI_OK);
    EXPECT_EQ(std::string(text, n), std::string(plain, length)) << t;
  }
  EXPECT_GT(n_control, 0u);
  EXPECT_GT(n_end, 0u);
  EXPECT_EQ(sharpi_token_attributes(model, -1), 0u);
  EXPECT_EQ(sharpi_token_attributes(nullptr, 1), 0u);
  EXPECT_EQ(sharpi_token_bytes(model, -1, text, sizeof text, &n, &e), SHARPI_E_INVALID_ARGUMENT);
}

/// A GPU finds the best of a row where it lies, up to some length; of a longer row the host does,
/// whose draws are the same. A bias always takes the second way.
TEST(LongVocabulary, IsSampledFromLikeAnyOther) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_vocab = 400000;
  recipe.tied = true;
  recipe.table_type = GgmlType::kQ8_0;
  const MadeModel file(recipe);
  const Loaded l = load(file.path());
  for (const float temperature : {0.0f, 1.0f}) {
    Chat plain(l.model.get()), biased(l.model.get());
    sharpi_sampler_params p;
    sharpi_sampler_params_init(&p, sizeof p);
    p.seed = 7, p.temperature = temperature, p.top_k = 40;
    sharpi_error e = SHARPI_ERROR_INIT;
    for (Chat* chat : {&plain, &biased}) {
      ASSERT_EQ(sharpi_session_set_sampler(chat->get(), &p, &e), SHARPI_OK) << text_of(e);
      chat->prefill(file.tokens(12));
    }
    const Logits logits = plain.logits();
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    const int32_t token = best == 0 ? 1 : 0;
    const float nothing = 0.0f;
    sharpi_sample_params with_bias = sample_defaults();
    with_bias.bias_tokens = &token;
    with_bias.bias_values = &nothing;
    with_bias.n_bias = 1;
    for (int i = 0; i < 8; ++i) {
      int32_t a = -1, b = -2;
      const sharpi_sample_params none = sample_defaults();
      ASSERT_EQ(sharpi_session_sample(plain.get(), &none, &a, &e), SHARPI_OK) << text_of(e);
      ASSERT_EQ(sharpi_session_sample(biased.get(), &with_bias, &b, &e), SHARPI_OK) << text_of(e);
      EXPECT_EQ(a, b);
      if (temperature == 0.0f) {
        EXPECT_EQ(a, best);
      }
    }
  }
}

}  // namespace
}  // namespace sharpi::testing
