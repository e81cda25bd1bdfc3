// SPDX-License-Identifier: MIT
// Compaction keeps the rows that it says, gives the memory back, and repeats, on every model, codec
// and path; bounded sessions still answer. That a compacted prompt is answered is needles_test's.
#include <array>
#include <functional>
#include <optional>
#include <set>

#include "engine_case.h"
#include "support/golden.h"
#include "support/needle.h"
#include "support/turn.h"

namespace sharpi::testing {
namespace {

struct Case {
  std::string fixture;
  sharpi_kv_dtype kv = SHARPI_KV_F32;
};

std::string name_of(const ::testing::TestParamInfo<Case>& c) {
  return c.param.fixture.substr(5) + "_" + dtype_text(c.param.kv);
}

constexpr size_t kText = 1;  // the needle that most tests are about

/// A model and a session that has read a needle's prompt, once. The tests of one case follow each
/// other, and take forks.
struct Shared {
  Loaded loaded;
  std::optional<Chat> asked;
};

class Compaction : public ::testing::TestWithParam<Case> {
 protected:
  static void TearDownTestSuite() { shared_.reset(); }
  void SetUp() override {
    const auto fixture = find_fixture(GetParam().fixture);
    if (!fixture) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
    auto golden = load_golden(fixture->golden_path);
    ASSERT_TRUE(golden.is_ok()) << golden.status().text();
    needles_ = golden.value().needles;
    path_ = fixture->gguf_path;
    if (!shared_) {
      shared_ = std::make_unique<Shared>();
      shared_->loaded =
          load_with([](sharpi_plan_params*, sharpi_session_params* s) { s->capture_window = 64; });
    }
    ASSERT_TRUE(shared_->loaded.model);
  }
  const Loaded& loaded() const { return shared_->loaded; }
  const sharpi_model* model() const { return loaded().model.get(); }
  /// A session that has read the prompt of kText.
  Chat asked() const {
    if (!shared_->asked) {
      shared_->asked.emplace(model());
      shared_->asked->prefill(needles_[kText].prompt);
    }
    return shared_->asked->fork();
  }

  Loaded load_with(
      const std::function<void(sharpi_plan_params*, sharpi_session_params*)>& edit) const {
    ModelSetup setup;
    setup.n_threads = kThreadsOfNeedles;
    setup.edit = [&](sharpi_plan_params* p, sharpi_session_params* s) {
      s->k_dtype = s->v_dtype = GetParam().kv;
      edit(p, s);
    };
    return load(path_, setup);
  }

  /// Layers whose rows can be evicted.
  std::vector<uint32_t> full_layers(const Chat& chat) const {
    std::vector<uint32_t> out;
    for (uint32_t l = 0; l < loaded().info.n_layers; ++l) {
      const sharpi_layer_info i = layer(chat, l);
      if (i.mixer == SHARPI_MIXER_ATTENTION && i.kv_source == static_cast<int32_t>(l))
        out.push_back(l);
    }
    return out;
  }
  static sharpi_layer_info layer(const Chat& chat, uint32_t l) {
    sharpi_layer_info i{};
    i.struct_size = sizeof i;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_layer(chat.get(), l, &i, &e), SHARPI_OK) << text_of(e);
    return i;
  }
  static sharpi_compact_report compact(Chat& chat, const sharpi_compact_params& p) {
    sharpi_compact_report r{};
    r.struct_size = sizeof r;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_compact(chat.get(), &p, &r, &e), SHARPI_OK) << text_of(e);
    return r;
  }
  static std::vector<uint32_t> kept(const Chat& chat, uint32_t l, uint32_t head) {
    std::vector<uint32_t> out(8192);
    uint32_t n = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_kept(chat.get(), l, head, out.data(), 8192, &n, &e), SHARPI_OK)
        << text_of(e);
    out.resize(n);
    return out;
  }
  /// Sinks, recent, scored and unranked rows of a report; they are all there are.
  using Reasons = std::array<uint32_t, 4>;
  static Reasons reasons(const sharpi_compact_report& r) {
    EXPECT_EQ(r.kept_sinks + r.kept_recent + r.kept_scored + r.kept_unranked, r.rows_after);
    return {r.kept_sinks, r.kept_recent, r.kept_scored, r.kept_unranked};
  }
  std::string path_;
  std::vector<GoldenNeedle> needles_;

 private:
  static inline std::unique_ptr<Shared> shared_;
};

