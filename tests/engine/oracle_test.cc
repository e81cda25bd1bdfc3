// SPDX-License-Identifier: MIT
// KV codecs against f32 KV: the same tokens are read with each codec, and at every position the
// variant must be finite, keep the f32 choice among its five best, and stay within a recorded
// distance.
#include "engine_case.h"

namespace sharpi::testing {
namespace {

struct Codec {
  sharpi_kv_dtype k, v;
};
constexpr Codec kCodecs[] = {{SHARPI_KV_BF16, SHARPI_KV_BF16},
                             {SHARPI_KV_Q8_0, SHARPI_KV_Q8_0},
                             {SHARPI_KV_BF16, SHARPI_KV_Q8_0}};

/// How far logits are from those of f32 KV at a position (the largest difference of any logit), per
/// codec of kCodecs, measured with f32 activations: the median and the worst of all golden prompts
/// read in batches, and the median of one prompt read token by token. A tenth over the medians is
/// allowed, which a codec that drops a bit leaves far behind, and twice the worst, since where two
/// experts are nearly as good a router may take either.
struct Recorded {
  const char* model;
  double median[3], worst[3], single[3];
};
constexpr Recorded kRecorded[] = {
    {"tiny-qwen3",
     {0.018099, 0.049208, 0.039428},
     {0.073781, 0.111318, 0.112556},
     {0.017788, 0.049185, 0.039241}},
    {"tiny-qwen3moe",
     {0.011107, 0.029241, 0.023236},
     {0.631794, 0.956191, 0.697699},
     {0.010172, 0.026880, 0.021500}},
    {"tiny-olmoe",
     {0.011952, 0.032182, 0.026600},
     {0.659389, 1.178629, 1.933163},
     {0.010309, 0.031209, 0.025311}},
    {"tiny-gemma4",
     {0.008473, 0.023221, 0.016474},
     {0.060030, 0.089083, 0.045308},
     {0.007549, 0.021255, 0.015043}},
    {"tiny-gemma4kv",
     {0.008761, 0.028346, 0.022380},
     {0.028670, 0.108345, 0.051916},
     {0.007350, 0.025273, 0.021309}},
    {"tiny-qwen35",
     {0.006816, 0.015193, 0.012023},
     {0.039232, 0.055922, 0.045442},
     {0.005249, 0.012456, 0.009812}},
    {"tiny-qwen35moe",
     {0.006657, 0.016587, 0.012222},
     {0.047799, 0.326451, 0.047607},
     {0.005661, 0.016112, 0.011625}},
};

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

bool in_best_five(const Logits& l, size_t token) {
  size_t better = 0;
  for (const float x : l) better += x > l[token] ? 1 : 0;
  return better < 5;
}

struct Distance {
  double median = 0, worst = 0;
};

Distance measure(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all.empty() ? Distance{} : Distance{all[all.size() / 2], all.back()};
}

/// Distances of all positions; everything else is asserted here.
std::vector<double> judge(const std::vector<Logits>& got, const std::vector<Logits>& want,
                          const std::string& what) {
  EXPECT_EQ(got.size(), want.size());
  std::vector<double> all;
  for (size_t p = 0; p < std::min(got.size(), want.size()); ++p) {
    const bool finite =
        std::all_of(got[p].begin(), got[p].end(), [](float x) { return std::isfinite(x); });
    EXPECT_TRUE(finite) << what << " position " << p;
    EXPECT_TRUE(in_best_five(got[p], best_of(want[p]))) << what << " position " << p;
    all.push_back(distance(got[p], want[p]));
  }
  return all;
}

class Oracle : public ModelTest {
 protected:
  static constexpr Codec kF32{SHARPI_KV_F32, SHARPI_KV_F32};
  static constexpr uint32_t kRows = 64;
  const Recorded& recorded() const {
    for (const Recorded& r : kRecorded) {
      if (GetParam() == r.model) return r;
    }
    ADD_FAILURE() << "nothing is recorded for " << GetParam();
    return kRecorded[0];
  }
};

TEST_P(Oracle, CodecsKeepTheF32TrajectoryReadInBatches) {
  const Loaded base = load(path(), setup_with(with(kF32, 1024, 512, kRows)));
  for (size_t c = 0; c < std::size(kCodecs); ++c) {
    const Loaded l = load(path(), setup_with(with(kCodecs[c], 1024, 512, kRows)));
    std::vector<double> all;
    for (const GoldenCase& g : golden_.cases) {
      Chat want(base.model.get()), got(l.model.get());
      const auto one = judge(got.all_logits(g.tokens, kRows), want.all_logits(g.tokens, kRows),
                             text(kCodecs[c]));
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
    EXPECT_EQ(l.plan_info.k_dtype, c.k);
    EXPECT_EQ(l.plan_info.v_dtype, c.v);
    const Chat chat(l.model.get());
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
}

INSTANTIATE_TEST_SUITE_P(Engine, Oracle, ::testing::ValuesIn(all_models()), model_name);

class LongOracle : public Oracle {
 protected:
  static constexpr uint32_t kFirst = 4600, kAll = 6200, kLast = 64;
  Loaded model(Codec c, uint32_t n_chunk, uint32_t n_rows) const {
    return load(path(), setup_with(with(c, 8192, n_chunk, n_rows, SHARPI_ARITHMETIC_FAST)));
  }
  /// Logits of every position, a call for each chunk.
  std::vector<Logits> every(Codec c, uint32_t n_chunk) const {
    const Loaded l = model(c, n_chunk, n_chunk);
    return Chat(l.model.get()).all_logits(tokens(kAll), n_chunk);
  }
  /// The last positions before 4,600 and before 6,200 tokens, read in two calls.
  std::vector<Logits> last(Codec c) const {
    const Loaded l = model(c, 512, kLast);
    const auto prompt = tokens(kAll);
    Chat chat(l.model.get());
    chat.prefill(prompt.data(), kFirst, kLast);
    std::vector<Logits> out = rows_of(chat, kLast);
    chat.prefill(prompt.data() + kFirst, kAll - kFirst, kLast);
    for (Logits& row : rows_of(chat, kLast)) out.push_back(std::move(row));
    return out;
  }
};

TEST_P(LongOracle, LongPromptsKeepTheChoiceAndDoNotDependOnChunks) {
  const std::vector<Logits> want = every(kF32, 512);
  ASSERT_EQ(want.size(), kAll);
  for (const Codec c : {kCodecs[0], kCodecs[1]}) judge(every(c, 512), want, text(c));
  expect_same_argmax(every(kF32, 200), want, "chunks of 200");
  std::vector<Logits> ends(want.begin() + kFirst - kLast, want.begin() + kFirst);
  ends.insert(ends.end(), want.end() - kLast, want.end());
  expect_same_argmax(last(kF32), ends, "two calls");
}

INSTANTIATE_TEST_SUITE_P(Engine, LongOracle,
                         ::testing::Values("tiny-gemma4", "tiny-gemma4kv", "tiny-olmoe",
                                           "tiny-qwen35"),
                         model_name);

}  // namespace
}  // namespace sharpi::testing
