// SPDX-License-Identifier: MIT
// Drafts do not change what is drawn: the token behind a token has the distribution of the model's
// row under the sampler's settings, whatever the host guessed, and a guess is accepted as often as
// the model would draw it. By chi-square over many passes from the same place, whoever guesses: the
// host, the session's own text, the MTP block, another model.
#include <numeric>

#include "api/api_handles.h"
#include "draft_case.h"
#include "engine/draft_ngram.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kPrompt = 9, kDraws = 25000;
constexpr int32_t kToken = 17;

struct Settings {
  float temperature;
  uint32_t top_k;
  float top_p;
};

/// As small as models get, for they read hundreds of thousands of tokens. Of some seeds one token
/// gets nearly all of the chance, and then a few wrong draws in a hundred would not be noticed; not
/// of this.
test::ModelRecipe smallest(test::ModelRecipe recipe) {
  recipe.n_embd = recipe.d_ff = recipe.head_dim = 32;
  recipe.n_heads = 2, recipe.n_kv_heads = 1;
  recipe.seed = 5;
  return recipe;
}

/// Of each token, from the logits alone: the sampler's own code has no part in it.
std::vector<double> target_of(const Logits& logits, const Settings& s) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (s.top_k != 0) order.resize(std::min<size_t>(order.size(), s.top_k));
  const double best = logits[order[0]];
  std::vector<double> p;
  for (const size_t id : order) p.push_back(std::exp((logits[id] - best) / s.temperature));
  const double all = std::accumulate(p.begin(), p.end(), 0.0);
  double sum = 0;
  size_t n = 0;
  while (n < p.size() && (n == 0 || sum < s.top_p)) sum += p[n++] / all;
  std::vector<double> out(logits.size());
  for (size_t i = 0; i < n; ++i) out[order[i]] = p[i] / all / sum;
  return out;
}

/// Chi-square of counts against what is expected, and its bound: four deviations. Rare tokens count
/// together.
struct Fit {
  double chi = 0;
  int cells = -1;
  double bound() const {  // by the cube root, which is nearly normal (Wilson and Hilferty 1931)
    const double v = 2.0 / (9.0 * cells);
    return cells * std::pow(1 - v + 4 * std::sqrt(v), 3);
  }
};

Fit fit_of(const std::vector<uint32_t>& counts, const std::vector<double>& target) {
  Fit fit;
  const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
  double rare_expected = 0, rare_seen = 0;
  const auto add = [&](double seen, double expected) {
    fit.chi += (seen - expected) * (seen - expected) / expected;
    ++fit.cells;
  };
  for (size_t t = 0; t < counts.size(); ++t) {
    const double expected = target[t] * all;
    EXPECT_TRUE(target[t] != 0 || counts[t] == 0) << "token " << t << " is never drawn";
    if (expected >= 20) {
      add(counts[t], expected);
    } else {
      rare_expected += expected, rare_seen += counts[t];
    }
  }
  if (rare_expected >= 20) add(rare_seen, rare_expected);
  return fit;
}

void expect_drawn_from(const std::vector<uint32_t>& counts, const std::vector<double>& target) {
  const Fit fit = fit_of(counts, target);
  ASSERT_GE(fit.cells, 2);
  EXPECT_LT(fit.chi, fit.bound()) << fit.cells + 1 << " kinds of tokens";
}

TEST(DraftDistribution, IsTheTargetsWhateverIsGuessed) {
  const MadeModel file(smallest(test::tiny_qwen3()));
  const Loaded loaded = load(file.path(), setup_with(
                                              [](sharpi_plan_params* p, sharpi_session_params* s) {
                                                p->deterministic = 1, p->n_chunk = 32,
                                                p->n_sessions = 1;
                                                s->n_ctx = 64, s->n_draft = 2;
                                              },
                                              1));
  ASSERT_TRUE(loaded.model);
  Chat chat(loaded.model.get());
  chat.prefill(file.tokens(kPrompt));
  chat.decode(kToken);
  const Logits row = chat.logits();
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_truncate(chat.get(), kPrompt, &e), SHARPI_OK) << e.text;
  uint64_t seed = 1;
  for (const Settings& s : {Settings{1.0f, 0, 1.0f}, Settings{0.7f, 8, 1.0f},
                            Settings{1.3f, 0, 0.6f}, Settings{0.5f, 20, 0.9f}}) {
    const std::vector<double> target = target_of(row, s);
    const auto best =
        static_cast<int32_t>(std::max_element(target.begin(), target.end()) - target.begin());
    const auto worst = static_cast<int32_t>(std::min_element(row.begin(), row.end()) - row.begin());
    for (const int32_t guess : {best, worst}) {
      SCOPED_TRACE("temperature " + std::to_string(s.temperature) + ", top_k " +
                   std::to_string(s.top_k) + ", top_p " + std::to_string(s.top_p) +
                   (guess == best ? ", the best guess" : ", wrong on purpose"));
      sharpi_sampler_params p;
      sharpi_sampler_params_init(&p, sizeof p);
      p.temperature = s.temperature, p.top_k = s.top_k, p.top_p = s.top_p, p.min_p = 0;
      p.repeat_penalty = 1, p.seed = seed++;
      ASSERT_EQ(sharpi_session_set_sampler(chat.get(), &p, &e), SHARPI_OK) << e.text;
      const std::array<int32_t, 2> tokens = {kToken, guess};
      std::vector<uint32_t> counts(row.size());
      uint32_t n_accepted = 0;
      for (uint32_t i = 0; i < kDraws; ++i) {
        uint32_t read = 0;
        int32_t behind = guess;
        ASSERT_EQ(sharpi_session_verify(chat.get(), tokens.data(), 2, nullptr, &read, &e),
                  SHARPI_OK);
        if (read == 2) {
          ++n_accepted;
        } else {
          ASSERT_EQ(sharpi_session_sample(chat.get(), nullptr, &behind, &e), SHARPI_OK);
          ASSERT_NE(behind, guess);
        }
        ++counts[static_cast<size_t>(behind)];
        ASSERT_EQ(sharpi_session_truncate(chat.get(), kPrompt, &e), SHARPI_OK);
      }
      expect_drawn_from(counts, target);
      const double right = target[static_cast<size_t>(guess)];
      EXPECT_NEAR(n_accepted, right * kDraws, 4 * std::sqrt(kDraws * right * (1 - right)) + 1e-9);
    }
  }
}

