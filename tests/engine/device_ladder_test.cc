// SPDX-License-Identifier: MIT
// Models on several devices, seen without a GPU: CPU backends pose as devices, so however layers
// are shared among them and the host, a model must give the very bits of one tier, in everything
// that sessions do. Trained models meet their goldens.
#include <cmath>
#include <map>
#include <set>

#include "api/api_handles.h"
#include "draft_case.h"
#include "engine/allowance.h"
#include "inner_engine.h"
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
  Result<std::unique_ptr<Workspace>> create_workspace() override { return in_->create_workspace(); }
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

/// Layers of each device, in the order in which they come.
using Ladder = std::vector<std::pair<uint32_t, int32_t>>;
std::string text_of(const Ladder& ladder) {
  std::string out;
  for (const auto& [device, n] : ladder)
    out += std::to_string(n) + " on " + std::to_string(device) + ", ";
  return out;
}

Loaded load_on(const std::string& path, const Ladder& ladder, sharpi_error* why,
               const Edit& edit = {}) {
  Loaded l;
  std::vector<sharpi_device_request> list;
  for (const auto& [device, n] : ladder) {
    list.emplace_back();
    sharpi_device_request_init(&list.back(), sizeof list.back());
    list.back().device = device;
    list.back().n_layers = n;
  }
  const ModelSetup setup = setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_gpu_layers = ladder.empty() ? 0 : -1;
    p->n_chunk = 48;
    p->n_sessions = 4;
    p->stream_rows = SHARPI_UNSET;
    p->devices = list.data();
    p->n_devices = static_cast<uint32_t>(list.size());
    if (ladder.empty()) p->device = 0;
    s->n_ctx = 256;
    s->k_dtype = s->v_dtype = s->tail_k_dtype = s->tail_v_dtype = SHARPI_KV_F32;
    if (edit) edit(p, s);
  });
  sharpi_model* model = nullptr;
  if (try_plan(posed_context(), path, setup, &l.plan, why) != SHARPI_OK ||
      sharpi_model_load(l.plan.get(), nullptr, nullptr, &model, why) != SHARPI_OK) {
    return l;
  }
  l.model.reset(model);
  l.info.struct_size = sizeof l.info;
  EXPECT_EQ(sharpi_model_info(model, &l.info, nullptr), SHARPI_OK);
  return l;
}

Loaded must_load(const std::string& path, const Ladder& ladder, const Edit& edit = {}) {
  sharpi_error why = SHARPI_ERROR_INIT;
  Loaded l = load_on(path, ladder, &why, edit);
  EXPECT_TRUE(l.model) << why.text;
  return l;
}

std::vector<Logits> talk(const Loaded& l, const std::vector<int32_t>& prompt) {
  Chat chat(l.model.get());
  chat.prefill(prompt);
  std::vector<Logits> out{chat.logits()};
  for (const int32_t t : {3, 4, 5}) {
    chat.decode(t);
    out.push_back(chat.logits());
  }
  return out;
}

/// Splits of n layers over two or three devices in any order, with and without layers left to the
/// host.
std::vector<Ladder> ladders(int32_t n) {
  std::vector<Ladder> out;
  for (int32_t a = 1; a < n; ++a) {
    out.push_back({{1, a}, {2, n - a}});
    if (a + 1 < n) out.push_back({{2, a}, {1, 1}});
    for (int32_t b = 1; a + b < n; ++b) out.push_back({{3, a}, {1, b}, {2, n - a - b}});
  }
  return out;
}

class DeviceLadder : public ::testing::TestWithParam<test::ModelRecipe> {};

