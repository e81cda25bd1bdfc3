// SPDX-License-Identifier: MIT
// How probable a model finds a text. Thread rule: one thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/isa.h"
#include "cpu/kernel_set.h"
#include "support/abi.h"

namespace sharpi::testing {

constexpr uint32_t kLogitRows = 256;  // read together; what the plan must allow

/// Reads windows of a text and adds up -log p of the tokens in them.
class TextReader {
 public:
  explicit TextReader(const Loaded& loaded)
      : chat_(loaded.model.get()),
        logits_(loaded.info.n_vocab),
        ops_(cpu::kernel_set(*cpu::resolve_isa(cpu::Isa::kAuto).take()).ops) {}

  void read(const std::vector<int32_t>& window) {
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_truncate(chat_.get(), 0, &e), SHARPI_OK) << text_of(e);
    for (size_t at = 0; at < window.size(); at += kLogitRows) {
      const auto n = static_cast<uint32_t>(std::min<size_t>(kLogitRows, window.size() - at));
      chat_.prefill(window.data() + at, n, n);
      for (uint32_t i = 0; i < n && at + i + 1 < window.size(); ++i) {
        ASSERT_NO_FATAL_FAILURE(fetch(n - 1 - i));
        if (i == 0) expect_plain_sum();
        sum_ += surprise(window[at + i + 1]);
        ++n_predicted_;
      }
    }
  }
  double sum() const { return sum_; }
  double mean() const { return sum_ / static_cast<double>(n_predicted_); }
  uint64_t n_predicted() const { return n_predicted_; }

 private:
  void fetch(uint32_t row) {
    sharpi_error e = SHARPI_ERROR_INIT;
    uint32_t n = 0;
    ASSERT_EQ(sharpi_session_logits(chat_.get(), row, logits_.data(),
                                    static_cast<uint32_t>(logits_.size()), &n, &e),
              SHARPI_OK)
        << text_of(e);
  }
  /// -log of the token's probability. Spoils the logits. Five thousand million exponentials a
  /// case are too many for std::exp: they go by the library's vectors.
  double surprise(int32_t token) {
    const float own = logits_.at(static_cast<size_t>(token));
    float high = logits_[0];
    const float all = ops_.exp_sum(logits_.data(), logits_.size(), &high);
    return std::log(static_cast<double>(all)) + static_cast<double>(high - own);
  }
  /// The same for token 0, by the standard library.
  void expect_plain_sum() {
    std::vector<float> kept = logits_;
    const double top = static_cast<double>(*std::max_element(kept.begin(), kept.end()));
    double all = 0;
    for (const float v : kept) all += std::exp(static_cast<double>(v) - top);
    const double want = std::log(all) + top - static_cast<double>(kept[0]);
    // The vectors add up a quarter of a million terms in floats, some ten thousand to each of their
    // elements: a rounding of half a unit for each could come to ten times this.
    EXPECT_NEAR(surprise(0), want, 5e-4);
    logits_ = std::move(kept);
  }

  Chat chat_;
  std::vector<float> logits_;
  const cpu::OpsTable& ops_;
  double sum_ = 0;
  uint64_t n_predicted_ = 0;
};

}  // namespace sharpi::testing
