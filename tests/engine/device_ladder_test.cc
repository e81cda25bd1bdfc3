// SPDX-License-Identifier: MIT
// Models on several devices, seen without a GPU: CPU backends pose as devices, so however layers
// are shared among them and the host, a model must give the very bits of one tier, in everything
// that sessions do. Trained models meet their goldens.
#include <cmath>
#include <map>
#include <set>

#include "api/api_handles.h"
#include "engine/allowance.h"
#include "engine/engine_case.h"
#include "inner_engine.h"
#include "support/device_ladders.h"
#include "support/second_tier.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kDevices = 3;

/// Hosts of experts that each posed device was told of.
std::map<uint32_t, std::set<ExpertHost*>> hosts_of;

/// A posed device that would ask for experts, and so has slots for them to be put on the host.
class AskingModel final : public TierModel {
 public:
  AskingModel(std::unique_ptr<TierModel> inner, uint32_t index)
      : in_(std::move(inner)), index_(index) {}
  Result<std::unique_ptr<TierSession>> create_session(const SessionShape& shape) override {
    return in_->create_session(shape);
  }
  Result<std::unique_ptr<Workspace>> create_workspace(float* handover) override {
    return in_->create_workspace(handover);
  }
  Status run(const Segment& segment, const Submission& rows, Workspace& w) override {
    return in_->run(segment, rows, w);
  }
  Status score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
               LayerScores* out) const override {
    return in_->score(session, request, scratch, out);
  }
  Result<std::unique_ptr<ScoreScratch>> create_score_scratch(const ScoreShape& s) const override {
    return in_->create_score_scratch(s);
  }
  std::vector<MemoryRow> score_scratch_rows(const ScoreShape& s) const override {
    return in_->score_scratch_rows(s);
  }
  void use_expert_host(Workspace&, ExpertHost* host) override { hosts_of[index_].insert(host); }
  std::vector<MemoryRow> memory_rows() const override { return in_->memory_rows(); }
  std::string paths() const override { return in_->paths(); }

 private:
  std::unique_ptr<TierModel> in_;
  uint32_t index_;
};

class PosedBackend final : public Backend, public TierSizer {
 public:
  explicit PosedBackend(std::unique_ptr<Backend> inner, uint32_t index)
      : in_(std::move(inner), index) {}
  const TierSizer& sizer() const override { return *this; }
  TierId tier() const override { return in_.tier(); }
  uint32_t device_index() const override { return in_.device_index(); }
  uint64_t free_bytes() const override { return in_.free_bytes(); }
  uint64_t total_bytes() const override { return in_.total_bytes(); }
  std::string device_name() const override { return in_.device_name(); }
  std::string device_id() const override { return in_.device_id(); }
  uint64_t expert_slot_bytes(const ModelSpec&, const Placement&) const override { return 64; }
  std::vector<MemoryRow> model_rows(const ModelSpec& spec, const Placement& placement,
                                    const ModelShape& model,
                                    const SessionShape& session) const override {
    return in_.model_rows(spec, placement, model, session);
  }
  std::vector<MemoryRow> session_rows(const ModelSpec& spec, const Placement& placement,
                                      const ModelShape& model,
                                      const SessionShape& session) const override {
    return in_.session_rows(spec, placement, model, session);
  }
  Status describe(uint32_t flags, sharpi_device* out) const override {
    return in_.describe(flags, out);
  }
  Result<std::unique_ptr<TierModel>> load(std::shared_ptr<const Plan> plan,
                                          const LoadProgress& progress) override {
    auto own = std::make_shared<Plan>(*plan);  // it computes what it would ask for
    for (size_t l = 0; l < own->placement.ffn.size(); ++l) {
      DeviceIndex& experts = own->placement.experts[l];
      if (is_host(experts)) experts = own->placement.ffn[l];
    }
    SHARPI_TRY_ASSIGN(std::unique_ptr<TierModel> m, in_.load(std::move(own), progress));
    return std::unique_ptr<TierModel>(new AskingModel(std::move(m), device_index()));
  }
  Result<std::unique_ptr<TierModel>> load_beside(TierModel&,
                                                 std::shared_ptr<const Plan> plan) override {
    return in_.load(std::move(plan), nullptr);
  }

