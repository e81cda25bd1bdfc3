// SPDX-License-Identifier: MIT
// Steps of one row on a GPU, token by token against the goldens: in chains, and launch by launch
// where shared memory has no room for them; the model says which of both it does. Steps of sessions
// that decode together, in the same ways.
#include "cuda/kernels/products/chain.h"
#include "cuda/one_device.h"
#include "engine/engine_case.h"
#include "engine/session.h"
#include "engine/session_batch.h"

namespace sharpi::testing {
namespace {

class Chains : public ModelTest {
 protected:
  void SetUp() override {
    if (const std::string why = take_device(); !why.empty()) GTEST_SKIP() << why;
    ModelTest::SetUp();
  }
  void TearDown() override { g_device.reset(); }

  Status load_model(std::shared_ptr<Model>* out, uint32_t n_sessions = 1) {
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    SHARPI_TRY_ASSIGN(auto context, Context::create(c, &only_device));
    SHARPI_TRY_ASSIGN(auto file, GgufFile::open(path()));
    SHARPI_TRY_ASSIGN(spec_, load_model_spec(std::move(file)));
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = 1024;  // the longest case has 879 tokens
    s.k_dtype = s.v_dtype = SHARPI_KV_F32;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.session = &s;
    p.load_mode = SHARPI_LOAD_MAP;  // there is no CPU tier to copy anything
    p.n_gpu_layers = p.n_gpu_ffn = static_cast<int32_t>(spec_->n_layers());
    p.arithmetic = SHARPI_ARITHMETIC_FAST;
    p.host_budget = 1ull << 32;
    p.n_sessions = n_sessions;
    SHARPI_TRY_ASSIGN(auto plan, make_plan(spec_, context->sizers(), p, {}));
    SHARPI_TRY_ASSIGN(*out, Model::load(context, plan, {}));
    return Status::ok();
  }

  /// Every token of every case as a step of its own.
  std::vector<Logits> steps(const std::shared_ptr<Model>& model) {
    std::vector<Logits> rows;
    for (const GoldenCase& g : golden_.cases) {
      auto made = Session::create(model, model->plan().session);
      EXPECT_TRUE(made.is_ok()) << made.status().text();
      if (!made.is_ok()) return rows;
      const std::unique_ptr<Session> session = made.take();
      for (const int32_t token : g.tokens) {
        const Status done = session->decode(token);
        EXPECT_TRUE(done.is_ok()) << done.text();
        rows.emplace_back(spec_->n_vocab);
        EXPECT_TRUE(session->logits(0, rows.back().data()).is_ok());
      }
    }
    return rows;
  }

  /// How often a row's best token is the golden one, of all rows and of those where it is clear.
  struct Count {
    size_t all = 0, equal = 0, clear = 0, clear_equal = 0;
    void add(const GoldenCase& g, size_t p, const Logits& row) {
      const bool same = best_of(row) == static_cast<size_t>(g.top5[p][0]);
      const bool wide = g.top5_logits[p][0] - g.top5_logits[p][1] > 0.25f;
      all += 1;
      equal += same ? 1 : 0;
      clear += wide ? 1 : 0;
      clear_equal += wide && same ? 1 : 0;
    }
    void expect_good(const std::string& what) const {
      EXPECT_GT(all, 0u) << what;
      EXPECT_GE(static_cast<double>(equal), 0.95 * static_cast<double>(all)) << what;
      EXPECT_GE(static_cast<double>(clear_equal), 0.995 * static_cast<double>(clear)) << what;
    }
  };

  void expect_goldens(const std::vector<Logits>& rows, const char* what) {
    size_t at = 0;
    Count count;
    for (const GoldenCase& g : golden_.cases) {
      for (size_t p = 0; p < g.tokens.size(); ++p, ++at) {
        ASSERT_LT(at, rows.size());
        count.add(g, p, rows[at]);
      }
    }
    count.expect_good(what);
  }

  /// Sessions decode together, each a case of the goldens, as far as the shortest of these goes.
  void expect_together(const std::shared_ptr<Model>& model, uint32_t n, const char* what) {
    std::vector<std::unique_ptr<Session>> made(n);
    std::vector<Session*> sessions;
    size_t length = SIZE_MAX;
    const auto case_of = [&](uint32_t i) -> const GoldenCase& {
      return golden_.cases[i % golden_.cases.size()];
    };
    for (uint32_t i = 0; i < n; ++i) {
      auto session = Session::create(model, model->plan().session);
      ASSERT_TRUE(session.is_ok()) << session.status().text();
      made[i] = session.take();
      sessions.push_back(made[i].get());
      length = std::min(length, case_of(i).tokens.size());
    }
    Count count;
    std::vector<int32_t> tokens(n);
    Logits row(spec_->n_vocab);
    for (size_t p = 0; p < length; ++p) {
      for (uint32_t i = 0; i < n; ++i) tokens[i] = case_of(i).tokens[p];
      const Status done = SessionBatch::decode(sessions, tokens);
      ASSERT_TRUE(done.is_ok()) << done.text();
      for (uint32_t i = 0; i < n; ++i) {
        ASSERT_TRUE(sessions[i]->logits(0, row.data()).is_ok());
        count.add(case_of(i), p, row);
      }
    }
    count.expect_good(what + std::string(", sessions: ") + std::to_string(n));
  }

  std::shared_ptr<const ModelSpec> spec_;
};

TEST_P(Chains, GiveTheGoldensWithAndWithoutRoom) {
  std::vector<Logits> chained, apart;
  {
    std::shared_ptr<Model> model;
    const Status loaded = load_model(&model);
    ASSERT_TRUE(loaded.is_ok()) << loaded.text();
    EXPECT_NE(model->paths().find("steps of one row: fixed point, chained"), std::string::npos)
        << model->paths();
    EXPECT_EQ(model->paths().find("room"), std::string::npos) << model->paths();
    chained = steps(model);
    expect_goldens(chained, "chained");
  }
  {
    g_device->limit_chains(1 << 10);
    std::shared_ptr<Model> model;
    const Status loaded = load_model(&model);
    ASSERT_TRUE(loaded.is_ok()) << loaded.text();
    EXPECT_NE(model->paths().find("steps of one row: launch by launch, no room for chains"),
              std::string::npos)
        << model->paths();
    apart = steps(model);
    expect_goldens(apart, "apart");
  }
  expect_same_argmax(apart, chained, "apart and chained");
}

TEST_P(Chains, OfSeveralRowsGiveTheGoldensWithAndWithoutRoom) {
  cuda::KernelConfig config;
  config.device = g_device->profile();
  // Where blocks have rings, one row: then the paths have nothing to say of several.
  const bool chains = cuda::max_chain_rows(config) > 1;
  for (const bool room : {true, false}) {
    if (!room) g_device->limit_chains(1 << 10);
    std::shared_ptr<Model> model;
    const Status loaded = load_model(&model, cuda::kMaxChainRows);
    ASSERT_TRUE(loaded.is_ok()) << loaded.text();
    const std::string paths = model->paths();
    const char* said = !chains ? "steps of several rows"
                       : room  ? "steps of several rows: fixed point, chained"
                               : "steps of several rows: launch by launch, no room";
    EXPECT_EQ(paths.find(said) != std::string::npos, chains) << paths;
    for (uint32_t n = 2; n <= cuda::kMaxChainRows; ++n)
      expect_together(model, n, chains && room ? "chained" : "apart");
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, Chains,
                         ::testing::Values("tiny-qwen3", "tiny-gemma4kv", "tiny-qwen35"));

}  // namespace
}  // namespace sharpi::testing
