// SPDX-License-Identifier: MIT
// Archives in the room of GPU tiers, over posed devices: recalls bring back what they bring back on
// the CPU, on one device, with a tail on the host and over two devices; devices hold to the byte
// what the plan and the session say.
#include <string>

#include "device/recall_ways.h"
#include "device/several_devices.h"

namespace sharpi::testing {
namespace {

const RoomMachine& posed_room() {
  static const RoomMachine made(three_cards());
  return made;
}

TEST(DeviceRecall, BringsBackWhatTheCpuBringsBack) {
  for (const Case& c : cases()) {
    const MadeModel file(c.recipe);
    const auto n = static_cast<int32_t>(c.recipe.n_layers);
    for (const Ladder& ladder :
         {Ladder{{1, n}}, Ladder{{1, n / 2}}, Ladder{{2, n - n / 2}, {1, n / 2}}}) {
      for (const sharpi_kv_dtype kv : c.dtypes) {
        for (const bool replay : {false, true}) {
          sharpi_error why = SHARPI_ERROR_INIT;
          const Edit edit = archived_rows(kv, replay);
          if (!posed_room().ladders().try_load(file.path(), ladder, &why, edit).model) {
            EXPECT_TRUE(may_be_refused(why)) << why.text;
            continue;
          }
          check_recalls(posed_room().ladders(), file, ladder, kv, replay,
                        std::string(c.name) + " " + dtype_text(kv) + " " + text_of(ladder));
        }
      }
    }
  }
}

TEST(DeviceRecall, BoundsChooseWhatTheyChooseOnTheCpu) {
  check_bounds(posed_room().ladders(), MadeModel(deep(test::tiny_qwen3(), 2)), {{1, 2}});
}

/// More layers than the scratch has room for the lists of: it takes as much as one layer's keys.
TEST(DeviceRecall, ListsOfManyLayersAreChosenInTurns) {
  const auto n = 24;
  const MadeModel file(deep(test::tiny_qwen3(), n));
  check_recalls(posed_room().ladders(), file, {{1, n}}, SHARPI_KV_F32, false, "many layers");
}

/// What devices hold, by what rows say.
uint64_t said_by(const MemoryRows& rows, uint32_t kind) {
  uint64_t n = 0;
  for (const sharpi_memory_row& r : rows)
    n += r.kind == kind && r.device == 1 && r.transient == 0 ? r.held_bytes : 0;
  return n;
}

TEST(DeviceRecall, DevicesHoldWhatSessionsSay) {
  const MadeModel file(deep(test::tiny_qwen3(), 3));
  for (const bool replay : {false, true}) {
    const Loaded l =
        posed_room().ladders().load(file.path(), {{1, 3}}, archived_rows(SHARPI_KV_Q8_0, replay));
    ASSERT_TRUE(l.model);
    const HostDevice& device = posed_room().device(1);
    const auto on_device = [&] {
      return device.counts().device_bytes + device.granule_bytes_held();
    };
    const uint64_t d = on_device(), p = device.counts().pinned_bytes;
    Chat chat(l.model.get());
    const auto expect_held = [&](const char* what) {
      const MemoryRows rows = rows_of_handle(sharpi_session_memory, chat.get());
      EXPECT_EQ(on_device() - d, said_by(rows, SHARPI_ROW_DEVICE)) << what;
      EXPECT_EQ(device.counts().pinned_bytes - p, said_by(rows, SHARPI_ROW_PINNED)) << what;
    };
    expect_held("new");
    chat.prefill(file.tokens(240));
    compact(chat, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 70));
    expect_held("compacted");
    EXPECT_GT(recall(chat, wanted(file.tokens(12, 5), 24)).total_rows, 0u);
    expect_held("recalled");
  }
}

}  // namespace
}  // namespace sharpi::testing
