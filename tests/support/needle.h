// SPDX-License-Identifier: MIT
// Needle prompts: is the code that was hidden far back still answered? Shared by tests and benches.
#pragma once

#include <string>
#include <vector>

#include "abi.h"
#include "golden.h"

namespace sharpi::testing {

/// Prompts that take long are read by one thread: tests run beside each other, and threads that
/// wait for each other take the time of all. What depends on the number of threads is tested
/// elsewhere.
constexpr uint32_t kThreadsOfNeedles = 1;

/// Digits in the text of some tokens.
inline std::string digits_of(const sharpi_model* model, const std::vector<int32_t>& tokens) {
  std::string text(1024, '\0');
  size_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_detokenize(model, tokens.data(), static_cast<uint32_t>(tokens.size()), 0,
                              text.data(), text.size(), &n, &e),
            SHARPI_OK)
      << text_of(e);
  std::string digits;
  for (size_t i = 0; i < n; ++i) {
    if (text[i] >= '0' && text[i] <= '9') digits += text[i];
  }
  return digits;
}

/// Continues greedily from the session's logits: are the five digits of the answer said?
inline bool answers(const sharpi_model* model, Chat& chat, const GoldenNeedle& needle) {
  const auto said = chat.greedy(static_cast<uint32_t>(needle.answer.size()));
  const std::string want = digits_of(model, needle.answer);
  EXPECT_EQ(want.size(), 5u);
  return digits_of(model, said) == want;
}

inline sharpi_compact_params compact_params(sharpi_policy policy, uint32_t budget) {
  sharpi_compact_params p;
  sharpi_compact_params_init(&p, sizeof p);
  p.policy = policy;
  p.budget = budget;
  return p;
}

}  // namespace sharpi::testing