TEST_P(Compaction, ReportLengthsAndMemoryAgree) {
  Chat chat(model());  // which shares no memory
  chat.prefill(needles_[0].prompt);
  const auto n = static_cast<uint32_t>(needles_[0].prompt.size());
  sharpi_compact_params p = compact_params(SHARPI_POLICY_AUTO, 256);
  p.headroom = 64;
  const sharpi_session_summary before = chat.info();
  const sharpi_compact_report r = compact(chat, p);
  const sharpi_session_summary after = chat.info();
  EXPECT_EQ(r.rows_before, n);
  EXPECT_EQ(r.rows_after, 256u);
  EXPECT_EQ(r.capacity, 320u);
  EXPECT_EQ(reasons(r), (Reasons{4, 64, 188, 0}));
  EXPECT_EQ(r.payload_before, before.kv_payload_bytes);
  EXPECT_EQ(r.payload_after, after.kv_payload_bytes);
  EXPECT_EQ(r.held_after, after.kv_held_bytes);
  EXPECT_LT(r.held_after, r.held_before);
  EXPECT_EQ(after.n_tokens, n);
  EXPECT_EQ(after.is_compacted, 1u);
  for (const uint32_t l : full_layers(chat)) {
    const sharpi_layer_info i = layer(chat, l);
    EXPECT_EQ(i.n_slots, 256u);
    for (uint32_t h = 0; h < i.n_kv_heads; ++h) {
      const std::vector<uint32_t> rows = kept(chat, l, h);
      ASSERT_EQ(rows.size(), 256u);
      EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
      for (uint32_t j = 0; j < 4; ++j) EXPECT_EQ(rows[j], j) << "sinks";
      for (uint32_t j = 0; j < 64; ++j) EXPECT_EQ(rows[256 - 64 + j], n - 64 + j) << "recency";
    }
  }
}

/// As many rows as recency's default: half of them are for what the policy finds.
TEST_P(Compaction, AFewRowsAreNotTheLastOnesAlone) {
  Chat chat = asked();
  const auto n = static_cast<uint32_t>(needles_[kText].prompt.size());
  const sharpi_compact_report r = compact(chat, compact_params(SHARPI_POLICY_AUTO, 64));
  EXPECT_EQ(r.rows_after, 64u);
  EXPECT_EQ(reasons(r), (Reasons{4, 32, 28, 0}));
  uint32_t chosen_apart = 0;
  for (const uint32_t l : full_layers(chat)) {
    const std::vector<uint32_t> rows = kept(chat, l, 0);
    ASSERT_EQ(rows.size(), 64u);
    EXPECT_EQ(rows[3], 3u) << "sinks";
    EXPECT_EQ(rows[32], n - 32) << "recency";
    chosen_apart += rows[4] < n - 64 ? 1 : 0;
  }
  EXPECT_GT(chosen_apart, 0u) << "the policy's rows are not just more of the last ones";
}

