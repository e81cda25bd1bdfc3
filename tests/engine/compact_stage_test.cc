// SPDX-License-Identifier: MIT
// A tier that fails while a compaction scores or stages, or while memory is committed: the session
// is bit for bit as before, and goes on.
#include <cstring>

#include "engine/inner_engine.h"
#include "engine/session_blob.h"
#include "support/faulty_tier.h"
#include "support/session_rows.h"

namespace sharpi::testing {
namespace {

Faults faults;

Result<std::vector<std::unique_ptr<Backend>>> faulty_backends(const BackendOptions&) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, small_cpu());
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::make_unique<FaultyBackend>(std::move(host), &faults));
  return out;
}

class CompactStage : public ::testing::TestWithParam<test::ModelRecipe> {
 protected:
  void SetUp() override {
    faults = Faults{};
    file_.emplace(GetParam());
    auto engine = InnerEngine::open(file_->path(), &faulty_backends);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    auto plan = engine.value().plan([](sharpi_plan_params* p, sharpi_session_params* s) {
      s->capture_window = 16;
      p->n_gpu_layers = 0;
      p->n_chunk = 32;
    });
    ASSERT_TRUE(plan.is_ok()) << plan.status().text();
    plan_ = plan.take();
    auto model = Model::load(engine.value().context, plan_, nullptr);
    ASSERT_TRUE(model.is_ok()) << model.status().text();
    model_ = model.take();
  }
  std::unique_ptr<Session> read(uint32_t n) {
    std::unique_ptr<Session> s = make_session(model_, plan_->session);
    if (s == nullptr) return s;
    sharpi_sampler_params sampler = default_sampler_params();
    sampler.seed = 1;  // saved forms are compared, and seeds differ from session to session
    EXPECT_TRUE(s->set_sampler(sampler).is_ok());
    prefill(s.get(), file_->tokens(n));
    return s;
  }
  static std::vector<std::byte> blob(const Session& s) {
    auto bytes = s.save_bytes();
    EXPECT_TRUE(bytes.is_ok());
    std::vector<std::byte> out(bytes.value());
    MemorySink sink(out.data());
    EXPECT_TRUE(s.save(&sink, out.size()).is_ok());
    return out;
  }
  Logits logits(const Session& s) const { return logits_of(s, model_->spec()); }
  static sharpi_compact_params request(sharpi_policy policy) {
    sharpi_compact_params p;
    sharpi_compact_params_init(&p, sizeof p);
    p.policy = policy;
    p.budget = 50;
    p.recency = 8;
    p.headroom = 20;
    return p;
  }
  std::optional<MadeModel> file_;
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<Model> model_;
};

/// A tier that stores one count of rows for all heads, as GPUs do.
TEST_P(CompactStage, OneCountForEveryHeadIsRefusedByTheLayerWhereNoTierKeepsRowsSo) {
  const std::unique_ptr<Session> s = read(90);
  ASSERT_NE(s, nullptr);
  const std::vector<std::byte> before = blob(*s);
  sharpi_compact_params p = request(SHARPI_POLICY_SNAPKV);
  p.layer_budget = SHARPI_LAYER_BUDGET_SHARED;
  const Status refused = s->compact(p, nullptr);
  EXPECT_EQ(refused.code(), Code::kUnsupported) << refused.text();
  const char* says = "keeps rows by head, which the device of layer ";
  EXPECT_NE(refused.text().find(says), std::string::npos) << refused.text();
  EXPECT_EQ(faults.n_staged, 0);
  EXPECT_TRUE(blob(*s) == before);
  p.layer_budget = SHARPI_LAYER_BUDGET_EQUAL;
  EXPECT_TRUE(s->compact(p, nullptr).is_ok());
}

TEST_P(CompactStage, AFailureAtAnyStepLeavesTheSessionBitForBit) {
  for (const sharpi_policy policy :
       {SHARPI_POLICY_GLOBAL, SHARPI_POLICY_SNAPKV, SHARPI_POLICY_RETRIEVAL}) {
    faults = Faults{};
    const auto session = read(180), twin = read(180);
    const auto before = blob(*session);
    sharpi_compact_report report{};
    int n_score = 0;
    for (int at = 1; at < 100; ++at, ++n_score) {  // scoring, layer by layer
      faults.fail_score = at;
      faults.fail_stage = 1;  // reached when no scoring fails any more
      const Status s = session->compact(request(policy), &report);
      ASSERT_EQ(s.code(), Code::kOutOfMemory) << s.text();
      ASSERT_TRUE(blob(*session) == before) << "scoring " << at;
      if (faults.fail_stage == 0) break;
    }
    EXPECT_GE(n_score, 1);
    EXPECT_EQ(faults.n_staged, 1);
    EXPECT_EQ(faults.n_applied, 0) << "nothing is applied unless everything is staged";
    EXPECT_GE(faults.n_discarded, 1);
    faults.fail_score = faults.fail_stage = 0;
    for (const int32_t t : file_->tokens(3, 4)) {
      ASSERT_TRUE(session->decode(t).is_ok());
      ASSERT_TRUE(twin->decode(t).is_ok());
      ASSERT_TRUE(same_bits(logits(*session), logits(*twin)));
    }
    ASSERT_TRUE(session->compact(request(policy), &report).is_ok());
    ASSERT_TRUE(twin->compact(request(policy), &report).is_ok());
    EXPECT_EQ(report.rows_after, 50u);
    EXPECT_TRUE(blob(*session) == blob(*twin));
  }
}

TEST_P(CompactStage, AFailedReserveChangesNothing) {
  const auto session = read(180);
  sharpi_compact_report report{};
  ASSERT_TRUE(session->compact(request(SHARPI_POLICY_SPAN), &report).is_ok());
  EXPECT_EQ(report.capacity, 70u);
  const auto before = blob(*session);
  faults.fail_reserve = 1;
  EXPECT_EQ(session->reserve(200).code(), Code::kOutOfMemory);
  sharpi_session_summary info{};
  session->info(&info);
  EXPECT_EQ(info.capacity, 70u);
  EXPECT_TRUE(blob(*session) == before);
  ASSERT_TRUE(session->reserve(200).is_ok());
  session->info(&info);
  EXPECT_GE(info.capacity, 200u);
}

INSTANTIATE_TEST_SUITE_P(
    Engine, CompactStage,
    ::testing::ValuesIn(test::with_newer_kinds({test::tiny_qwen3(), test::tiny_gemma4(),
                                                test::tiny_qwen35(), test::tiny_llama(),
                                                test::tiny_gemma3()})),
    [](const ::testing::TestParamInfo<test::ModelRecipe>& info) { return info.param.arch; });

}  // namespace
}  // namespace sharpi::testing
