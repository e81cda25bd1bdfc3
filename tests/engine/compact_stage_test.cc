// SPDX-License-Identifier: MIT
// A tier that fails while a compaction scores or stages, or while memory is committed: the session
// is bit for bit as before, and goes on.
#include <cstring>

#include "cpu/cpu_backend.h"
#include "engine/session.h"
#include "engine_case.h"
#include "support/faulty_tier.h"
#include "support/session_rows.h"

namespace sharpi::testing {
namespace {

Faults faults;

Result<std::vector<std::unique_ptr<Backend>>> faulty_backends(const BackendOptions&) {
  cpu::CpuBackendOptions options;
  options.n_threads = 2;
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, cpu::make_backend(options));
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::make_unique<FaultyBackend>(std::move(host), &faults));
  return out;
}

class CompactStage : public ::testing::TestWithParam<test::ModelRecipe> {
 protected:
  void SetUp() override {
    faults = Faults{};
    file_.emplace(GetParam());
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    c.flags = SHARPI_CONTEXT_IGNORE_ENV;
    auto context = Context::create(c, &faulty_backends);
    ASSERT_TRUE(context.is_ok()) << context.status().text();
    context_ = context.take();
    const auto spec = spec_of(file_->path());
    ASSERT_TRUE(spec);
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = 256;
    s.capture_window = 16;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.n_gpu_layers = 0;
    p.n_chunk = 32;
    p.session = &s;
    auto plan = make_plan(spec, context_->sizers(), p, {});
    ASSERT_TRUE(plan.is_ok()) << plan.status().text();
    plan_ = plan.take();
    auto model = Model::load(context_, plan_, nullptr);
    ASSERT_TRUE(model.is_ok()) << model.status().text();
    model_ = model.take();
  }
  std::unique_ptr<Session> read(uint32_t n) {
    auto made = Session::create(model_, plan_->session);
    EXPECT_TRUE(made.is_ok()) << made.status().text();
    std::unique_ptr<Session> s = made.take();
    sharpi_prefill_params p;
    sharpi_prefill_params_init(&p, sizeof p);
    uint32_t committed = 0;
    const auto tokens = file_->tokens(n);
    const Status done = s->prefill(tokens, p, &committed);
    EXPECT_TRUE(done.is_ok()) << done.text();
    return s;
  }
  static std::vector<std::byte> blob(const Session& s) {
    auto bytes = s.save_bytes();
    EXPECT_TRUE(bytes.is_ok());
    std::vector<std::byte> out(bytes.value());
    EXPECT_TRUE(s.save(out.data(), out.size()).is_ok());
    return out;
  }
  std::vector<float> logits(const Session& s) {
    std::vector<float> out(model_->spec().n_vocab);
    EXPECT_TRUE(s.logits(0, out.data()).is_ok());
    return out;
  }
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
  std::shared_ptr<Context> context_;
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<Model> model_;
};

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

INSTANTIATE_TEST_SUITE_P(Engine, CompactStage,
                         ::testing::Values(test::tiny_qwen3(), test::tiny_gemma4(),
                                           test::tiny_qwen35()),
                         [](const ::testing::TestParamInfo<test::ModelRecipe>& info) {
                           return info.param.arch;
                         });

}  // namespace
}  // namespace sharpi::testing