// Drafters of the library. All texts are of seven tokens, and the sampler draws no others, so that
// the session's own text has something to say about every three of them.
constexpr std::array<int32_t, 7> kWords = {3, 17, 40, 77, 101, 150, 222};
constexpr uint32_t kText = 60;

std::vector<int32_t> text_of_words(uint32_t seed) {
  std::vector<int32_t> out;
  uint64_t x = seed;
  while (out.size() < kText) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    out.push_back(kWords[(x >> 33) % kWords.size()]);
  }
  // Behind the last two and kToken it has 77 and 101.
  out.insert(out.end(), {40, 3, kToken, 77, 101, 40, 3});
  return out;
}

/// words_only: every token that is not among the words is forbidden.
void use_words(const Chat& chat, const Settings& s, bool words_only, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int32_t t = 0; words_only && t < static_cast<int32_t>(chat.n_vocab()); ++t) {
    if (std::find(kWords.begin(), kWords.end(), t) == kWords.end()) ids.push_back(t);
  }
  const std::vector<float> never(ids.size(), -INFINITY);
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  p.temperature = s.temperature, p.top_k = s.top_k, p.top_p = s.top_p, p.min_p = 0;
  p.repeat_penalty = 1, p.seed = seed;
  p.n_bias = static_cast<uint32_t>(ids.size());
  p.bias_tokens = ids.data(), p.bias_values = never.data();
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_set_sampler(chat.get(), &p, &e), SHARPI_OK) << e.text;
}

/// What may be drawn behind the session's tokens and these, and how often.
std::vector<double> target_behind(Chat& chat, const std::vector<int32_t>& tokens, const Settings& s,
                                  bool words_only) {
  const uint32_t before = chat.info().n_tokens;
  for (const int32_t t : tokens) chat.decode(t);
  Logits row = chat.logits();
  for (size_t t = 0; words_only && t < row.size(); ++t) {
    if (std::find(kWords.begin(), kWords.end(), static_cast<int32_t>(t)) == kWords.end()) {
      row[t] = -INFINITY;
    }
  }
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_truncate(chat.get(), before, &e), SHARPI_OK) << e.text;
  return target_of(row, s);
}

/// Guesses behind kToken.
using Drafter = std::function<std::vector<int32_t>()>;

/// kDraws passes over kToken and two guesses: what is drawn behind the first, and, where the first
/// guess was right, behind the second.
void expect_targets(Chat& chat, const Drafter& draft, const Settings& s, bool words_only,
                    uint64_t seed) {
  use_words(chat, s, words_only, seed);
  const uint32_t before = chat.info().n_tokens;
  const std::vector<int32_t> guess = draft();
  ASSERT_EQ(guess.size(), 2u);
  const std::vector<double> target = target_behind(chat, {kToken}, s, words_only);
  std::vector<uint32_t> first(chat.n_vocab()), second(chat.n_vocab());
  uint32_t n_accepted = 0;
  for (uint32_t i = 0; i < kDraws; ++i) {
    const std::vector<int32_t> drafts = draft();
    ASSERT_EQ(drafts, guess) << "the text is the same";
    std::vector<int32_t> read = verified(chat, {kToken, drafts[0], drafts[1]});
    if (read.size() < 3) read.push_back(drawn(chat));
    ++first[static_cast<size_t>(read[1])];
    if (read[1] == guess[0]) {
      ++n_accepted;
      ++second[static_cast<size_t>(read.at(2))];
    }
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_truncate(chat.get(), before, &e), SHARPI_OK) << e.text;
  }
  expect_drawn_from(first, target);
  const double right = target[static_cast<size_t>(guess[0])];
  EXPECT_NEAR(n_accepted, right * kDraws, 4 * std::sqrt(kDraws * right * (1 - right)) + 1e-9);
  if (n_accepted >= 1000)
    expect_drawn_from(second, target_behind(chat, {kToken, guess[0]}, s, words_only));
  // Guesses that were accepted once more in fifty draws would be noticed.
  if (right == 0) return;
  std::vector<uint32_t> wrong = first;
  for (uint32_t& n : wrong) n -= n / 50;
  wrong[static_cast<size_t>(guess[0])] += kDraws / 50;
  const Fit fit = fit_of(wrong, target);
  EXPECT_GT(fit.chi, fit.bound());
}

