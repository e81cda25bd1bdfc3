// SPDX-License-Identifier: MIT
// Drafts do not change what is drawn: the token behind a token has the distribution of the model's
// row under the sampler's settings, whatever the host guessed, and a guess is accepted as often as
// the model would draw it. By chi-square over many passes from the same place.
#include <numeric>

#include "engine_case.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kPrompt = 9, kDraws = 25000;
constexpr int32_t kToken = 17;

struct Settings {
  float temperature;
  uint32_t top_k;
  float top_p;
};

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

/// Counts against what is expected; rare tokens count together. Within four deviations.
void expect_drawn_from(const std::vector<uint32_t>& counts, const std::vector<double>& target) {
  double chi = 0, rare_expected = 0, rare_seen = 0;
  int cells = -1;
  const auto add = [&](double seen, double expected) {
    chi += (seen - expected) * (seen - expected) / expected;
    ++cells;
  };
  for (size_t t = 0; t < counts.size(); ++t) {
    const double expected = target[t] * kDraws;
    EXPECT_TRUE(target[t] != 0 || counts[t] == 0) << "token " << t << " is never drawn";
    if (expected >= 20) {
      add(counts[t], expected);
    } else {
      rare_expected += expected, rare_seen += counts[t];
    }
  }
  if (rare_expected >= 20) add(rare_seen, rare_expected);
  ASSERT_GE(cells, 2);
  EXPECT_LT(chi, cells + 4 * std::sqrt(2.0 * cells)) << cells + 1 << " kinds of tokens";
}

TEST(DraftDistribution, IsTheTargetsWhateverIsGuessed) {
  const MadeModel file(test::tiny_qwen3());
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

}  // namespace
}  // namespace sharpi::testing