 private:
  mutable SecondBackend in_;
};

Result<std::vector<std::unique_ptr<Backend>>> posed_backends(const BackendOptions&) {
  std::vector<std::unique_ptr<Backend>> out;
  for (uint32_t index = 0; index <= kDevices; ++index) {
    SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> cpu, small_cpu());
    if (index != 0) cpu = std::make_unique<PosedBackend>(std::move(cpu), index);
    out.push_back(std::move(cpu));
  }
  return out;
}

sharpi_context* posed_context() {
  static const ContextPtr kContext = [] {
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    auto made = Context::create(c, &posed_backends);
    EXPECT_TRUE(made.is_ok()) << made.status().text();
    auto handle = std::make_unique<sharpi_context>();
    if (made.is_ok()) handle->p = made.take();
    return ContextPtr(handle.release());
  }();
  return kContext.get();
}

const LadderMachine& posed() {
  static const LadderMachine kMachine{posed_context()};
  return kMachine;
}

class DeviceLadder : public ::testing::TestWithParam<test::ModelRecipe> {};

TEST_P(DeviceLadder, EveryLadderGivesTheBitsOfOneTier) {
  const MadeModel file(GetParam());
  const auto n = static_cast<int32_t>(GetParam().n_layers);
  const auto prompt = file.tokens(100);
  const auto want = talk(posed().load(file.path(), {}), prompt);
  uint32_t n_compared = 0;
  for (const Ladder& ladder : ladders(n)) {
    int32_t on_devices = 0;
    for (const auto& [device, layers] : ladder) on_devices += layers;
    for (const auto& [ffn, ends, stream] :
         {std::tuple{on_devices, 1, SHARPI_UNSET}, std::tuple{on_devices - 1, 0, SHARPI_UNSET},
          std::tuple{1, 1, 1u}}) {
      sharpi_error why = SHARPI_ERROR_INIT;
      const Loaded l = posed().try_load(
          file.path(), ladder, &why, [&, ffn = ffn, ends = ends, stream = stream](auto* p, auto*) {
            p->n_gpu_ffn = ffn;
            p->gpu_ends = ends;
            p->stream_rows = stream;
          });
      if (why.status == SHARPI_E_UNSUPPORTED) {
        EXPECT_NE(std::string(why.text).find("KV rows"), std::string::npos) << why.text;
        continue;
      }
      ASSERT_TRUE(l.model) << why.text;
      expect_same_rows(talk(l, prompt), want,
                       text_of(ladder) + std::to_string(ffn) + " FFNs, ends " +
                           std::to_string(ends) + ", stream " + std::to_string(stream));
      ++n_compared;
    }
  }
  EXPECT_GE(n_compared, 3u);
}

TEST_P(DeviceLadder, SessionsDoTheSameOnAnyLadder) {
  const MadeModel file(GetParam());
  const auto n = static_cast<int32_t>(GetParam().n_layers);
  const Loaded one = posed().load(file.path(), {}, with_checkpoints);
  const auto before = session_life(one, file, nullptr);
  const auto want = session_life(one, file, &before.front());
  const std::vector<Ladder> some = posed().few(file.path(), n);
  ASSERT_FALSE(some.empty());
  for (const Ladder& ladder : some) {
    const auto got =
        session_life(posed().load(file.path(), ladder, with_checkpoints), file, &before.front());
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(got[i] == want[i]) << text_of(ladder) << "blob " << i;
  }
}

