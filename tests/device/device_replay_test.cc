// SPDX-License-Identifier: MIT
// Replay scores in the room of GPU tiers, over posed devices: with rows of all heads together and
// by head, whole models, splits with the CPU and over two devices, and to the byte what the plan
// says.
#include <map>
#include <string>
#include <vector>

#include "device/replay_ways.h"
#include "device/several_devices.h"

namespace sharpi::testing {
namespace {

const RoomMachine& machine() {
  static const RoomMachine made(three_cards());
  return made;
}

/// All layers on one device, the last one on the host, and over two devices; those that the model
/// allows.
std::vector<Ladder> places(const std::string& path, int32_t n) {
  std::vector<Ladder> out;
  for (const Ladder& ladder :
       {Ladder{{1, n}}, Ladder{{1, n - 1}}, Ladder{{2, n - n / 2}, {1, n / 2}}}) {
    sharpi_error why = SHARPI_ERROR_INIT;
    if (machine().ladders().try_load(path, ladder, &why).model) {
      out.push_back(ladder);
    } else {
      EXPECT_TRUE(may_be_refused(why)) << why.text;
    }
  }
  EXPECT_FALSE(out.empty());
  return out;
}

TEST(DeviceReplay, ScoresAreThoseOfThePlainForm) {
  for (const Case& c : cases()) {
    const MadeModel file(c.recipe);
    const auto n = static_cast<int32_t>(c.recipe.n_layers);
    for (const sharpi_kv_dtype kv : c.dtypes) {
      for (const uint32_t every : {1u, 3u})
        check_scores(
            machine().ladders(), file.path(), {{1, n}}, file.tokens(300), kv, every,
            std::string(c.name) + " " + dtype_text(kv) + ", every " + std::to_string(every));
    }
  }
}

TEST(DeviceReplay, HeadsKeepWhatTheyKeepOnTheCpu) {
  for (const Case& c : cases()) {
    const MadeModel file(c.recipe);
    const auto n = static_cast<int32_t>(c.recipe.n_layers);
    const bool every = c.name == std::string("qwen3");  // way to place layers
    const std::vector<Ladder> all = places(file.path(), n);
    for (const Ladder& ladder : every ? all : std::vector<Ladder>{all.back()})
      check_lives(machine().ladders(), file.path(), ladder, file.tokens(570),
                  {SHARPI_LAYER_BUDGET_EQUAL, SHARPI_LAYER_BUDGET_SHARED},
                  c.name + (" " + text_of(ladder)));
  }
}

TEST(DeviceReplay, PlanIsAllocation) {
  const MadeModel file(deep(test::tiny_qwen3(), 3));
  for (const Ladder& ladder : places(file.path(), 3)) {
    const Loaded l = machine().ladders().load(file.path(), ladder, capturing(64));
    ASSERT_TRUE(l.model);
    std::map<uint32_t, HeldOn> planned, held;
    MemoryRows of_sessions;
    uint32_t n_scores = 0;
    for (const sharpi_memory_row& r : rows_of_handle(sharpi_plan_rows, l.plan.get())) {
      if (r.per_session == 0) continue;
      of_sessions.push_back(r);
      n_scores += r.device != 0 && std::string(r.label) == "replay scores" ? 1 : 0;
    }
    add_rows(of_sessions, &planned);
    const auto bytes_of = [&](uint32_t device) {
      const HostDevice& d = machine().device(device);
      return HeldOn{d.counts().device_bytes + d.granule_bytes_held(), d.counts().pinned_bytes};
    };
    std::map<uint32_t, HeldOn> before;
    for (const auto& [device, n] : ladder) before[device] = bytes_of(device);
    Chat chat(l.model.get());
    for (const auto& [device, n] : ladder) {
      const HeldOn now = bytes_of(device);
      held[device] = {now.device - before[device].device, now.pinned - before[device].pinned};
    }
    EXPECT_TRUE(held == planned) << text_of(ladder);
    EXPECT_EQ(n_scores, ladder.size());
    chat.prefill(file.tokens(300));
    compact(chat, by_replay(100));
    compact(chat, by_replay(60, SHARPI_POLICY_MIXED));
    add_rows(rows_of_handle(sharpi_session_memory, chat.get()), &(held = {}));
    for (const auto& [device, n] : ladder) {
      const HeldOn now = bytes_of(device);
      EXPECT_EQ(now.device - before[device].device, held[device].device) << text_of(ladder);
      EXPECT_EQ(now.pinned - before[device].pinned, held[device].pinned) << text_of(ladder);
    }
  }
}

}  // namespace
}  // namespace sharpi::testing
