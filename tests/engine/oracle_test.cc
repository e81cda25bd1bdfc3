// SPDX-License-Identifier: MIT
// KV codecs against f32 KV: the same tokens are read with each codec, and at every position the
// variant must be finite, keep the f32 choice among its five best, and stay within a recorded
// distance.
#include <cmath>

#include "engine_case.h"
#include "recorded_codecs.h"
#include "support/needle.h"
#include "support/turn.h"

namespace sharpi::testing {
namespace {

struct Codec {
  sharpi_kv_dtype k, v;
};
constexpr Codec kCodecs[] = {{SHARPI_KV_BF16, SHARPI_KV_BF16},
                             {SHARPI_KV_Q8_0, SHARPI_KV_Q8_0},
                             {SHARPI_KV_BF16, SHARPI_KV_Q8_0},
                             {SHARPI_KV_Q8_0, SHARPI_KV_Q4},
                             {SHARPI_KV_Q4, SHARPI_KV_Q4}};
static_assert(std::size(kCodecs) == kRecordedPairs);

std::string text(Codec c) {
  return std::string(dtype_text(c.k)) + "," + dtype_text(c.v);
}

Edit with(Codec c, uint32_t n_ctx, uint32_t n_chunk, uint32_t n_rows,
          sharpi_arithmetic arithmetic = SHARPI_ARITHMETIC_EXACT) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->arithmetic = arithmetic;
    p->n_chunk = n_chunk;
    p->max_logit_rows = n_rows;
    s->n_ctx = n_ctx;
    s->k_dtype = c.k;
    s->v_dtype = c.v;
  };
}

/// The dtypes that a session says it has, and those of every layer with rows of its own.
void expect_dtypes(const Loaded& l, const Chat& chat, Codec c) {
  EXPECT_EQ(l.plan_info.k_dtype, c.k);
  EXPECT_EQ(l.plan_info.v_dtype, c.v);
  EXPECT_EQ(chat.info().k_dtype, c.k);
  EXPECT_EQ(chat.info().v_dtype, c.v);
  uint32_t n_owners = 0;
  for (uint32_t i = 0; i < l.info.n_layers; ++i) {
    sharpi_layer_info layer{};
    layer.struct_size = sizeof layer;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_layer(chat.get(), i, &layer, &e), SHARPI_OK) << text_of(e);
    const bool owns =
        layer.mixer != SHARPI_MIXER_DELTA_NET && layer.kv_source == static_cast<int32_t>(i);
    n_owners += owns ? 1 : 0;
    EXPECT_EQ(layer.k_dtype, owns ? c.k : SHARPI_KV_AUTO) << i;
    EXPECT_EQ(layer.v_dtype, owns ? c.v : SHARPI_KV_AUTO) << i;
  }
  EXPECT_GT(n_owners, 0u);
}

/// Distances of all positions; everything else is asserted here.
std::vector<double> judge(const std::vector<Logits>& got, const std::vector<Logits>& want,
                          const std::string& what) {
  EXPECT_EQ(got.size(), want.size());
  std::vector<double> all;
  size_t missed = 0;
  for (size_t p = 0; p < std::min(got.size(), want.size()); ++p) {
    const bool finite =
        std::all_of(got[p].begin(), got[p].end(), [](float x) { return std::isfinite(x); });
    EXPECT_TRUE(finite) << what << " position " << p;
    missed += in_best_five(got[p], best_of(want[p])) ? 0 : 1;
    all.push_back(distance(got[p], want[p]));
  }
  // Keys in four bits lose one in hundreds.
  EXPECT_LE(missed, what.rfind("q4", 0) == 0 ? 1 + got.size() / 200 : 0) << what;
  return all;
}