/// By label and, for what the plan says, by device.
TEST_P(DeviceLadder, EveryByteIsPlannedAndHasADevice) {
  const MadeModel file(GetParam());
  const auto n = static_cast<int32_t>(GetParam().n_layers);
  for (const Ladder& ladder : posed().few(file.path(), n)) {
    const Loaded l = posed().load(file.path(), ladder);
    const Chat chat(l.model.get());
    std::map<std::string, uint64_t> want, got;
    std::map<uint32_t, uint64_t> on_device;
    const auto rows_of = [](const auto& read, const auto* of) {
      uint32_t count = 0;
      (void)read(of, nullptr, sizeof(sharpi_memory_row), 0, &count, nullptr);
      std::vector<sharpi_memory_row> rows(count);
      EXPECT_EQ(read(of, rows.data(), sizeof(sharpi_memory_row), count, &count, nullptr),
                SHARPI_OK);
      return rows;
    };
    for (const sharpi_memory_row& r : rows_of(sharpi_plan_rows, l.plan.get())) {
      want[r.label] += r.held_bytes;
      on_device[r.device] += r.held_bytes;
    }
    for (const auto& rows : {rows_of(sharpi_model_memory, l.model.get()),
                             rows_of(sharpi_session_memory, chat.get())}) {
      for (const sharpi_memory_row& r : rows) got[r.label] += r.held_bytes;
    }
    EXPECT_EQ(got, want) << text_of(ladder);
    for (const auto& [device, layers] : ladder) EXPECT_GT(on_device[device], 0u) << device;
    uint32_t segments = 0;
    std::vector<sharpi_segment_info> info(64);
    ASSERT_EQ(
        sharpi_model_segments(l.model.get(), info.data(), sizeof info[0], 64, &segments, nullptr),
        SHARPI_OK);
    std::set<uint32_t> seen;
    for (uint32_t i = 0; i < segments; ++i) seen.insert(info[i].device);
    for (const auto& [device, layers] : ladder) EXPECT_EQ(seen.count(device), 1u) << device;
  }
}

test::ModelRecipe with_layers(test::ModelRecipe recipe, uint32_t n) {
  recipe.n_layers = n;
  return recipe;
}
INSTANTIATE_TEST_SUITE_P(Engine, DeviceLadder,
                         ::testing::Values(with_layers(test::tiny_qwen3(), 4),
                                           with_layers(test::tiny_qwen3moe(), 4),
                                           test::tiny_gemma4(), test::tiny_gemma4kv(),
                                           test::tiny_qwen35(), test::tiny_qwen35moe(),
                                           with_layers(test::tiny_llama(), 4), test::tiny_gemma3()),
                         recipe_name);

/// Whoever drafts, steps leave the session that decoding leaves.
TEST(DeviceLadders, DraftsLeaveNoTrace) {
  for (const test::ModelRecipe& recipe : {test::tiny_qwen35(), test::tiny_gemma4kv()}) {
    const MadeModel file(recipe);
    const auto n = static_cast<int32_t>(recipe.n_layers);
    for (const uint32_t drafters : {SHARPI_DRAFT_NGRAM, SHARPI_DRAFT_MTP, SHARPI_DRAFT_MODEL}) {
      if (drafters == SHARPI_DRAFT_MTP && recipe.n_mtp == 0) continue;
      for (const Ladder& ladder : {Ladder{{1, 1}, {2, n - 1}}, Ladder{{2, 1}, {3, n - 1}}}) {
        const Loaded l = posed().load(file.path(), ladder, draft_by(drafters, file.path()));
        expect_no_trace_of_drafts(l, file, text_of(ladder) + std::to_string(drafters));
      }
    }
  }
}

/// Each device that has routers of experts on the host asks a host of its own.
TEST(DeviceLadders, EveryDeviceAsksTheHostForExperts) {
  const MadeModel file(with_layers(test::tiny_qwen3moe(), 4));
  hosts_of.clear();
  const auto want = talk(posed().load(file.path(), {}), file.tokens(60));
  const Loaded l = posed().load(file.path(), {{1, 2}, {3, 1}}, [](auto* p, auto*) {
    p->n_gpu_experts = 0;
    p->n_expert_slots = 0;
    p->max_concurrent = 2;
  });
  EXPECT_EQ(hosts_of[1].size(), 2u) << "one for each call at once";
  EXPECT_EQ(hosts_of[3].size(), 2u);
  EXPECT_EQ(hosts_of.count(2), 0u);
  std::set<ExpertHost*> all = hosts_of[1];
  all.insert(hosts_of[3].begin(), hosts_of[3].end());
  EXPECT_EQ(all.size(), 4u);
  EXPECT_EQ(all.count(nullptr), 0u);
  expect_same_rows(talk(l, file.tokens(60)), want, "experts of the host");
}

