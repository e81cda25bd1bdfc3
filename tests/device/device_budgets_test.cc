// SPDX-License-Identifier: MIT
// Budgets of unlike devices that are posed: what each may hold is respected to the byte by plan and
// runtime, and what does not go is refused by the device's name.
#include <algorithm>
#include <utility>

#include "device/several_devices.h"

namespace sharpi::testing {
namespace {

constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kKept = 256 * kMiB;  // of a device without a budget plans leave so much free

std::vector<sharpi_plan_device> devices_of(const sharpi_plan* plan) {
  std::vector<sharpi_plan_device> rows(8);
  uint32_t n = 0;
  EXPECT_EQ(sharpi_plan_devices(plan, rows.data(), sizeof rows[0], 8, &n, nullptr), SHARPI_OK);
  rows.resize(n);
  std::sort(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.device < b.device; });
  return rows;  // a list says in which order layers go to them
}

sharpi_device_request request(uint32_t device, uint64_t budget, int32_t n_layers = -1) {
  sharpi_device_request d;
  sharpi_device_request_init(&d, sizeof d);
  d.device = device;
  d.budget = budget;
  d.n_layers = n_layers;
  d.rate = d.link_rate = 1e9;
  return d;
}

/// A ladder is not asked for: the planner finds it.
Edit listed(const std::vector<sharpi_device_request>& list, const Edit& more = {}) {
  return [&list, more](sharpi_plan_params* p, sharpi_session_params* s) {
    p->devices = list.data();
    p->n_devices = static_cast<uint32_t>(list.size());
    p->n_sessions = p->max_batch = 1;
    if (more) more(p, s);
  };
}

uint64_t held(const RoomMachine& machine, uint32_t device) {
  const HostDevice& d = machine.device(device);
  return d.counts().device_bytes + d.granule_bytes_held();
}

/// Some 70 MiB of weights in f32.
test::ModelRecipe larger_than_a_card() {
  test::ModelRecipe r = test::tiny_qwen3();
  r.n_layers = 20;
  r.n_embd = 256;
  r.n_heads = 8;
  r.d_ff = 800;
  return r;
}

/// 60 and 20 MiB: by themselves, plans use one device where it holds all, else both; each holds no
/// byte more than it may, and what comes out is what one large device gives.
TEST(DeviceBudgets, AModelThatNoCardHoldsRunsOverTwo) {
  const MadeModel file(larger_than_a_card());
  const Edit once = [](sharpi_plan_params* p, sharpi_session_params* s) {
    p->deterministic = 1;
    p->n_sessions = p->max_batch = 1;
    s->n_ctx = 64;
  };
  // What a driver keeps, plans leave free of a device without a budget.
  const RoomMachine large({{"Large"}});
  const RoomMachine two({{"Sixty"}, {"Twenty"}});
  const auto prompt = file.tokens(20);
  const Loaded whole = large.ladders().load(file.path(), {{1, 20}}, once);
  const uint64_t bytes = devices_of(whole.plan.get())[1].peak_bytes;
  EXPECT_GT(bytes, 62 * kMiB);
  EXPECT_LT(bytes, 76 * kMiB);
  const auto want = talk(whole, prompt);
  const uint64_t limits[] = {60 * kMiB, 20 * kMiB};
  for (const bool turned : {false, true}) {
    const std::vector<sharpi_device_request> list{request(turned ? 2 : 1, limits[turned]),
                                                  request(turned ? 1 : 2, limits[!turned])};
    sharpi_error why = SHARPI_ERROR_INIT;
    const Loaded l =
        two.ladders().try_load(file.path(), {}, &why, listed(list, [&](auto* p, auto* s) {
                                 once(p, s);
                                 p->n_gpu_layers = -1;
                                 p->device = SHARPI_UNSET;
                               }));
    ASSERT_TRUE(l.model) << why.text;
    const Chat chat(l.model.get());
    const auto rows = devices_of(l.plan.get());
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_EQ(rows[0].n_layers, 0u) << "both together hold all";
    for (const uint32_t d : {1u, 2u}) {
      const uint64_t limit = limits[d - 1];
      EXPECT_LE(rows[d].peak_bytes, limit) << d;
      EXPECT_EQ(held(two, d), rows[d].held_bytes) << d;
      EXPECT_GT(rows[d].n_layers, 1u) << d;
    }
    expect_same_rows(talk(l, prompt), want, turned ? "20 and 60" : "60 and 20");
  }
}

/// The budgets that a split needs are enough to the byte, and with a byte less it is refused by the
/// name of the device that lacks it.
TEST(DeviceBudgets, AByteLessIsRefusedByName) {
  test::ModelRecipe recipe = test::tiny_qwen3moe();
  recipe.n_layers = 6;
  const MadeModel file(recipe);
  const RoomMachine machine({{"Posed One"}, {"Posed Two"}});
  const LadderMachine on = machine.ladders();
  const Edit once = [](auto* p, auto*) { p->n_sessions = p->max_batch = 1; };
  for (int32_t at = 1; at < 6; ++at) {
    const Loaded split = on.load(file.path(), {{1, at}, {2, 6 - at}}, once);
    const auto rows = devices_of(split.plan.get());
    for (const auto& [less_one, less_two] : {std::pair{0, 0}, std::pair{1, 0}, std::pair{0, 1}}) {
      const std::vector<sharpi_device_request> list{
          request(1, rows[1].peak_bytes - static_cast<uint64_t>(less_one), at),
          request(2, rows[2].peak_bytes - static_cast<uint64_t>(less_two), 6 - at)};
      sharpi_error why = SHARPI_ERROR_INIT;
      const Loaded l = on.try_load(file.path(), {}, &why, listed(list, [](auto* p, auto*) {
                                     p->n_gpu_layers = p->n_gpu_ffn = p->n_gpu_experts = 6;
                                     p->gpu_ends = 1;
                                     p->device = SHARPI_UNSET;
                                   }));
      if (less_one + less_two == 0) {
        ASSERT_TRUE(l.model) << why.text;
        const auto planned = devices_of(l.plan.get());
        for (const uint32_t d : {1u, 2u}) EXPECT_EQ(planned[d].peak_bytes, rows[d].peak_bytes);
        continue;
      }
      EXPECT_EQ(why.status, SHARPI_E_DOES_NOT_FIT) << why.text;
      const std::string name =
          less_one != 0 ? "Posed One (device 1), 1 more" : "Posed Two (device 2), 1 more";
      EXPECT_NE(std::string(why.text).find(name), std::string::npos) << why.text;
    }
  }
}

/// A device without room for a layer gets none by itself; one that has to have a layer is refused.
TEST(DeviceBudgets, NoRoomForALayer) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_layers = 4;
  const MadeModel file(recipe);
  const RoomMachine machine(three_cards());
  const LadderMachine on = machine.ladders();
  const auto with = [&](int32_t pinned, sharpi_error* why) {
    const std::vector<sharpi_device_request> list{
        request(1, SHARPI_ALL_FREE), request(2, 4096, pinned), request(3, SHARPI_ALL_FREE)};
    return on.try_load(file.path(), {}, why, listed(list, [](auto* p, auto*) {
                         p->n_gpu_layers = -1;
                         p->split = SHARPI_SPLIT_ALL;
                         p->device = SHARPI_UNSET;
                       }));
  };
  sharpi_error why = SHARPI_ERROR_INIT;
  const Loaded l = with(-1, &why);
  ASSERT_TRUE(l.model) << why.text;
  const auto rows = devices_of(l.plan.get());
  EXPECT_GT(rows[1].n_layers, 0u);
  EXPECT_EQ(rows[2].n_layers, 0u);
  EXPECT_EQ(rows[2].held_bytes, 0u);
  EXPECT_GT(rows[3].n_layers, 0u);
  EXPECT_EQ(rows[1].n_layers + rows[3].n_layers, 4u);
  talk(l, file.tokens(50));
  const Loaded none = with(1, &why);
  EXPECT_FALSE(none.model);
  EXPECT_EQ(why.status, SHARPI_E_DOES_NOT_FIT) << why.text;
  EXPECT_NE(std::string(why.text).find("Posed Two (device 2)"), std::string::npos) << why.text;
}

