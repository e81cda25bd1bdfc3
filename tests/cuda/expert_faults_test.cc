// SPDX-License-Identifier: MIT
// Faults while a recorded step waits for the host: work of the experts' host that fails, throws or
// leaves, at any request of the step; a device that is lost meanwhile; memory that runs out at any
// request of a model whose blocks are on both tiers. The call ends with a status, nothing waits for
// ever, nothing is left behind, and the next call gives the bits that it would have given.
#include <chrono>
#include <new>

#include "cpu/cpu_backend.h"
#include "cuda/one_device.h"
#include "engine/engine_case.h"
#include "engine/session.h"
#include "tier/host_weights.h"

namespace sharpi::testing {
namespace {

enum class Fault : uint8_t { kNone, kFails, kThrows, kLeaves, kLosesDevice };

/// Which request fails, counted from 1 over all that are asked for; 0 = none does.
struct HostFaults {
  Fault fault = Fault::kNone;
  uint32_t at = 0, n_requests = 0;
  bool hit() { return ++n_requests == at; }
  void set(Fault f, uint32_t request) { *this = {f, request, 0}; }
} g_faults;

class FaultyHost final : public ExpertHost {
 public:
  explicit FaultyHost(std::unique_ptr<ExpertHost> inner) : in_(std::move(inner)) {}
  uint32_t max_rows() const override { return in_->max_rows(); }
  Status compute(const ExpertRequest& request) override {
    if (g_faults.hit()) return act();
    return in_->compute(request);
  }
  Status serve(ExpertLine& line) override {
    Counted counted(&line);
    SHARPI_TRY(in_->serve(counted));
    return counted.hit ? act() : Status::ok();
  }

 private:
  /// Ends at the request that fails: the one behind it never answers.
  struct Counted final : ExpertLine {
    explicit Counted(ExpertLine* line) : in(line) {}
    const ExpertRequest* next() override {
      const ExpertRequest* r = in->next();
      if (r == nullptr || !g_faults.hit()) return r;
      if (g_faults.fault == Fault::kLosesDevice) {
        lose_device();
        return r;
      }
      hit = true;
      return nullptr;
    }
    void answer() override { in->answer(); }
    ExpertLine* in;
    bool hit = false;
  };
  static void lose_device() {
    constexpr int kIllegalAddress = 700;
    const Status lost = g_device->settle(
        Status::native_error(Code::kDevice, kIllegalAddress, "a kernel of the test"));
    EXPECT_EQ(lost.code(), Code::kDeviceLost);
  }
  static Status act() {
    if (g_faults.fault == Fault::kThrows) throw std::bad_alloc();
    if (g_faults.fault == Fault::kFails)
      return Status::error(Code::kOutOfMemory, "injected failure of the host");
    return Status::ok();
  }
  std::unique_ptr<ExpertHost> in_;
};

/// The CPU tier, with such a host.
class HostTier final : public TierModel {
 public:
  explicit HostTier(std::unique_ptr<TierModel> inner) : in_(std::move(inner)) {}
  Result<std::unique_ptr<TierSession>> create_session(const SessionShape& s) override {
    return in_->create_session(s);
  }
  Result<std::unique_ptr<Workspace>> create_workspace(float* handover) override {
    return in_->create_workspace(handover);
  }
  Status run(const Segment& segment, const Submission& rows, Workspace& workspace) override {
    return in_->run(segment, rows, workspace);
  }
  Status score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
               LayerScores* out) const override {
    return in_->score(session, request, scratch, out);
  }
  Result<std::unique_ptr<ScoreScratch>> create_score_scratch(
      const ScoreShape& shape) const override {
    return in_->create_score_scratch(shape);
  }
  std::vector<MemoryRow> score_scratch_rows(const ScoreShape& shape) const override {
    return in_->score_scratch_rows(shape);
  }
  Result<std::unique_ptr<ExpertHost>> create_expert_host(Workspace& workspace) override {
    SHARPI_TRY_ASSIGN(std::unique_ptr<ExpertHost> host, in_->create_expert_host(workspace));
    return std::unique_ptr<ExpertHost>(new FaultyHost(std::move(host)));
  }
  std::vector<MemoryRow> memory_rows() const override { return in_->memory_rows(); }
  std::string paths() const override { return in_->paths(); }

