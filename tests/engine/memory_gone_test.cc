// SPDX-License-Identifier: MIT
// Memory that another process takes between plan and load, on either tier, without a GPU: refused
// with the numbers before anything is taken, and the same plan loads when the memory is back.
#include "engine/inner_engine.h"
#include "support/second_tier.h"

namespace sharpi::testing {
namespace {

/// Free memory as each tier of this test sees it; index 0 is the host.
uint64_t free_now[2];
uint32_t n_loads[2];

/// A backend on a machine whose free memory the test decides about.
class SharedMachine final : public Backend, public TierSizer {
 public:
  SharedMachine(std::unique_ptr<Backend> inner, size_t index)
      : in_(std::move(inner)), index_(index) {}
  const TierSizer& sizer() const override { return *this; }
  TierId tier() const override { return in_->sizer().tier(); }
  uint32_t device_index() const override { return in_->sizer().device_index(); }
  uint64_t free_bytes() const override { return free_now[index_]; }
  uint64_t total_bytes() const override { return 1ull << 40; }
  std::string device_id() const override { return in_->sizer().device_id(); }
  std::string device_name() const override { return index_ == 0 ? "the host" : "the device"; }
  std::vector<MemoryRow> model_rows(const ModelSpec& spec, const Placement& placement,
                                    const ModelShape& model,
                                    const SessionShape& session) const override {
    return mine(in_->sizer().model_rows(spec, placement, model, session));
  }
  std::vector<MemoryRow> session_rows(const ModelSpec& spec, const Placement& placement,
                                      const ModelShape& model,
                                      const SessionShape& session) const override {
    return mine(in_->sizer().session_rows(spec, placement, model, session));
  }
  Status describe(uint32_t flags, sharpi_device* out) const override {
    return in_->describe(flags, out);
  }
  Result<std::unique_ptr<TierModel>> load(std::shared_ptr<const Plan> plan,
                                          const LoadProgress& progress) override {
    ++n_loads[index_];
    return in_->load(std::move(plan), progress);
  }
  Result<std::unique_ptr<HostWeights>> copy_weights(const Plan& plan,
                                                    const LoadProgress& progress) override {
    return in_->copy_weights(plan, progress);
  }
  std::vector<MemoryRow> copied_weight_plan_rows(const ModelSpec& spec,
                                                 const Placement& placement) const override {
    return in_->sizer().copied_weight_plan_rows(spec, placement);
  }

 private:
  /// The second CPU backend's rows as a device has them.
  std::vector<MemoryRow> mine(std::vector<MemoryRow> rows) const {
    for (MemoryRow& r : rows) r.kind = index_ == 0 ? r.kind : SHARPI_ROW_DEVICE;
    return rows;
  }
  std::unique_ptr<Backend> in_;
  size_t index_;
};

Result<std::vector<std::unique_ptr<Backend>>> shared_machine(const BackendOptions&) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, small_cpu());
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> other, small_cpu());
  auto device = std::make_unique<SecondBackend>(std::move(other));
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::make_unique<SharedMachine>(std::move(host), 0));
  out.push_back(std::make_unique<SharedMachine>(std::move(device), 1));
  return out;
}

class MemoryGone : public ::testing::Test {
 protected:
  void SetUp() override {
    free_now[0] = free_now[1] = 1ull << 40;
    n_loads[0] = n_loads[1] = 0;
    test::ModelRecipe recipe = test::tiny_qwen3();
    recipe.n_layers = 4;
    file_.emplace(recipe);
    auto engine = InnerEngine::open(file_->path(), &shared_machine);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    engine_ = engine.take();
    auto plan = engine_.plan([](sharpi_plan_params* p, sharpi_session_params* s) {
      p->n_gpu_layers = p->n_gpu_ffn = 2;
      p->n_chunk = 64;
      p->stream_rows = SHARPI_UNSET;
      s->k_dtype = s->v_dtype = SHARPI_KV_F32;
    });
    ASSERT_TRUE(plan.is_ok()) << plan.status().text();
    plan_ = plan.take();
  }
  std::optional<MadeModel> file_;
  InnerEngine engine_;
  std::shared_ptr<const Plan> plan_;
};

TEST_F(MemoryGone, BetweenPlanAndLoadIsRefusedWithTheNumbersAndTheRetryWorks) {
  const uint64_t need[2] = {model_bytes(plan_->rows, DeviceIndex::kHost),
                            model_bytes(plan_->rows, DeviceIndex::kHere)};
  const char* const names[2] = {"the host", "the device"};
  for (size_t tier = 0; tier < 2; ++tier) {
    ASSERT_GT(need[tier], 1000u) << names[tier] << " takes nothing: the test would prove nothing";
    for (const uint64_t gone : {uint64_t{1}, uint64_t{1000}, need[tier]}) {
      free_now[tier] = need[tier] - gone;
      const auto refused = Model::load(engine_.context, plan_, nullptr);
      ASSERT_FALSE(refused.is_ok());
      EXPECT_EQ(refused.status().code(), Code::kOutOfMemory);
      const std::string want = std::to_string(need[tier]) + " bytes of " + names[tier] +
                               ", of which " + std::to_string(free_now[tier]) +
                               " are free now: " + std::to_string(gone) + " are missing";
      EXPECT_NE(refused.status().text().find(want), std::string::npos) << refused.status().text();
      EXPECT_EQ(refused.status().text().find("load_mode MAP") != std::string::npos, tier == 0)
          << "only the host's weights could stay in the file: " << refused.status().text();
      EXPECT_EQ(n_loads[0] + n_loads[1], 0u) << "nothing was taken";
    }
    free_now[tier] = need[tier];
  }
  auto model = Model::load(engine_.context, plan_, nullptr);
  ASSERT_TRUE(model.is_ok()) << model.status().text();
  EXPECT_EQ(n_loads[0], 1u);
  EXPECT_EQ(n_loads[1], 1u);
  const auto s = make_session(model.value(), plan_->session);
  prefill(s.get(), file_->tokens(70));
  decode(s.get(), 3);
}

}  // namespace
}  // namespace sharpi::testing