TEST_P(DeviceLadder, EveryLadderGivesTheBitsOfOneTier) {
  const MadeModel file(GetParam());
  const auto n = static_cast<int32_t>(GetParam().n_layers);
  const auto prompt = file.tokens(100);
  const auto want = talk(must_load(file.path(), {}), prompt);
  uint32_t n_compared = 0;
  for (const Ladder& ladder : ladders(n)) {
    int32_t on_devices = 0;
    for (const auto& [device, layers] : ladder) on_devices += layers;
    for (const auto& [ffn, ends, stream] :
         {std::tuple{on_devices, 1, SHARPI_UNSET}, std::tuple{on_devices - 1, 0, SHARPI_UNSET},
          std::tuple{1, 1, 1u}}) {
      sharpi_error why = SHARPI_ERROR_INIT;
      const Loaded l = load_on(file.path(), ladder, &why, [&](auto* p, auto*) {
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

/// The least that has to be on a device, the rest on another one, or a third of each.
std::vector<Ladder> few_ladders(const std::string& path, int32_t n) {
  std::vector<Ladder> out;
  for (const Ladder& ladder : ladders(n)) {
    sharpi_error why = SHARPI_ERROR_INIT;
    if (load_on(path, ladder, &why).model) out.push_back(ladder);
    if (out.size() == 3) break;
  }
  return out;
}

TEST_P(DeviceLadder, SessionsDoTheSameOnAnyLadder) {
  const MadeModel file(GetParam());
  const auto n = static_cast<int32_t>(GetParam().n_layers);
  const Edit with_checkpoints = [](auto*, auto* s) {
    s->n_checkpoints = 2;
    s->capture_window = 16;
  };
  const auto life = [&](const Loaded& l, const std::vector<char>* from) {
    std::vector<std::vector<char>> blobs;
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_session_params own;
    sharpi_session_params_init(&own, sizeof own);
    with_checkpoints(static_cast<sharpi_plan_params*>(nullptr), &own);
    own.n_ctx = 256;
    own.k_dtype = own.v_dtype = own.tail_k_dtype = own.tail_v_dtype = SHARPI_KV_F32;
    Chat chat(l.model.get(), &own);
    chat.prefill(file.tokens(70));
    blobs.push_back(saved(chat));
    Chat other = chat.fork();
    for (const int32_t t : {7, 8}) other.decode(t);
    blobs.push_back(saved(other));
    sharpi_compact_params c;
    sharpi_compact_params_init(&c, sizeof c);
    c.budget = 40;
    c.headroom = 32;
    const sharpi_status compacted = sharpi_session_compact(chat.get(), &c, nullptr, &e);
    EXPECT_TRUE(compacted == SHARPI_OK || compacted == SHARPI_E_UNSUPPORTED) << e.text;
    for (const int32_t t : {9, 10, 11}) chat.decode(t);
    blobs.push_back(saved(chat));
    if (from != nullptr) {
      Chat restored(l.model.get(), &own);
      EXPECT_EQ(sharpi_session_restore(restored.get(), from->data(), from->size(), &e), SHARPI_OK)
          << e.text;
      for (const int32_t t : {12, 13}) restored.decode(t);
      blobs.push_back(saved(restored));
    }
    return blobs;
  };
  const Loaded one = must_load(file.path(), {}, with_checkpoints);
  const auto before = life(one, nullptr);
  const auto want = life(one, &before.front());
  const std::vector<Ladder> some = few_ladders(file.path(), n);
  ASSERT_FALSE(some.empty());
  for (const Ladder& ladder : some) {
    const auto got = life(must_load(file.path(), ladder, with_checkpoints), &before.front());
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(got[i] == want[i]) << text_of(ladder) << "blob " << i;
  }
}

/// By label and, for what the plan says, by device.
TEST_P(DeviceLadder, EveryByteIsPlannedAndHasADevice) {
  const MadeModel file(GetParam());
  const auto n = static_cast<int32_t>(GetParam().n_layers);
  for (const Ladder& ladder : few_ladders(file.path(), n)) {
    const Loaded l = must_load(file.path(), ladder);
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

std::string recipe_name(const ::testing::TestParamInfo<test::ModelRecipe>& info) {
  return info.param.arch + "_" + std::to_string(info.index);
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
        sharpi_error why = SHARPI_ERROR_INIT;
        const Loaded l = load_on(file.path(), ladder, &why, [&](auto* p, auto* s) {
          p->deterministic = 1;
          s->n_draft = 8;
          s->drafters = drafters;
          s->n_checkpoints = 2;
          if (drafters == SHARPI_DRAFT_MODEL) p->draft_path = file.path().c_str();
        });
        ASSERT_TRUE(l.model) << why.text;
        sharpi_session_params plain;
        sharpi_session_params_init(&plain, sizeof plain);
        plain.n_checkpoints = 2;
        plain.k_dtype = plain.v_dtype = SHARPI_KV_F32;
        plain.n_draft = 8;
        Chat with(l.model.get()), without(l.model.get(), &plain);
        std::vector<std::vector<int32_t>> texts;
        for (const Chat* chat : {&without, &with}) {
          const_cast<Chat*>(chat)->prefill(file.tokens(21));
          use_endless_sampler(*chat, l.model.get(), 0.9f);
          std::vector<int32_t> text;
          while (text.size() < 40) {
            std::array<int32_t, 9> tokens{};
            uint32_t count = 0;
            const auto cap = static_cast<uint32_t>(std::min<size_t>(9, 40 - text.size()));
            ASSERT_EQ(sharpi_session_step(chat->get(), nullptr, tokens.data(), cap, &count, &why),
                      SHARPI_OK)
                << why.text;
            text.insert(text.end(), tokens.begin(), tokens.begin() + count);
          }
          texts.push_back(std::move(text));
        }
        EXPECT_EQ(texts[0], texts[1]) << text_of(ladder) << drafters;
        expect_same(with, without, text_of(ladder).c_str());
      }
    }
  }
}

/// Each device that has routers of experts on the host asks a host of its own.
TEST(DeviceLadders, EveryDeviceAsksTheHostForExperts) {
  const MadeModel file(with_layers(test::tiny_qwen3moe(), 4));
  hosts_of.clear();
  const auto want = talk(must_load(file.path(), {}), file.tokens(60));
  const Loaded l = must_load(file.path(), {{1, 2}, {3, 1}}, [](auto* p, auto*) {
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
  const Loaded one = must_load(fixture->gguf_path, {}, exact);
  const auto n = static_cast<int32_t>(one.info.n_layers);
  Loaded l;
  for (int32_t a = (n + 2) / 3; a < n && !l.model; ++a) {
    const int32_t b = std::max(1, std::min(n - a - 1, a));
    l = load_on(fixture->gguf_path, {{1, a}, {2, b}}, &why, exact);
    if (!l.model) l = load_on(fixture->gguf_path, {{1, a}, {2, n - a}}, &why, exact);
  }
  if (!l.model) {  // no split leaves layers that share KV rows together
    EXPECT_EQ(why.status, SHARPI_E_UNSUPPORTED) << why.text;
    l = load_on(fixture->gguf_path, {{3, n}}, &why, exact);
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

INSTANTIATE_TEST_SUITE_P(Engine, LadderGoldens, ::testing::ValuesIn(device_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