TEST_P(Compaction, TheReportSaysWhyRowsStayed) {
  sharpi_compact_params p = compact_params(SHARPI_POLICY_SNAPKV, 50);
  p.sinks = 2;
  Chat chat = asked();
  EXPECT_EQ(reasons(compact(chat, p)), (Reasons{2, 25, 23, 0}));
  p = compact_params(SHARPI_POLICY_GLOBAL, 40);
  p.recency = 40;
  Chat told = asked();
  EXPECT_EQ(reasons(compact(told, p)), (Reasons{0, 40, 0, 0})) << "what is given is kept";
  p.recency = 41;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_compact(told.get(), &p, nullptr, &e), SHARPI_E_INVALID_ARGUMENT);
  Chat whole = asked();
  const uint32_t n = whole.info().n_slots_max;
  EXPECT_EQ(reasons(compact(whole, compact_params(SHARPI_POLICY_AUTO, n))), (Reasons{0, 0, 0, n}));
  const uint32_t some[] = {1, 5, 9};
  p = compact_params(SHARPI_POLICY_KEEP, SHARPI_UNSET);
  p.keep = some;
  p.n_keep = 3;
  EXPECT_EQ(reasons(compact(whole, p)), (Reasons{0, 0, 0, 3}));
}

/// The defaults fit a bounded session of any size, while its prompt is read too.
TEST_P(Compaction, ABoundedSessionOfFewRowsKeepsTheFirstOnes) {
  const Loaded own = load_with([](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 128;
    s->kv_budget = 48;
  });
  ASSERT_TRUE(own.model);
  Chat chat(own.model.get());
  chat.prefill(slice(needles_[0].prompt, 0, 500));
  for (const uint32_t l : full_layers(chat)) {
    const std::vector<uint32_t> rows = kept(chat, l, 0);
    EXPECT_LE(rows.size(), 48u + 128u);
    for (uint32_t j = 0; j < 4; ++j) EXPECT_EQ(rows[j], j) << "layer " << l;
  }
}

TEST_P(Compaction, KeepingAllRowsChangesNoLogit) {
  Chat whole(model()), compacted(model());
  const std::vector<int32_t> prompt(needles_[0].prompt.begin(), needles_[0].prompt.begin() + 300);
  whole.prefill(prompt);
  compacted.prefill(prompt);
  sharpi_compact_params p = compact_params(SHARPI_POLICY_AUTO, 4096);
  compact(compacted, p);
  for (int i = 0; i < 4; ++i) {
    const int32_t t = whole.argmax();
    whole.decode(t);
    compacted.decode(t);
    ASSERT_EQ(whole.logits(), compacted.logits());
  }
}

TEST_P(Compaction, DecodingAfterwardsEqualsAnEquivalentKeep) {
  Chat scored = asked(), told = asked();
  compact(scored, compact_params(SHARPI_POLICY_GLOBAL, 200));
  const std::vector<uint32_t> rows = kept(scored, full_layers(scored)[0], 0);
  sharpi_compact_params p = compact_params(SHARPI_POLICY_KEEP, SHARPI_UNSET);
  p.keep = rows.data();
  p.n_keep = static_cast<uint32_t>(rows.size());
  compact(told, p);
  EXPECT_EQ(scored.greedy(16), told.greedy(16));
  EXPECT_EQ(scored.logits(), told.logits());
}

TEST_P(Compaction, RepeatsAfterDecodeAndIsDeterministic) {
  std::vector<std::vector<float>> last;
  for (int run = 0; run < 2; ++run) {
    Chat chat = asked();
    compact(chat, compact_params(SHARPI_POLICY_AUTO, 400));
    for (int i = 0; i < 70; ++i) chat.decode(chat.argmax());
    const sharpi_compact_report r = compact(chat, compact_params(SHARPI_POLICY_AUTO, 200));
    EXPECT_EQ(r.rows_before, 470u);
    EXPECT_EQ(r.rows_after, 200u);
    chat.decode(chat.argmax());
    last.push_back(chat.logits());
  }
  EXPECT_EQ(last[0], last[1]);
}