Edit for_drafts(const std::string& drafter) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->deterministic = 1, p->n_chunk = 64, p->n_sessions = 1, p->n_gpu_layers = 0;
    s->n_ctx = 160, s->n_draft = 2;
    if (drafter.empty()) return;
    p->draft_path = drafter.c_str();
    s->drafters = SHARPI_DRAFT_MODEL;
  };
}

TEST(DraftDistribution, IsTheTargetsWhereTheTextDrafts) {
  const MadeModel file(smallest(test::tiny_qwen3()));
  const Loaded loaded = load(file.path(), setup_with(for_drafts(""), 1));
  ASSERT_TRUE(loaded.model);
  Chat chat(loaded.model.get());
  chat.prefill(text_of_words(5));
  NgramDrafter drafter(160);
  const auto draft = [&] {
    std::vector<int32_t> out(2);
    uint32_t match = 0;
    out.resize(drafter.propose(chat.get()->p->tokens(), kToken, 2, out.data(), &match));
    return out;
  };
  uint64_t seed = 100;
  for (const Settings& s : {Settings{1.0f, 0, 1.0f}, Settings{0.7f, 5, 1.0f},
                            Settings{1.5f, 0, 0.8f}, Settings{0.9f, 6, 0.95f}}) {
    SCOPED_TRACE("temperature " + std::to_string(s.temperature) + ", top_k " +
                 std::to_string(s.top_k) + ", top_p " + std::to_string(s.top_p));
    expect_targets(chat, draft, s, true, seed++);
  }
}

/// `drafter`: the file of the model that drafts for `model`.
void expect_targets_of_model(const std::string& model, const std::string& drafter) {
  const Loaded loaded = load(model, setup_with(for_drafts(drafter), 1));
  ASSERT_TRUE(loaded.model);
  Chat chat(loaded.model.get());
  chat.prefill(text_of_words(6));
  const auto draft = [&] {
    Session& s = *chat.get()->p;
    std::vector<int32_t> out(2);
    Drafted drafted;
    EXPECT_TRUE(s.draft_model()
                    ->propose(s.tokens(), s.first_position(), kToken, 2, out.data(), &drafted)
                    .is_ok());
    out.resize(drafted.n);
    return out;
  };
  uint64_t seed = 200;
  for (const Settings& s : {Settings{1.0f, 0, 1.0f}, Settings{0.6f, 20, 0.9f}}) {
    SCOPED_TRACE("temperature " + std::to_string(s.temperature));
    expect_targets(chat, draft, s, false, seed++);
  }
}

TEST(DraftDistribution, IsTheTargetsWhereTheMtpBlockDrafts) {
  auto recipe = smallest(test::tiny_qwen35());
  recipe.n_mtp = 1;
  const MadeModel file(recipe);
  const Loaded loaded = load(file.path(), setup_with(
                                              [](sharpi_plan_params* p, sharpi_session_params* s) {
                                                for_drafts("")(p, s);
                                                s->n_checkpoints = 1;
                                                s->drafters = SHARPI_DRAFT_MTP;
                                              },
                                              1));
  ASSERT_TRUE(loaded.model);
  Chat chat(loaded.model.get());
  chat.prefill(text_of_words(7));
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_checkpoint(chat.get(), 1, &e), SHARPI_OK) << e.text;
  std::vector<float> scratch(chat.n_vocab());
  const auto draft = [&] {
    Session& s = *chat.get()->p;
    std::vector<int32_t> out(2);
    uint32_t n = 0;
    EXPECT_TRUE(
        s.mtp()
            ->propose(s.tokens(), s.first_position(), kToken, 2, scratch.data(), out.data(), &n)
            .is_ok());
    out.resize(n);
    return out;
  };
  uint64_t seed = 300;
  for (const Settings& s : {Settings{1.0f, 0, 1.0f}, Settings{0.6f, 20, 0.9f}}) {
    SCOPED_TRACE("temperature " + std::to_string(s.temperature));
    expect_targets(chat, draft, s, false, seed++);
  }
}

TEST(DraftDistribution, IsTheTargetsWhereAModelDraftsForItself) {
  const MadeModel file(smallest(test::tiny_qwen3()));
  expect_targets_of_model(file.path(), file.path());
}

TEST(DraftDistribution, IsTheTargetsWhereAnotherModelDrafts) {
  const MadeModel file(smallest(test::tiny_qwen3()));
  auto recipe = smallest(test::tiny_qwen3());
  recipe.seed += 1000;
  const MadeModel other(recipe);
  expect_targets_of_model(file.path(), other.path());
}

}  // namespace
}  // namespace sharpi::testing