class Oracle : public ModelTest {
 protected:
  static constexpr Codec kF32{SHARPI_KV_F32, SHARPI_KV_F32};
  static constexpr uint32_t kRows = 64;
  void SetUp() override {
    ModelTest::SetUp();
    if (IsSkipped()) return;
    recorded_ = recorded_codecs(GetParam());
    ASSERT_NE(recorded_, nullptr);
  }
  const RecordedCodecs& recorded() const { return *recorded_; }

 private:
  const RecordedCodecs* recorded_ = nullptr;
};

TEST_P(Oracle, CodecsKeepTheF32TrajectoryReadInBatches) {
  std::vector<std::vector<Logits>> want;
  {
    const Loaded base = load(path(), setup_with(with(kF32, 1024, 512, kRows)));
    for (const GoldenCase& g : golden_.cases)
      want.push_back(Chat(base.model.get()).all_logits(g.tokens, kRows));
  }
  for (size_t c = 0; c < std::size(kCodecs); ++c) {
    const Loaded l = load(path(), setup_with(with(kCodecs[c], 1024, 512, kRows)));
    std::vector<double> all;
    for (size_t i = 0; i < want.size(); ++i) {
      Chat got(l.model.get());
      const auto one =
          judge(got.all_logits(golden_.cases[i].tokens, kRows), want[i], text(kCodecs[c]));
      all.insert(all.end(), one.begin(), one.end());
    }
    const Distance d = measure(all);
    RecordProperty("median_" + std::to_string(c), std::to_string(d.median));
    RecordProperty("worst_" + std::to_string(c), std::to_string(d.worst));
    EXPECT_GT(d.median, 0.0) << "the codec is not used";
    EXPECT_LE(d.median, 1.1 * recorded().median[c]) << text(kCodecs[c]);
    EXPECT_LE(d.worst, 2.0 * recorded().worst[c]) << text(kCodecs[c]);
  }
}

TEST_P(Oracle, CodecsKeepTheF32TrajectoryReadOneByOne) {
  const std::vector<int32_t>& prompt = golden_.cases[1].tokens;
  Chat f32(load(path(), setup_with(with(kF32, 256, 256, kRows))).model.get());
  const std::vector<Logits> want = f32.all_logits(prompt, kRows);
  for (size_t c = 0; c < std::size(kCodecs); ++c) {
    const Loaded l = load(path(), setup_with(with(kCodecs[c], 256, 256, kRows)));
    Chat chat(l.model.get());
    std::vector<Logits> got;
    for (const int32_t t : prompt) {
      chat.decode(t);
      got.push_back(chat.logits());
    }
    const Distance d = measure(judge(got, want, text(kCodecs[c]) + " one by one"));
    RecordProperty("single_" + std::to_string(c), std::to_string(d.median));
    EXPECT_GT(d.median, 0.0) << "the codec is not used";
    EXPECT_LE(d.median, 1.1 * recorded().single[c]) << text(kCodecs[c]);
  }
}