 private:
  std::unique_ptr<TierModel> in_;
};

class HostBackend final : public Backend {
 public:
  explicit HostBackend(std::unique_ptr<Backend> inner) : in_(std::move(inner)) {}
  const TierSizer& sizer() const override { return in_->sizer(); }
  Status describe(uint32_t flags, sharpi_device* out) const override {
    return in_->describe(flags, out);
  }
  Result<std::unique_ptr<TierModel>> load(std::shared_ptr<const Plan> plan,
                                          const LoadProgress& progress) override {
    SHARPI_TRY_ASSIGN(std::unique_ptr<TierModel> m, in_->load(std::move(plan), progress));
    return std::unique_ptr<TierModel>(new HostTier(std::move(m)));
  }
  Result<std::unique_ptr<HostWeights>> copy_weights(const Plan& plan,
                                                    const LoadProgress& progress) override {
    return in_->copy_weights(plan, progress);
  }

 private:
  std::unique_ptr<Backend> in_;
};

Result<std::vector<std::unique_ptr<Backend>>> both_tiers(const BackendOptions&) {
  cpu::CpuBackendOptions options;
  options.n_threads = 3;
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, cpu::make_backend(options));
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::make_unique<HostBackend>(std::move(host)));
  out.push_back(cuda::make_backend(g_device));
  return out;
}

class ExpertFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = take_device(); !why.empty()) GTEST_SKIP() << why;
    ASSERT_TRUE(g_device->open().is_ok());
    g_faults = {};
    test::ModelRecipe recipe = test::tiny_qwen3moe();
    recipe.head_dim = recipe.head_dim_swa = 64;
    recipe.n_layers = 4;
    file_.emplace(recipe);
  }
  void TearDown() override { g_device.reset(); }

  /// Everything on the GPU but the routed experts, of which a few have slots.
  Status open(int32_t slots, uint32_t stream_rows = SHARPI_UNSET) {
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    SHARPI_TRY_ASSIGN(context_, Context::create(c, &both_tiers));
    SHARPI_TRY_ASSIGN(auto file, GgufFile::open(file_->path()));
    SHARPI_TRY_ASSIGN(spec_, load_model_spec(std::move(file)));
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = 256;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.session = &s;
    p.n_gpu_layers = p.n_gpu_ffn = static_cast<int32_t>(spec_->n_layers());
    p.n_gpu_experts = 0;
    p.n_expert_slots = slots;
    p.gpu_ends = 1;
    p.n_chunk = 32;
    p.deterministic = stream_rows == SHARPI_UNSET ? 1 : 0;  // residents stay as they are
    p.stream_rows = stream_rows;
    SHARPI_TRY_ASSIGN(plan_, make_plan(spec_, context_->sizers(), p, {}));
    return Status::ok();
  }
  Result<std::unique_ptr<Session>> session() {
    if (model_ == nullptr) {
      SHARPI_TRY_ASSIGN(model_, Model::load(context_, plan_, {}));
    }
    return Session::create(model_, plan_->session);
  }
  static Status prefill(Session& s, const std::vector<int32_t>& tokens) {
    sharpi_prefill_params p;
    sharpi_prefill_params_init(&p, sizeof p);
    uint32_t committed = 0;
    return s.prefill(tokens, p, &committed);
  }
  Logits logits(const Session& s) const {
    Logits out(spec_->n_vocab);
    EXPECT_TRUE(s.logits(0, out.data()).is_ok());
    return out;
  }
  /// The call fails as it was told to, soon.
  static void expect_fault(const std::function<Status()>& call, Fault fault) {
    const auto start = std::chrono::steady_clock::now();
    // What a tier throws for want of memory ends as a status, so that the call can be undone.
    const bool no_memory = fault == Fault::kFails || fault == Fault::kThrows;
    const Status s = call();
    EXPECT_EQ(s.code(), no_memory ? Code::kOutOfMemory : Code::kInternal) << s.text();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took.count(), 1.5) << "less than the patience of either side";
  }
  std::optional<MadeModel> file_;
  std::shared_ptr<Context> context_;
  std::shared_ptr<const ModelSpec> spec_;
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<Model> model_;
};

TEST_F(ExpertFaults, AStepWhoseHostFailsEndsAndTheNextOneIsRight) {
  for (const int32_t slots : {0, 5}) {
    model_.reset();
    const Status opened = open(slots);
    ASSERT_TRUE(opened.is_ok()) << opened.text();
    auto made = session(), twin = session();
    ASSERT_TRUE(made.is_ok() && twin.is_ok()) << made.status().text();
    Session &a = *made.value(), &b = *twin.value();
    const auto tokens = file_->tokens(40);
    ASSERT_TRUE(prefill(a, tokens).is_ok() && prefill(b, tokens).is_ok());
    ASSERT_TRUE(a.decode(1).is_ok() && b.decode(1).is_ok());
    g_faults.set(Fault::kNone, 0);
    ASSERT_TRUE(a.decode(2).is_ok() && b.decode(2).is_ok());
    const uint32_t asked = g_faults.n_requests / 2;
    ASSERT_GE(asked, 1u) << "nothing was asked for";
    for (const Fault fault : {Fault::kFails, Fault::kThrows, Fault::kLeaves}) {
      for (uint32_t request = 1; request <= asked; ++request) {
        g_faults.set(fault, request);
        expect_fault([&] { return b.decode(3); }, fault);
        g_faults.set(Fault::kNone, 0);
        const Status again = b.decode(3);
        ASSERT_TRUE(again.is_ok()) << again.text();
        ASSERT_TRUE(a.decode(3).is_ok());
        ASSERT_TRUE(same_bits(logits(a), logits(b)))
            << "slots " << slots << ", request " << request;
      }
    }
  }
}