/// Budgets hold for each device alone, and refusals name it.
TEST(DeviceLadders, EveryDeviceHasItsOwnAllowance) {
  Plan plan;
  for (uint32_t d = 0; d < 3; ++d) {
    PlanDevice device;
    device.index = DeviceIndex{d};
    device.tier = d == 0 ? TierId::kCpu : TierId::kCuda;
    device.budget = 1000 * (d + 1);
    plan.devices.push_back(device);
    plan.rows.push_back(make_row(device.tier, d, SHARPI_ROW_WEIGHTS,
                                 d == 0 ? SHARPI_ROW_ANONYMOUS : SHARPI_ROW_DEVICE, "weights", 400,
                                 400));
  }
  const auto allowance = std::make_shared<Allowance>(plan);
  const auto bytes_on = [](uint32_t device, uint64_t n) {
    HeldBytes b;
    b.at(DeviceIndex{device}) = n;
    return b;
  };
  Share share(allowance);
  EXPECT_TRUE(share.take(bytes_on(1, 1600)).is_ok());
  EXPECT_TRUE(share.take(bytes_on(2, 2600)).is_ok());
  EXPECT_TRUE(share.take(bytes_on(0, 600)).is_ok());
  const auto refused = [&](uint32_t device) {
    const Status s = share.take(bytes_on(device, 1));
    EXPECT_EQ(s.code(), Code::kDoesNotFit);
    return s.text();
  };
  EXPECT_NE(refused(0).find("the plan's host_budget of 1000: 1 are missing"), std::string::npos);
  EXPECT_NE(refused(1).find("budget of device 1 of 2000: 1 are missing"), std::string::npos);
  EXPECT_NE(refused(2).find("budget of device 2 of 3000: 1 are missing"), std::string::npos);
  share.give(bytes_on(1, 1));
  EXPECT_TRUE(share.take(bytes_on(1, 1)).is_ok());
  EXPECT_EQ(allowance->held().at(DeviceIndex{2}), 3000u);
}

class LadderGoldens : public ::testing::TestWithParam<std::string> {};

/// A third of the layers on each of three tiers.
TEST_P(LadderGoldens, ThreeTiersAgreeWithTheGoldens) {
  const auto fixture = find_fixture(GetParam());
  if (!fixture) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
  auto loaded_golden = load_golden(fixture->golden_path);
  ASSERT_TRUE(loaded_golden.is_ok()) << loaded_golden.status().text();
  const Golden golden = loaded_golden.take();
  const Edit exact = [](auto* p, auto* s) {
    p->arithmetic = SHARPI_ARITHMETIC_EXACT;
    p->max_logit_rows = 48;
    s->n_ctx = SHARPI_UNSET;
  };
  sharpi_error why = SHARPI_ERROR_INIT;
  const Loaded one = posed().load(fixture->gguf_path, {}, exact);
  const auto n = static_cast<int32_t>(one.info.n_layers);
  Loaded l;
  for (int32_t a = (n + 2) / 3; a < n && !l.model; ++a) {
    const int32_t b = std::max(1, std::min(n - a - 1, a));
    l = posed().try_load(fixture->gguf_path, {{1, a}, {2, b}}, &why, exact);
    if (!l.model) l = posed().try_load(fixture->gguf_path, {{1, a}, {2, n - a}}, &why, exact);
  }
  if (!l.model) {  // no split leaves layers that share KV rows together
    EXPECT_EQ(why.status, SHARPI_E_UNSUPPORTED) << why.text;
    l = posed().try_load(fixture->gguf_path, {{3, n}}, &why, exact);
  }
  ASSERT_TRUE(l.model) << why.text;
  for (const GoldenCase& g : golden.cases) {
    Chat chat(l.model.get());
    const auto logits = chat.all_logits(g.tokens, 48);
    ASSERT_EQ(logits.size(), g.tokens.size());
    for (size_t p = 0; p < logits.size(); ++p) {
      for (size_t i = 0; i < 5; ++i) {
        const auto id = static_cast<size_t>(g.top5[p][i]);
        ASSERT_LE(std::fabs(logits[p][id] - g.top5_logits[p][i]), 2e-3) << p;
      }
    }
    Chat speaks(l.model.get());
    speaks.prefill(g.tokens);
    EXPECT_EQ(speaks.greedy(static_cast<uint32_t>(g.greedy.size())), g.greedy);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, LadderGoldens, ::testing::ValuesIn(all_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
