// SPDX-License-Identifier: MIT
// Which KV dtype a plan takes: spellings, precedence, defaults, refusals, and narrowing when memory
// is short.
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/engine_case.h"
#include "kv/codec.h"
#include "support/system.h"

namespace sharpi::testing {
namespace {

/// SHARPI_KV_DTYPE for the time of a test.
class Environment {
 public:
  explicit Environment(const char* value) { test::set_environment("SHARPI_KV_DTYPE", value); }
  ~Environment() { test::unset_environment("SHARPI_KV_DTYPE"); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
};

struct Outcome {
  sharpi_status status = SHARPI_OK;
  std::string text;
  sharpi_plan_summary info{};
};

class Dtype : public ::testing::Test {
 protected:
  void SetUp() override { test::unset_environment("SHARPI_KV_DTYPE"); }

  static Outcome plan(const std::string& path, Edit edit = {}, bool use_env = true) {
    ModelSetup setup;
    setup.n_threads = 1;
    setup.use_env = use_env;
    setup.edit = std::move(edit);
    const ContextPtr context = make_context(setup);
    PlanPtr plan;
    sharpi_error e = SHARPI_ERROR_INIT;
    Outcome out;
    out.status = try_plan(context.get(), path, setup, &plan, &e);
    out.text = e.text;
    out.info.struct_size = sizeof out.info;
    if (plan) {
      EXPECT_EQ(sharpi_plan_info(plan.get(), &out.info, &e), SHARPI_OK) << text_of(e);
    }
    return out;
  }
  static Edit dtypes(sharpi_kv_dtype k, sharpi_kv_dtype v) {
    return [=](sharpi_plan_params*, sharpi_session_params* s) {
      s->k_dtype = k;
      s->v_dtype = v;
    };
  }
  static void expect(const Outcome& o, sharpi_kv_dtype k, sharpi_kv_dtype v,
                     const std::string& what) {
    ASSERT_EQ(o.status, SHARPI_OK) << what << ": " << o.text;
    EXPECT_STREQ(dtype_text(o.info.k_dtype), dtype_text(k)) << what;
    EXPECT_STREQ(dtype_text(o.info.v_dtype), dtype_text(v)) << what;
  }
};

TEST_F(Dtype, EverySpellingIsAccepted) {
  const MadeModel qwen3(test::tiny_qwen3()), qwen35(test::tiny_qwen35());
  const std::pair<const char*, sharpi_kv_dtype> spellings[] = {
      {"f32", SHARPI_KV_F32},   {"fp32", SHARPI_KV_F32},  {"FP32", SHARPI_KV_F32},
      {"bf16", SHARPI_KV_BF16}, {"Bf16", SHARPI_KV_BF16}, {" bf16\t", SHARPI_KV_BF16},
      {"q8_0", SHARPI_KV_Q8_0}, {"q8", SHARPI_KV_Q8_0},   {"\n Q8_0 ", SHARPI_KV_Q8_0},
      {"q4", SHARPI_KV_Q4},     {"Tq4", SHARPI_KV_Q4},
  };
  for (const auto& [text, dtype] : spellings) {
    const Environment env(text);
    expect(plan(qwen3.path()), dtype, dtype, text);
    expect(plan(qwen35.path()), dtype, dtype, text);
  }
  for (const char* text : {"auto", " AUTO", "", "  "}) {
    const Environment env(text);
    expect(plan(qwen3.path()), SHARPI_KV_F32, SHARPI_KV_F32, text);
    expect(plan(qwen35.path()), SHARPI_KV_BF16, SHARPI_KV_BF16, text);
  }
}

TEST_F(Dtype, OtherSpellingsAreRefusedWithTheListAndTheValue) {
  const MadeModel file(test::tiny_qwen3());
  for (const char* text : {"f16", "q8_1", "f 32", "32", "bf16,q8_0", "automatic", "x"}) {
    const Environment env(text);
    const Outcome o = plan(file.path());
    EXPECT_EQ(o.status, SHARPI_E_INVALID_ARGUMENT) << text;
    for (const char* part : {"SHARPI_KV_DTYPE", text, "f32", "bf16", "q8_0", "q4", "auto"}) {
      EXPECT_NE(o.text.find(part), std::string::npos) << part << " is not in: " << o.text;
    }
  }
}

TEST_F(Dtype, ABadEnvironmentIsNotReadWhenIgnored) {
  const MadeModel file(test::tiny_qwen3());
  const Environment env("nonsense");
  expect(plan(file.path(), {}, false), SHARPI_KV_F32, SHARPI_KV_F32, "ignored");
}

TEST_F(Dtype, ExplicitIsOverEnvironmentIsOverAuto) {
  const MadeModel file(test::tiny_qwen3());
  expect(plan(file.path()), SHARPI_KV_F32, SHARPI_KV_F32, "auto");
  const Environment env("bf16");
  expect(plan(file.path()), SHARPI_KV_BF16, SHARPI_KV_BF16, "environment");
  expect(plan(file.path(), dtypes(SHARPI_KV_Q8_0, SHARPI_KV_F32)), SHARPI_KV_Q8_0, SHARPI_KV_F32,
         "both explicit");
  expect(plan(file.path(), dtypes(SHARPI_KV_Q8_0, SHARPI_KV_AUTO)), SHARPI_KV_Q8_0, SHARPI_KV_BF16,
         "K explicit");
  expect(plan(file.path(), dtypes(SHARPI_KV_AUTO, SHARPI_KV_F32)), SHARPI_KV_BF16, SHARPI_KV_F32,
         "V explicit");
  expect(plan(file.path(), {}, false), SHARPI_KV_F32, SHARPI_KV_F32, "environment ignored");
  expect(plan(file.path(), dtypes(SHARPI_KV_Q8_0, SHARPI_KV_AUTO), false), SHARPI_KV_Q8_0,
         SHARPI_KV_F32, "K explicit, environment ignored");
}

TEST_F(Dtype, AutoIsBf16ForHybridsAndF32ForTheOthers) {
  for (const test::ModelRecipe& recipe : test::tiny_recipes()) {
    const MadeModel file(recipe);
    const bool hybrid = recipe.is_hybrid();
    const sharpi_kv_dtype want = hybrid ? SHARPI_KV_BF16 : SHARPI_KV_F32;
    expect(plan(file.path()), want, want, recipe.arch);
  }
}

TEST_F(Dtype, EveryArchitectureTakesEveryPair) {
  for (const test::ModelRecipe& recipe : test::tiny_recipes()) {
    const MadeModel file(recipe);
    for (const sharpi_kv_dtype k : stored_dtypes()) {
      for (const sharpi_kv_dtype v : stored_dtypes()) {
        const Outcome o = plan(file.path(), dtypes(k, v));
        if (recipe.arch == "deepseek2" && k != v) {  // one row is both
          EXPECT_EQ(o.status, SHARPI_E_UNSUPPORTED);
          EXPECT_NE(o.text.find("key and value"), std::string::npos) << o.text;
          continue;
        }
        expect(o, k, v, recipe.arch);
      }
    }
  }
}

TEST_F(Dtype, WhereOneRowIsKeyAndValueEitherNamesTheCodecOfBoth) {
  const MadeModel file(test::tiny_deepseek2());
  constexpr sharpi_kv_dtype kQ8 = SHARPI_KV_Q8_0, kAuto = SHARPI_KV_AUTO;
  expect(plan(file.path(), dtypes(kQ8, kAuto)), kQ8, kQ8, "K explicit");
  expect(plan(file.path(), dtypes(kAuto, kQ8)), kQ8, kQ8, "V explicit");
  const Environment env("bf16");
  expect(plan(file.path(), dtypes(kAuto, kQ8)), kQ8, kQ8, "V explicit beside the environment");
  expect(plan(file.path()), SHARPI_KV_BF16, SHARPI_KV_BF16, "environment");
}

TEST_F(Dtype, ARowThatIsKeyAndValueIsPricedOnce) {
  const test::ModelRecipe recipe = test::tiny_deepseek2();
  const MadeModel file(recipe);
  for (const sharpi_kv_dtype dtype : stored_dtypes()) {
    ModelSetup setup;
    setup.use_env = false;
    setup.edit = dtypes(dtype, dtype);
    const ContextPtr context = make_context(setup);
    PlanPtr plan;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(try_plan(context.get(), file.path(), setup, &plan, &e), SHARPI_OK) << text_of(e);
    sharpi_memory_row rows[64];
    uint32_t n = 0;
    ASSERT_EQ(sharpi_plan_rows(plan.get(), rows, sizeof rows[0], 64, &n, &e), SHARPI_OK);
    sharpi_plan_summary info = {};
    info.struct_size = sizeof info;
    ASSERT_EQ(sharpi_plan_info(plan.get(), &info, &e), SHARPI_OK);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; ++i)
      bytes += rows[i].purpose == SHARPI_ROW_KV ? rows[i].payload_bytes : 0;
    const uint64_t row = kv_row_bytes(static_cast<KvDtype>(dtype), recipe.head_dim);
    EXPECT_EQ(bytes, uint64_t{info.n_ctx} * recipe.n_layers * row) << dtype_text(dtype);
  }
}

TEST_F(Dtype, ANumberThatIsNoDtypeIsRefused) {
  const MadeModel file(test::tiny_qwen3());
  constexpr sharpi_kv_dtype kNone = kKvCodecs + 1;
  for (const Edit& edit : {dtypes(kNone, SHARPI_KV_AUTO), dtypes(SHARPI_KV_AUTO, kNone)}) {
    const Outcome o = plan(file.path(), edit);
    EXPECT_EQ(o.status, SHARPI_E_INVALID_ARGUMENT);
    std::vector<std::string> parts = {"_dtype " + std::to_string(kNone), "0 (AUTO)", "1 (F32)"};
    for (const KvCodec& c : kv_codecs()) {
      parts.push_back(std::to_string(static_cast<uint32_t>(c.dtype)) + " (");
    }
    for (const std::string& part : parts) {
      EXPECT_NE(o.text.find(part), std::string::npos) << part << " is not in: " << o.text;
    }
  }
}

/// Rows of 16 elements in every layer.
test::ModelRecipe narrow_rows() {
  test::ModelRecipe r = test::tiny_qwen3();
  r.n_kv_heads = 1;
  r.head_dim = 16;
  r.n_ctx = 32768;
  return r;
}

TEST_F(Dtype, Q8_0NeedsRowsOfWholeBlocks) {
  const MadeModel file(narrow_rows());
  for (const Edit& edit :
       {dtypes(SHARPI_KV_Q8_0, SHARPI_KV_Q8_0), dtypes(SHARPI_KV_Q8_0, SHARPI_KV_F32),
        dtypes(SHARPI_KV_F32, SHARPI_KV_Q8_0)}) {
    const Outcome o = plan(file.path(), edit);
    EXPECT_EQ(o.status, SHARPI_E_UNSUPPORTED);
    for (const char* part : {"layer 0", "16", "32", "q8_0", "f32", "bf16"}) {
      EXPECT_NE(o.text.find(part), std::string::npos) << part << " is not in: " << o.text;
    }
  }
  expect(plan(file.path(), dtypes(SHARPI_KV_BF16, SHARPI_KV_F32)), SHARPI_KV_BF16, SHARPI_KV_F32,
         "what works");
  const Environment env("q8_0");
  EXPECT_EQ(plan(file.path()).status, SHARPI_E_UNSUPPORTED);
}

TEST_F(Dtype, SessionsGetWhatThePlanChoseAndMayAskForLess) {
  const MadeModel file(test::tiny_qwen3());
  const Loaded l = load(file.path(), setup_with(dtypes(SHARPI_KV_BF16, SHARPI_KV_BF16)));
  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  s.n_ctx = 256;
  s.v_dtype = SHARPI_KV_Q8_0;
  s.k_dtype = SHARPI_KV_BF16;
  const Chat chat(l.model.get(), &s);
  EXPECT_EQ(chat.info().k_dtype, SHARPI_KV_BF16);
  EXPECT_EQ(chat.info().v_dtype, SHARPI_KV_Q8_0);
  s.n_ctx = 4096;
  s.k_dtype = s.v_dtype = SHARPI_KV_F32;
  sharpi_session* out = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_create(l.model.get(), &s, &out, &e), SHARPI_E_DOES_NOT_FIT);
  EXPECT_EQ(out, nullptr);
  EXPECT_NE(std::string(e.text).find("KV rows"), std::string::npos) << e.text;
}

class Narrowing : public Dtype {
 protected:
  static Edit budget(uint64_t host, uint32_t n_ctx, sharpi_kv_dtype dtype = SHARPI_KV_AUTO) {
    return [=](sharpi_plan_params* p, sharpi_session_params* s) {
      p->host_budget = host;
      p->n_chunk = 32;
      s->n_ctx = n_ctx;
      s->k_dtype = s->v_dtype = dtype;
    };
  }
  static uint64_t bytes(const std::string& path, uint32_t n_ctx, sharpi_kv_dtype dtype) {
    const Outcome o = plan(path, budget(SHARPI_ALL_FREE, n_ctx, dtype));
    EXPECT_EQ(o.status, SHARPI_OK) << o.text;
    return o.info.host_held_bytes;
  }
};

TEST_F(Narrowing, AutoNarrowsOnlyAsFarAsItMust) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_ctx = 32768;
  const MadeModel file(recipe);
  constexpr uint32_t kContext = 16384;
  const uint64_t f32 = bytes(file.path(), kContext, SHARPI_KV_F32);
  const uint64_t bf16 = bytes(file.path(), kContext, SHARPI_KV_BF16);
  const uint64_t q8 = bytes(file.path(), kContext, SHARPI_KV_Q8_0);
  ASSERT_GT(f32, bf16);
  ASSERT_GT(bf16, q8);
  const struct {
    uint64_t host;
    sharpi_kv_dtype want;
    uint32_t narrowed;
  } cases[] = {{f32, SHARPI_KV_F32, 0},
               {f32 - 1, SHARPI_KV_BF16, 1},
               {bf16, SHARPI_KV_BF16, 1},
               {bf16 - 1, SHARPI_KV_Q8_0, 1},
               {q8, SHARPI_KV_Q8_0, 1}};
  for (const auto& c : cases) {
    const Outcome o = plan(file.path(), budget(c.host, kContext));
    expect(o, c.want, c.want, std::to_string(c.host));
    EXPECT_EQ(o.info.narrowed, c.narrowed);
    EXPECT_EQ(o.info.n_ctx, kContext);
    EXPECT_LE(o.info.host_held_bytes, c.host);
  }
}