TEST_P(Compaction, BoundedSessionsNeverHoldMoreThanBudgetAndChunk) {
  const Loaded own = load_with([](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 128;
    s->kv_budget = 256;
  });
  ASSERT_TRUE(own.model);
  const Turn turn(static_cast<uint64_t>(GetParam().kv), 3);
  uint32_t n = 0, found = 0;
  constexpr uint32_t kNeedles = 6;
  for (uint32_t i = 0; i < kNeedles; ++i) {
    if (!turn.has(i)) continue;
    Chat chat(own.model.get());
    const uint64_t held = chat.info().kv_held_bytes;
    chat.prefill(needles_[i].prompt);
    const sharpi_session_summary s = chat.info();
    EXPECT_EQ(s.n_tokens, needles_[i].prompt.size());
    EXPECT_LE(s.n_slots_max, 256u + 128u);
    EXPECT_EQ(s.capacity, 256u + 128u);
    EXPECT_EQ(s.kv_held_bytes, held);
    found += answers(own.model.get(), chat, needles_[i]) ? 1 : 0;
    if (++n > 1) continue;
    for (int j = 0; j < 300; ++j) chat.decode(chat.argmax());  // stays bounded while it generates
    EXPECT_LE(chat.info().n_slots_max, 256u + 128u);
  }
  EXPECT_GE(found + 1, n) << "of " << n;
}

// Every model with f32 rows; one of each kind with narrower ones. A suite for each, so that its
// tests follow each other.
#define SHARPI_COMPACTION_CASES(OF)                 \
  OF(Qwen3, "tiny-qwen3", SHARPI_KV_F32)            \
  OF(Qwen3Bf16, "tiny-qwen3", SHARPI_KV_BF16)       \
  OF(Qwen3Q8, "tiny-qwen3", SHARPI_KV_Q8_0)         \
  OF(Qwen3Q4, "tiny-qwen3", SHARPI_KV_Q4)           \
  OF(Gemma4Kv, "tiny-gemma4kv", SHARPI_KV_F32)      \
  OF(Gemma4KvBf16, "tiny-gemma4kv", SHARPI_KV_BF16) \
  OF(Gemma4KvQ8, "tiny-gemma4kv", SHARPI_KV_Q8_0)   \
  OF(Gemma4KvQ4, "tiny-gemma4kv", SHARPI_KV_Q4)     \
  OF(Qwen35, "tiny-qwen35", SHARPI_KV_F32)          \
  OF(Qwen35Bf16, "tiny-qwen35", SHARPI_KV_BF16)     \
  OF(Qwen35Q8, "tiny-qwen35", SHARPI_KV_Q8_0)       \
  OF(Qwen35Q4, "tiny-qwen35", SHARPI_KV_Q4)         \
  OF(Qwen3Moe, "tiny-qwen3moe", SHARPI_KV_F32)      \
  OF(Olmoe, "tiny-olmoe", SHARPI_KV_F32)            \
  OF(Gemma4, "tiny-gemma4", SHARPI_KV_F32)          \
  OF(Qwen35Moe, "tiny-qwen35moe", SHARPI_KV_F32)
#define SHARPI_SUITE_OF(suite, model, kv) \
  INSTANTIATE_TEST_SUITE_P(suite, Compaction, ::testing::Values(Case{model, kv}), name_of);
SHARPI_COMPACTION_CASES(SHARPI_SUITE_OF)

/// A model or a codec that is added is missed here.
TEST(CompactionCases, AreOfEveryModelAndCodec) {
  std::set<std::pair<std::string, sharpi_kv_dtype>> listed, wanted;
#define SHARPI_LIST(suite, model, kv) listed.emplace(model, kv);
  SHARPI_COMPACTION_CASES(SHARPI_LIST)
  for (const std::string& m : trained_models()) wanted.emplace(m, SHARPI_KV_F32);
  for (const char* m : {"tiny-qwen3", "tiny-gemma4kv", "tiny-qwen35"}) {
    for (const sharpi_kv_dtype kv : stored_dtypes()) wanted.emplace(m, kv);
  }
  EXPECT_EQ(listed, wanted);
}

}  // namespace
}  // namespace sharpi::testing
