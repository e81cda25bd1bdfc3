// SPDX-License-Identifier: MIT
// Rotary embedding by two sets of divisors: a plan for contexts beyond the length that the file
// says has the one, a plan for others the other, for all its sessions; saved sessions do not cross.
#include <algorithm>
#include <cmath>

#include "engine_case.h"
#include "support/paths.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kShort = 36;  // of the fixture

class LongRope : public ModelTest {
 protected:
  void SetUp() override {
    open("rand-phi3");
    if (IsSkipped()) return;
    auto golden = load_golden(test::source_path("tests/fixtures/rand-phi3-short.golden.json"));
    ASSERT_TRUE(golden.is_ok()) << golden.status().text();
    short_ = golden.take();
  }
  Loaded load_for(uint32_t n_ctx, uint32_t load_mode = SHARPI_LOAD_COPY) const {
    return load(path(), setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
                  p->arithmetic = SHARPI_ARITHMETIC_EXACT;
                  p->load_mode = load_mode;
                  p->max_logit_rows = 64;
                  p->n_chunk = 64;
                  s->n_ctx = n_ctx;
                  s->k_dtype = s->v_dtype = SHARPI_KV_F32;
                }));
  }
  /// The largest difference from a golden's case.
  static double worst(const Loaded& l, const GoldenCase& g, uint32_t n_ctx = SHARPI_UNSET) {
    sharpi_session_params params;
    sharpi_session_params_init(&params, sizeof params);
    params.n_ctx = n_ctx;
    Chat chat(l.model.get(), n_ctx == SHARPI_UNSET ? nullptr : &params);
    const auto logits = chat.all_logits(g.tokens, 64);
    double worst = 0;
    for (size_t p = 0; p < logits.size(); ++p) {
      for (size_t i = 0; i < 5; ++i) {
        const auto token = static_cast<size_t>(g.top5[p][i]);
        worst = std::max(worst, std::fabs(double{logits[p][token]} - g.top5_logits[p][i]));
      }
    }
    return worst;
  }
  Golden short_;
};

TEST_F(LongRope, APlanForShortContextsHasTheirAngles) {
  for (const uint32_t mode : {SHARPI_LOAD_COPY, SHARPI_LOAD_MAP}) {
    const Loaded l = load_for(kShort, mode);
    EXPECT_LE(worst(l, short_.cases[0]), 2e-3);
    Chat chat(l.model.get());
    chat.prefill(short_.cases[0].tokens);
    EXPECT_EQ(chat.greedy(static_cast<uint32_t>(short_.cases[0].greedy.size())),
              short_.cases[0].greedy);
  }
}

TEST_F(LongRope, APlanForLongerContextsHasTheOthersInAllItsSessions) {
  for (const uint32_t mode : {SHARPI_LOAD_COPY, SHARPI_LOAD_MAP}) {
    const Loaded l = load_for(512, mode);
    EXPECT_LE(worst(l, golden_.cases[0]), 2e-3);
    EXPECT_LE(worst(l, golden_.cases[0], 64), 2e-3);
    EXPECT_GE(worst(l, short_.cases[0]), 0.1);
    EXPECT_GE(worst(l, short_.cases[0], kShort), 0.1);
  }
  EXPECT_GE(worst(load_for(kShort + 1), short_.cases[0]), 0.1);
}

TEST_F(LongRope, ASavedSessionIsRefusedByAPlanWithOtherAngles) {
  const Loaded few = load_for(kShort), many = load_for(512);
  Chat from(few.model.get()), back(many.model.get());
  from.prefill(short_.cases[0].tokens);
  back.prefill(short_.cases[0].tokens);
  const auto restore = [](const Loaded& l, const Chat& saved_of) {
    Chat to(l.model.get());
    const std::vector<char> blob = saved(saved_of);
    sharpi_error e = SHARPI_ERROR_INIT;
    const sharpi_status status = sharpi_session_restore(to.get(), blob.data(), blob.size(), &e);
    return std::to_string(status) + " " + e.text;
  };
  const std::string mismatch = std::to_string(SHARPI_E_MISMATCH) + " ";
  const std::string text = mismatch +
                           "the session was saved with other angles of RoPE: its plan's n_ctx and "
                           "this one's lie on two sides of where LongRoPE's long ones begin";
  EXPECT_EQ(restore(many, from), text);
  EXPECT_EQ(restore(few, back), text);
  EXPECT_EQ(restore(few, from), std::to_string(SHARPI_OK) + " ");
}

}  // namespace
}  // namespace sharpi::testing
