// SPDX-License-Identifier: MIT
// What was hidden far back in a prompt is answered, on every model with every codec: from all rows,
// from an eighth of them, and from an eighth that a probe of the question chose before it was
// asked. Each prompt is read once and forked.
#include <string>

#include "engine_case.h"
#include "support/needle.h"
#include "support/turn.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kQuestion = 24;  // tokens at the end of a prompt
constexpr uint32_t kBudget = 256;   // of 900 to 2000
constexpr uint32_t kParts = 3;

struct Case {
  std::string fixture;
  sharpi_kv_dtype kv;
  uint64_t offset;  // so that every commit reads every prompt with every model
};

std::vector<Case> cases() {
  std::vector<Case> out;
  uint64_t model = 0;
  for (const std::string& name : trained_models()) {
    uint64_t codec = 0;
    for (const sharpi_kv_dtype kv : stored_dtypes()) out.push_back({name, kv, model + codec++});
    ++model;
  }
  return out;
}

class Needles : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto fixture = find_fixture(GetParam().fixture);
    if (!fixture) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
    auto golden = load_golden(fixture->golden_path);
    ASSERT_TRUE(golden.is_ok()) << golden.status().text();
    needles_ = golden.take().needles;
    loaded_ = load(fixture->gguf_path, setup_with(
                                           [](sharpi_plan_params* p, sharpi_session_params* s) {
                                             p->arithmetic = SHARPI_ARITHMETIC_FAST;
                                             p->n_chunk = 512;
                                             s->k_dtype = s->v_dtype = GetParam().kv;
                                             s->capture_window = 64;
                                           },
                                           kThreadsOfNeedles));
    ASSERT_TRUE(loaded_.model);
    ASSERT_EQ(loaded_.plan_info.k_dtype, GetParam().kv);
  }
  bool answered(Chat& chat, const GoldenNeedle& needle) const {
    return answers(loaded_.model.get(), chat, needle);
  }
  static void compact(const Chat& chat, const sharpi_compact_params& p) {
    sharpi_compact_report r{};
    r.struct_size = sizeof r;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_compact(chat.get(), &p, &r, &e), SHARPI_OK) << text_of(e);
    EXPECT_EQ(r.rows_after, kBudget);
  }

  std::vector<GoldenNeedle> needles_;
  Loaded loaded_;
};

TEST_P(Needles, AreFoundFarBack) {
  const Turn turn(GetParam().offset, kParts);
  uint32_t n = 0, found = 0, compacted = 0, probed = 0;
  for (size_t i = 0; i < needles_.size(); ++i) {
    if (!turn.has(i)) continue;
    const GoldenNeedle& needle = needles_[i];
    const size_t text = needle.prompt.size() - kQuestion;
    const std::vector<int32_t> question = slice(needle.prompt, text, needle.prompt.size());
    Chat told(loaded_.model.get());
    told.prefill(slice(needle.prompt, 0, text));
    Chat asked = told.fork();
    asked.prefill(question);
    Chat less = asked.fork();
    ++n;
    found += answered(asked, needle) ? 1 : 0;
    sharpi_compact_params p = compact_params(SHARPI_POLICY_AUTO, kBudget);
    ASSERT_NO_FATAL_FAILURE(compact(less, p));
    compacted += answered(less, needle) ? 1 : 0;
    p.probe = question.data();
    p.n_probe = kQuestion;
    ASSERT_NO_FATAL_FAILURE(compact(told, p));
    EXPECT_EQ(told.info().n_tokens, text) << "the probe leaves no trace";
    told.prefill(question);
    probed += answered(told, needle) ? 1 : 0;
  }
  RecordProperty("found", static_cast<int>(found));
  RecordProperty("found_compacted", static_cast<int>(compacted));
  RecordProperty("found_probed", static_cast<int>(probed));
  ASSERT_GE(n, needles_.size() / kParts);
  EXPECT_GE(found + 1, n) << "from all rows, of " << n;
  EXPECT_GE(compacted + 1, n) << "from " << kBudget << " rows, of " << n;
  EXPECT_GE(probed + 1, n) << "from " << kBudget << " rows that a probe chose, of " << n;
}

INSTANTIATE_TEST_SUITE_P(Engine, Needles, ::testing::ValuesIn(cases()), [](const auto& info) {
  return short_name(info.param.fixture) + "_" + dtype_text(info.param.kv);
});

}  // namespace
}  // namespace sharpi::testing