TEST_P(Oracle, TheEffectiveDtypesAreReadBack) {
  for (const Codec c :
       {kF32, kCodecs[0], kCodecs[1], kCodecs[2], Codec{SHARPI_KV_Q8_0, SHARPI_KV_F32}}) {
    const Loaded l = load(path(), setup_with(with(c, 256, 64, 1)));
    expect_dtypes(l, Chat(l.model.get()), c);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, Oracle, ::testing::ValuesIn(trained_models()), model_name);

/// Prompts past 4096 tokens in one call. The recorded distances are those of all positions that are
/// read back.
struct RecordedLong {
  const char* model;
  double median[2], worst[2];
};
constexpr RecordedLong kLong[] = {
    {"tiny-qwen3", {0.018109, 0.047470}, {0.061011, 0.137776}},
    {"tiny-qwen3moe", {0.012151, 0.028920}, {1.032428, 1.488616}},
    {"tiny-olmoe", {0.014843, 0.036561}, {0.297805, 1.904574}},
    {"tiny-gemma4", {0.008351, 0.022519}, {0.024219, 0.075728}},
    {"tiny-gemma4kv", {0.008250, 0.025669}, {0.027194, 0.090152}},
    {"tiny-qwen35", {0.004482, 0.009710}, {0.048332, 0.096585}},
    {"tiny-qwen35moe", {0.004650, 0.011366}, {0.032973, 0.119852}},
};

/// Half a minute a case: every commit has a part of them for each model, the chunks or one codec.
class LongOracle : public Oracle {
 protected:
  static Turn turn() {
    const auto& all = trained_models();
    const auto at = std::find(all.begin(), all.end(), GetParam());
    return {static_cast<uint64_t>(at - all.begin()), 1 + std::size(kLong[0].median)};
  }
  static constexpr uint32_t kFirst = 4600, kAll = 6200, kLast = 512;
  /// Logits of every position, a call for each chunk.
  std::vector<Logits> every(uint32_t n_chunk) const {
    const Loaded l = load(
        path(),
        setup_with(with(kF32, 8192, n_chunk, n_chunk, SHARPI_ARITHMETIC_FAST), kThreadsOfNeedles));
    return Chat(l.model.get()).all_logits(tokens(kAll), n_chunk);
  }
  /// The last positions before 4,600 and before 6,200 tokens, read in two calls.
  std::vector<Logits> last(Codec c, sharpi_arithmetic arithmetic) const {
    const Loaded l =
        load(path(), setup_with(with(c, 8192, 512, kLast, arithmetic), kThreadsOfNeedles));
    const auto prompt = tokens(kAll);
    Chat chat(l.model.get());
    chat.prefill(prompt.data(), kFirst, kLast);
    std::vector<Logits> out = rows_of(chat, kLast);
    chat.prefill(prompt.data() + kFirst, kAll - kFirst, kLast);
    for (Logits& row : rows_of(chat, kLast)) out.push_back(std::move(row));
    expect_dtypes(l, chat, c);
    return out;
  }
};

TEST_P(LongOracle, LongPromptsDoNotDependOnChunks) {
  if (!turn().has(0)) GTEST_SKIP() << not_this_turn();
  const std::vector<Logits> want = every(512);
  ASSERT_EQ(want.size(), kAll);
  expect_same_argmax(every(200), want, "chunks of 200");
  std::vector<Logits> ends(want.begin() + kFirst - kLast, want.begin() + kFirst);
  ends.insert(ends.end(), want.end() - kLast, want.end());
  expect_same_argmax(last(kF32, SHARPI_ARITHMETIC_FAST), ends, "two calls");
}

TEST_P(LongOracle, CodecsKeepTheF32TrajectoryOfOneLongCall) {
  const Turn part = turn();
  if (!part.whole() && part.has(0)) GTEST_SKIP() << not_this_turn();
  const RecordedLong* found =
      std::find_if(std::begin(kLong), std::end(kLong),
                   [](const RecordedLong& r) { return GetParam() == r.model; });
  ASSERT_NE(found, std::end(kLong)) << "nothing is recorded for " << GetParam();
  const std::vector<Logits> want = last(kF32, SHARPI_ARITHMETIC_EXACT);
  for (size_t c = 0; c < std::size(found->median); ++c) {
    if (!part.has(1 + c)) continue;
    const Distance d =
        measure(judge(last(kCodecs[c], SHARPI_ARITHMETIC_EXACT), want, text(kCodecs[c])));
    RecordProperty("median_" + std::to_string(c), std::to_string(d.median));
    RecordProperty("worst_" + std::to_string(c), std::to_string(d.worst));
    EXPECT_GT(d.median, 0.0) << "the codec is not used";
    EXPECT_LE(d.median, 1.1 * found->median[c]) << text(kCodecs[c]);
    const double worst =
        recorded().has_experts ? worst_allowed(recorded(), c) : 2 * found->worst[c];
    EXPECT_LE(d.worst, worst) << text(kCodecs[c]);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, LongOracle, ::testing::ValuesIn(trained_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