TEST_F(Narrowing, WhatDoesNotFitIsRefusedWithTheBytesAndAContextThatFits) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_ctx = 32768;
  const MadeModel file(recipe);
  const uint64_t q8 = bytes(file.path(), 16384, SHARPI_KV_Q8_0);
  const Outcome o = plan(file.path(), budget(q8 - 1, 16384));
  ASSERT_EQ(o.status, SHARPI_E_DOES_NOT_FIT) << "nothing narrower than q8_0 is taken unasked";
  for (const std::string& part :
       {std::to_string(q8), std::string("1 more than the host_budget"), std::string("KV rows"),
        std::string("would fit: KV dtype q4, or ")}) {
    EXPECT_NE(o.text.find(part), std::string::npos) << part << " is not in: " << o.text;
  }
  expect(plan(file.path(), budget(q8 - 1, 16384, SHARPI_KV_Q4)), SHARPI_KV_Q4, SHARPI_KV_Q4, "q4");
  const auto would =
      static_cast<uint32_t>(std::strtoul(o.text.c_str() + o.text.rfind("n_ctx ") + 6, nullptr, 10));
  ASSERT_GT(would, 0u);
  EXPECT_EQ(plan(file.path(), budget(q8 - 1, would)).status, SHARPI_OK) << would;
  EXPECT_EQ(plan(file.path(), budget(q8 - 1, would + 1)).status, SHARPI_E_DOES_NOT_FIT) << would;
}

