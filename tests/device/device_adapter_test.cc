// SPDX-License-Identifier: MIT
// Adapters in the room of GPU tiers, seen without a GPU: wherever layers and FFNs are, and whether
// or not weights stream, sessions with adapters say what they say on the CPU; several with
// different ones share a step, which is recorded; and every device holds to the byte what the plan
// says.
#include <algorithm>
#include <map>

#include "device/several_devices.h"
#include "engine/adapter_case.h"
#include "engine/engine_case.h"

namespace sharpi::testing {
namespace {

using Choices = std::vector<std::vector<sharpi_adapter_use>>;

class DeviceAdapters : public ::testing::TestWithParam<test::ModelRecipe> {
 protected:
  void SetUp() override {
    file_.emplace(GetParam());
    const auto spec = mapped_spec(file_->path());
    one_.emplace(*spec, 4, 100);
    two_.emplace(*spec, 7, 300);
    paths_ = {one_->path().c_str(), two_->path().c_str()};
  }
  Edit lean(uint32_t n_sessions) const {
    return [=, this](sharpi_plan_params* p, sharpi_session_params*) {
      p->arithmetic = SHARPI_ARITHMETIC_EXACT;
      p->adapters = paths_.data();
      p->n_adapters = 2;
      p->n_sessions = p->max_batch = n_sessions;
    };
  }
  /// Logits of four sessions, with an adapter, without one, with the other, and with both: after a
  /// prompt, after steps that they make together, and after one of the last alone.
  std::vector<Logits> say(const sharpi_model* model, const AdapterPtr& a,
                          const AdapterPtr& b) const {
    const Choices choices = {
        {{a.get(), 1.0f, 0}}, {}, {{b.get(), -0.5f, 0}}, {{a.get(), 0.5f, 0}, {b.get(), 1.0f, 0}}};
    std::vector<Chat> chats;
    std::vector<sharpi_session*> handles;
    std::vector<Logits> out;
    for (const auto& uses : choices) {
      chats.emplace_back(model);
      choose(chats.back(), uses);
      chats.back().prefill(file_->tokens(60));
      out.push_back(chats.back().logits());
      handles.push_back(chats.back().get());
    }
    for (int32_t t = 3; t < 6; ++t) {
      const std::vector<int32_t> next(handles.size(), t);
      sharpi_error e = SHARPI_ERROR_INIT;
      EXPECT_EQ(sharpi_decode_batch(handles.data(), next.data(), 4, &e), SHARPI_OK) << text_of(e);
      for (const Chat& c : chats) out.push_back(c.logits());
    }
    chats.back().decode(7);
    out.push_back(chats.back().logits());
    return out;
  }
  std::vector<Logits> say(const Loaded& l) const {
    return say(l.model.get(), load_adapter(l.model.get(), paths_[0]),
               load_adapter(l.model.get(), paths_[1]));
  }
  uint64_t device_bytes(uint32_t device) const {
    return machine_.device(device).counts().device_bytes;
  }
  /// What a loaded adapter takes of each device is a row of the plan.
  void expect_planned_bytes(const Loaded& l) const {
    std::map<uint32_t, uint64_t> before, planned;
    for (uint32_t d = 1; d <= 3; ++d) before[d] = device_bytes(d);
    for (const sharpi_memory_row& r : rows_of_handle(sharpi_plan_rows, l.plan.get())) {
      if (r.purpose == SHARPI_ROW_ADAPTERS && r.kind == SHARPI_ROW_DEVICE)
        planned[r.device] += r.held_bytes;
    }
    EXPECT_FALSE(planned.empty());
    {
      const AdapterPtr a = load_adapter(l.model.get(), paths_[0]),
                       b = load_adapter(l.model.get(), paths_[1]);
      for (uint32_t d = 1; d <= 3; ++d) EXPECT_EQ(device_bytes(d) - before[d], planned[d]) << d;
      std::map<uint32_t, uint64_t> said;
      for (const AdapterPtr* one : {&a, &b}) {
        for (const sharpi_memory_row& r : rows_of_handle(sharpi_adapter_memory, one->get()))
          if (r.kind == SHARPI_ROW_DEVICE) said[r.device] += r.held_bytes;
      }
      for (uint32_t d = 1; d <= 3; ++d) EXPECT_EQ(said[d], planned[d]) << d;
    }
    for (uint32_t d = 1; d <= 3; ++d) EXPECT_EQ(device_bytes(d), before[d]) << "given back";
  }
  std::optional<MadeModel> file_;
  std::optional<MadeAdapter> one_, two_;
  std::vector<const char*> paths_;
  const RoomMachine machine_{three_cards()};
  const LadderMachine on_ = machine_.ladders();
};

TEST_P(DeviceAdapters, AreNearTheCpuWhereverTheyRun) {
  const auto n = static_cast<int32_t>(GetParam().n_layers);
  const auto want = say(on_.load(file_->path(), {}, lean(4)));
  EXPECT_GT(distance(want[0], want[1]), 20 * kNear) << "the adapter would not be noticed";
  uint32_t n_compared = 0;
  for (const Ladder& ladder :
       {Ladder{{1, n}}, Ladder{{2, 1}}, Ladder{{1, 1}, {2, n - 1}}, Ladder{{3, 1}, {1, 1}}}) {
    for (const uint32_t stream : {SHARPI_UNSET, 40u}) {
      sharpi_error why = SHARPI_ERROR_INIT;
      const Loaded l = on_.try_load(file_->path(), ladder, &why, [&](auto* p, auto* s) {
        lean(4)(p, s);
        p->stream_rows = stream;
        if (stream != SHARPI_UNSET) p->n_gpu_ffn = 0;
      });
      if (!l.model) {
        EXPECT_EQ(why.status, SHARPI_E_UNSUPPORTED) << text_of(ladder) << why.text;
        continue;
      }
      ++n_compared;
      expect_planned_bytes(l);
      const auto before = machine_.replays();
      const auto got = say(l);
      EXPECT_GT(machine_.replays()[ladder[0].first - 1], before[ladder[0].first - 1]);
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_LE(distance(got[i], want[i]), kNear) << text_of(ladder) << stream << " row " << i;
    }
  }
  EXPECT_GE(n_compared, 2u);
}

/// Routed experts on the host, some in slots: the shared one beside them has its adapters.
TEST_P(DeviceAdapters, ExpertsOnTheHostChangeNothing) {
  const auto spec = mapped_spec(file_->path());
  const bool moe = std::any_of(spec->layers.begin(), spec->layers.end(),
                               [](const LayerSpec& l) { return l.ffn.kind == FfnKind::kMoe; });
  if (!moe) GTEST_SKIP() << "no experts";
  const auto want = say(on_.load(file_->path(), {}, lean(4)));
  const auto n = static_cast<int32_t>(GetParam().n_layers);
  const Loaded l = on_.load(file_->path(), {{1, n}}, [&](auto* p, auto* s) {
    lean(4)(p, s);
    p->n_gpu_experts = 0;
    p->n_expert_slots = 6;
  });
  ASSERT_TRUE(l.model);
  const auto got = say(l);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(distance(got[i], want[i]), kNear) << i;
}

/// A plan with room for adapters reads sessions without any as one without that room, bit for bit
/// but for the arithmetic's own freedom; deterministic ones have the same bits beside others.
TEST_P(DeviceAdapters, BatchMatesChangeNoBits) {
  const auto n = static_cast<int32_t>(GetParam().n_layers);
  const Edit deterministic = [&](auto* p, auto* s) {
    lean(4)(p, s);
    p->deterministic = 1;
  };
  const Loaded l = on_.load(file_->path(), {{1, n}}, deterministic);
  const auto together = say(l);
  Chat alone(l.model.get());
  alone.prefill(file_->tokens(60));
  EXPECT_TRUE(same_bits(alone.logits(), together[1]));
  for (int32_t t = 3; t < 6; ++t) {
    alone.decode(t);
    EXPECT_TRUE(same_bits(alone.logits(), together[4 * static_cast<size_t>(t - 2) + 1])) << t;
  }
}

/// Kernels that no device has run yet are refused: the plan leaves the device out and says why, or
/// is refused where the device is named or has to have layers.
TEST(DeviceAdapter, ATierThatCannotIsLeftOut) {
  const RoomMachine machine(three_cards());
  const MadeModel file(test::tiny_llama());
  struct Refuse {
    Refuse() { host_faults().refuses_adapters = true; }
    ~Refuse() { host_faults().refuses_adapters = false; }
  } const refuse;
  const auto plan = [&](const Edit& more, sharpi_error* why) {
    PlanPtr out;
    const ModelSetup setup = setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
      p->adapter_rank = 4;
      p->n_gpu_layers = -1;
      more(p, s);
    });
    const sharpi_status s = try_plan(machine.ladders().context, file.path(), setup, &out, why);
    EXPECT_EQ(s == SHARPI_OK, out != nullptr);
    return out;
  };
  sharpi_error e = SHARPI_ERROR_INIT;
  const PlanPtr automatic = plan([](auto*, auto*) {}, &e);
  ASSERT_TRUE(automatic) << text_of(e);
  sharpi_plan_summary info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(sharpi_plan_info(automatic.get(), &info, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(info.n_gpu_layers, 0u);
  for (const Edit& asked : {Edit([](auto*p, auto*) { p->device = 1; }),
                            Edit([](auto*p, auto*) { p->n_gpu_layers = 1; })}) {
    EXPECT_FALSE(plan(asked, &e));
    EXPECT_EQ(e.status, SHARPI_E_UNSUPPORTED) << e.text;
    EXPECT_NE(std::string(e.text).find("takes no adapters"), std::string::npos) << e.text;
  }
  EXPECT_TRUE(plan([](auto* p, auto*) { p->adapter_rank = 0, p->device = 1; }, &e)) << e.text;
}

std::vector<test::ModelRecipe> adapter_recipes() {
  return {test::tiny_llama(),          test::tiny_phi3(),      test::tiny_gemma3(),
          test::tiny_gemma4(),         test::tiny_gemma4moe(), test::tiny_qwen35(),
          test::tiny_qwen35moe(),      test::tiny_qwen3next(), test::tiny_granite(),
          test::tiny_nemotron_dense(), test::tiny_deepseek2()};
}
INSTANTIATE_TEST_SUITE_P(Kinds, DeviceAdapters, ::testing::ValuesIn(adapter_recipes()),
                         recipe_name);

}  // namespace
}  // namespace sharpi::testing