/// A device that is lost ends what has layers there, by its number; a model on the other one lives.
TEST(DeviceBudgets, ALostDeviceIsNamed) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_layers = 4;
  const MadeModel file(recipe);
  const RoomMachine machine({{"Posed One"}, {"Posed Two"}});
  const LadderMachine on = machine.ladders();
  const Loaded both = on.load(file.path(), {{1, 2}, {2, 2}}), one = on.load(file.path(), {{1, 4}});
  Chat split(both.model.get()), alone(one.model.get());
  for (Chat* chat : {&split, &alone}) chat->prefill(file.tokens(20));
  machine.device(2).mark_lost(719);
  sharpi_error why = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_decode(split.get(), 3, &why), SHARPI_E_DEVICE_LOST) << why.text;
  EXPECT_NE(std::string(why.text).find("device 2 is lost"), std::string::npos) << why.text;
  EXPECT_EQ(split.info().n_tokens, 20u) << "nothing was read";
  const Logits before = alone.logits();
  alone.decode(3);
  EXPECT_FALSE(same_bits(alone.logits(), before));
  sharpi_error again = SHARPI_ERROR_INIT;
  const Loaded late = on.try_load(file.path(), {{1, 2}, {2, 2}}, &again);
  EXPECT_FALSE(late.model);
  EXPECT_EQ(again.status, SHARPI_E_DEVICE_LOST) << again.text;
}