TEST_F(Narrowing, AnExplicitDtypeIsNeverNarrowed) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_ctx = 32768;
  const MadeModel file(recipe);
  const uint64_t f32 = bytes(file.path(), 16384, SHARPI_KV_F32);
  EXPECT_EQ(plan(file.path(), budget(f32 - 1, 16384, SHARPI_KV_F32)).status, SHARPI_E_DOES_NOT_FIT);
  const Environment env("f32");
  EXPECT_EQ(plan(file.path(), budget(f32 - 1, 16384)).status, SHARPI_E_DOES_NOT_FIT);
}

TEST_F(Narrowing, AnAutomaticContextShrinksInstead) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_ctx = 32768;
  const MadeModel file(recipe);
  const uint64_t f32 = bytes(file.path(), 8192, SHARPI_KV_F32);
  const Outcome o = plan(file.path(), budget(f32, SHARPI_UNSET));
  expect(o, SHARPI_KV_F32, SHARPI_KV_F32, "auto context");
  EXPECT_EQ(o.info.narrowed, 0u);
  EXPECT_GE(o.info.n_ctx, 8192u);
  EXPECT_LT(o.info.n_ctx, 8192u + 256);
}

TEST_F(Narrowing, StopsWhereTheRowsAllowNoNarrowerCodec) {
  const MadeModel file(narrow_rows());
  const uint64_t bf16 = bytes(file.path(), 16384, SHARPI_KV_BF16);
  expect(plan(file.path(), budget(bf16, 16384)), SHARPI_KV_BF16, SHARPI_KV_BF16, "bf16 fits");
  const Outcome o = plan(file.path(), budget(bf16 - 1, 16384));
  EXPECT_EQ(o.status, SHARPI_E_DOES_NOT_FIT) << o.text;
  EXPECT_NE(o.text.find("would fit"), std::string::npos) << o.text;
}

}  // namespace
}  // namespace sharpi::testing