TEST_F(ExpertFaults, APromptWhoseHostFailsKeepsItsWholeChunks) {
  ASSERT_TRUE(open(0).is_ok());
  auto made = session(), twin = session();
  ASSERT_TRUE(made.is_ok() && twin.is_ok()) << made.status().text();
  Session &a = *made.value(), &b = *twin.value();
  const auto tokens = file_->tokens(64);  // two chunks
  g_faults.set(Fault::kNone, 0);
  ASSERT_TRUE(prefill(a, tokens).is_ok());
  const uint32_t asked = g_faults.n_requests;
  ASSERT_EQ(asked, 2 * spec_->n_layers());
  for (const Fault fault : {Fault::kFails, Fault::kThrows}) {
    for (uint32_t request = 1; request <= asked; ++request) {
      ASSERT_TRUE(b.truncate(0).is_ok());
      g_faults.set(fault, request);
      expect_fault([&] { return prefill(b, tokens); }, fault);
      g_faults.set(Fault::kNone, 0);
      sharpi_session_summary info{};
      b.info(&info);
      ASSERT_EQ(info.n_tokens, request <= asked / 2 ? 0u : 32u);
      ASSERT_TRUE(prefill(b, slice(tokens, info.n_tokens, 64)).is_ok());
      ASSERT_TRUE(same_bits(logits(a), logits(b))) << "request " << request;
    }
  }
}

TEST_F(ExpertFaults, ADeviceThatIsLostWhileItWaitsEndsTheStep) {
  ASSERT_TRUE(open(0).is_ok());
  auto made = session();
  ASSERT_TRUE(made.is_ok()) << made.status().text();
  Session& s = *made.value();
  ASSERT_TRUE(prefill(s, file_->tokens(40)).is_ok());
  ASSERT_TRUE(s.decode(1).is_ok() && s.decode(2).is_ok());
  g_faults.set(Fault::kLosesDevice, 2);
  const auto start = std::chrono::steady_clock::now();
  const Status lost = s.decode(3);
  EXPECT_EQ(lost.code(), Code::kDeviceLost) << lost.text();
  EXPECT_EQ(s.decode(3).code(), Code::kDeviceLost);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 5.0);
}

/// Loads, reads and decodes on both tiers.
Status use_both(const std::shared_ptr<Context>& context, const std::shared_ptr<const Plan>& plan,
                const std::vector<int32_t>& tokens) {
  SHARPI_TRY_ASSIGN(auto model, Model::load(context, plan, {}));
  SHARPI_TRY_ASSIGN(auto session, Session::create(model, plan->session));
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  uint32_t committed = 0;
  SHARPI_TRY(session->prefill(tokens, p, &committed));
  for (int32_t t = 1; t < 6; ++t) SHARPI_TRY(session->decode(t));
  return Status::ok();
}

TEST_F(ExpertFaults, MemoryThatRunsOutAtAnyRequestLeavesNothing) {
  const Status opened = open(5, 16);  // slots, staging, streamed weights
  ASSERT_TRUE(opened.is_ok()) << opened.text();
  ASSERT_TRUE(streams_weights(*spec_, plan_->placement, plan_->model));
  const auto tokens = file_->tokens(40);
  uint64_t n_failed = 0;
  for (uint64_t n = 1; n < 1000; ++n) {
    g_device->fail_allocation(n);
    const Status s = use_both(context_, plan_, tokens);
    g_device->fail_allocation(0);
    EXPECT_EQ(g_device->live_bytes(), 0u) << "request " << n;
    if (s.is_ok()) break;
    ASSERT_EQ(s.code(), Code::kOutOfMemory) << "request " << n << ": " << s.text();
    EXPECT_NE(s.text().find("no memory for"), std::string::npos) << s.text();
    ++n_failed;
  }
  EXPECT_GT(n_failed, 20u);
  const Status again = use_both(context_, plan_, tokens);
  EXPECT_TRUE(again.is_ok()) << again.text();
}

}  // namespace
}  // namespace sharpi::testing