/// What several devices cannot do together is refused by name where it was asked for; else the plan
/// is of one device and says why.
TEST(DeviceBudgets, WhatDoesNotGoTogetherIsRefusedByName) {
  const auto refused = [](const RoomMachine& machine, const MadeModel& file, const Ladder& ladder) {
    sharpi_error why = SHARPI_ERROR_INIT;
    const Loaded l = machine.ladders().try_load(file.path(), ladder, &why);
    EXPECT_FALSE(l.model);
    EXPECT_EQ(why.status, SHARPI_E_UNSUPPORTED) << why.text;
    return std::string(why.text);
  };
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_layers = 4;
  const MadeModel plain(recipe), embedded(test::tiny_gemma4());
  const RoomMachine mixed({{"Of One Kind"}, {"Of Another", 4ull << 30, TierId::kCuda}});
  EXPECT_NE(
      refused(mixed, plain, {{1, 2}, {2, 2}})
          .find("Of One Kind cannot share a model with Of Another: a model is on several GPUs "
                "of one tier, and these are of \"vulkan\" and \"cuda\""),
      std::string::npos);
  const RoomMachine alike({{"Posed One"}, {"Posed Two"}});
  const auto n = static_cast<int32_t>(test::tiny_gemma4().n_layers);
  EXPECT_NE(refused(alike, embedded, {{1, 1}, {2, n - 1}})
                .find("Posed One cannot share a model with Posed Two: layers of this gemma4 model "
                      "take per-layer embeddings"),
            std::string::npos);
  // Nobody asked for two, and no device holds all: one is used, with the rest on the host.
  const uint64_t whole =
      devices_of(alike.ladders()
                     .load(embedded.path(), {{1, n}},
                           [](auto* p, auto*) { p->n_sessions = p->max_batch = 1; })
                     .plan.get())[1]
          .peak_bytes;
  const std::vector<sharpi_device_request> none;  // any that there are
  const RoomMachine small({{"Small One", whole - 4096 + kKept}, {"Small Two", 8192 + kKept}});
  sharpi_error why = SHARPI_ERROR_INIT;
  const Loaded l =
      small.ladders().try_load(embedded.path(), {}, &why, listed(none, [](auto* p, auto*) {
                                 p->n_gpu_layers = -1;
                                 p->device = SHARPI_UNSET;
                               }));
  ASSERT_TRUE(l.plan) << why.text;
  std::string said;
  char text[512];
  size_t length = 0;
  const auto read = [&](uint32_t i) {
    return sharpi_plan_fallback(l.plan.get(), i, text, sizeof text, &length, nullptr);
  };
  for (uint32_t i = 0; read(i) == SHARPI_OK; ++i) said += text;
  EXPECT_NE(said.find("one device is used of 2: Small One cannot share a model with Small Two"),
            std::string::npos)
      << said;
}

}  // namespace
}  // namespace sharpi::testing
