// SPDX-License-Identifier: MIT
// Rows in blocks of one KV head in the room of GPU tiers, over posed devices: heads keep what they
// keep on the CPU, what reads and writes such rows has the bits that rows of all heads together
// have, saved sessions go from tier to tier, and devices hold to the byte what the plan and the
// session say, before and after.
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "device/by_head_ways.h"
#include "device/several_devices.h"

namespace sharpi::testing {
namespace {

const RoomMachine& machine() {
  static const RoomMachine made(three_cards());
  return made;
}

/// All layers on one device, with the last ones on the host, and over two devices; those that the
/// model allows.
std::vector<Ladder> places(const std::string& path, int32_t n) {
  std::vector<Ladder> out;
  for (const Ladder& ladder : {Ladder{{1, n}}, Ladder{{1, n - 1}}, Ladder{{1, n / 2}},
                               Ladder{{2, n - n / 2}, {1, n / 2}}}) {
    sharpi_error why = SHARPI_ERROR_INIT;
    if (machine().ladders().try_load(path, ladder, &why, exact_rows(SHARPI_KV_F32)).model) {
      out.push_back(ladder);
    } else {
      EXPECT_TRUE(may_be_refused(why)) << why.text;
    }
  }
  EXPECT_FALSE(out.empty());
  return out;
}

TEST(DeviceByHead, HeadsKeepWhatTheyKeepOnTheCpu) {
  for (const Case& c : cases()) {
    const MadeModel file(c.recipe);
    for (const Ladder& ladder : places(file.path(), static_cast<int32_t>(c.recipe.n_layers)))
      check_keeping(machine().ladders(), file, ladder, c.name + (" " + text_of(ladder)));
  }
}

TEST(DeviceByHead, WhereHeadsKeepAsManyRowsTheBitsAreThoseOfRowsTogether) {
  for (const Case& c : cases()) {
    const MadeModel file(c.recipe);
    const auto n = static_cast<int32_t>(c.recipe.n_layers);
    for (const sharpi_kv_dtype kv : c.dtypes) {
      for (const Ladder& ladder : {Ladder{{1, n}}, places(file.path(), n).back()})
        check_bits(machine().ladders(), file, ladder, kv,
                   std::string(c.name) + " " + dtype_text(kv) + " " + text_of(ladder));
    }
  }
}

TEST(DeviceByHead, BoundedSessionsGoOnPastTheirContextWithTheSameBits) {
  check_bounded(machine().ladders(), MadeModel(deep(test::tiny_qwen3(), 3)), {{1, 3}});
}

TEST(DeviceByHead, SavedFormsGoFromTierToTier) {
  for (const Case& c : cases()) {
    const MadeModel file(c.recipe);
    const auto n = static_cast<int32_t>(c.recipe.n_layers);
    for (const sharpi_kv_dtype kv : c.dtypes)
      check_saved_forms(machine().ladders(), file, {{1, n}}, kv,
                        std::string(c.name) + " " + dtype_text(kv));
  }
}

/// Devices and rows say the same at every step, and no session holds what was not planned.
class ByHeadBytes {
 public:
  explicit ByHeadBytes(uint32_t capture_window) : file_(recipe()), before_(held()) {
    loaded_ = machine().ladders().load(file_.path(), {{1, 2}, {2, 2}}, [=](auto* p, auto* s) {
      watching(SHARPI_KV_BF16, false, true)(p, s);
      p->n_chunk = 256;
      s->n_ctx = 4096;
      s->capture_window = capture_window;
    });
  }
  static test::ModelRecipe recipe() {
    test::ModelRecipe r = deep(test::tiny_qwen3(), 4);
    r.n_heads = r.n_kv_heads = 4;
    r.head_dim = 64;
    r.n_ctx = 4096;
    return r;
  }
  Chat chat() const { return Chat(loaded_.model.get()); }
  std::vector<int32_t> text(size_t n) const { return file_.tokens(n); }
  void expect_bytes(const std::vector<const Chat*>& chats, const std::string& what) const {
    std::map<uint32_t, HeldOn> said, now = held();
    add_rows(rows_of_handle(sharpi_model_memory, loaded_.model.get()), &said);
    for (const Chat* chat : chats)
      add_rows(rows_of_handle(sharpi_session_memory, chat->get()), &said);
    for (const uint32_t d : {1u, 2u}) {
      EXPECT_EQ(now[d].device - before_.at(d).device, said[d].device) << what << ", device " << d;
      EXPECT_EQ(now[d].pinned - before_.at(d).pinned, said[d].pinned) << what << ", device " << d;
    }
  }
  const Loaded& loaded() const { return loaded_; }

 private:
  static std::map<uint32_t, HeldOn> held() {
    std::map<uint32_t, HeldOn> out;
    for (const uint32_t d : {1u, 2u}) {
      const HostDevice& h = machine().device(d);
      out[d] = {h.counts().device_bytes + h.granule_bytes_held(), h.counts().pinned_bytes};
    }
    return out;
  }
  MadeModel file_;
  std::map<uint32_t, HeldOn> before_;
  Loaded loaded_;
};

TEST(DeviceByHead, AnEighthOfTheRowsTakesAnEighthOfTheMemory) {
  const ByHeadBytes on(16);
  Chat chat = on.chat();
  on.expect_bytes({&chat}, "new");
  const MemoryRows planned = rows_of_handle(sharpi_plan_rows, on.loaded().plan.get());
  chat.prefill(on.text(800));
  on.expect_bytes({&chat}, "read");
  const uint64_t whole = held_by_rows(chat);
  const Report r = compact(chat, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 100, 0));
  on.expect_bytes({&chat}, "compacted");
  const std::vector<uint32_t> n = counts(chat);
  const auto [least, most] = std::minmax_element(n.begin(), n.end());
  EXPECT_LT(*least + 20, *most) << "heads hardly differ";
  // 32 heads with half a block of 64 rows each, and half a granule of 64 KiB on each device.
  EXPECT_LE(held_by_rows(chat), whole / 8 + 32 * 32 * 256 + 65536);
  EXPECT_EQ(r.held_after, held_by_rows(chat));
  EXPECT_EQ(r.payload_after * 8, r.payload_before);
  EXPECT_EQ(chat.info().capacity, *most);
  for (const sharpi_memory_row& row : rows_of_handle(sharpi_session_memory, chat.get())) {
    const auto same = [&](const sharpi_memory_row& p) {
      return std::string(p.label) == row.label && p.held_bytes >= row.held_bytes;
    };
    EXPECT_TRUE(std::any_of(planned.begin(), planned.end(), same)) << row.label;
  }
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_decode(chat.get(), 1, &e), SHARPI_E_KV_FULL);
  ASSERT_EQ(sharpi_session_reserve(chat.get(), *most + 90, &e), SHARPI_OK) << text_of(e);
  on.expect_bytes({&chat}, "grown");
  chat.prefill(on.text(90));
}

/// Random compactions, tokens, forks and saved forms, with and without tables that were planned:
/// what was saved is what an equal sequence saves, and bytes are counted behind every step.
TEST(DeviceByHead, RandomSequencesHoldWhatTheySay) {
  for (const uint32_t window : {16u, 0u}) {
    const ByHeadBytes on(window);
    const std::vector<int32_t> text = on.text(4000), probe = on.text(12);
    for (uint32_t seed = 1; seed <= 4; ++seed) {
      std::vector<std::vector<char>> blobs[2];
      for (std::vector<std::vector<char>>& own : blobs) {
        std::mt19937 source(seed);
        const auto random = [&] { return static_cast<uint32_t>(source()); };
        Chat chat = on.chat();
        chat.prefill(slice(text, 0, 300));
        for (int32_t step = 0; step < 10; ++step) {
          const std::string what = "window " + std::to_string(window) + ", seed " +
                                   std::to_string(seed) + ", step " + std::to_string(step);
          const uint32_t kind = random() % 4;
          const auto at = size_t{random() % 3000};
          if (kind == 0) {
            sharpi_error e = SHARPI_ERROR_INIT;
            const uint32_t more = chat.info().n_slots_max + 80;
            ASSERT_EQ(sharpi_session_reserve(chat.get(), more, &e), SHARPI_OK) << text_of(e);
            chat.prefill(slice(text, at, at + 1 + random() % 70));
          } else if (kind == 1) {
            sharpi_compact_params p =
                params(random() % 4 == 0 ? SHARPI_LAYER_BUDGET_EQUAL : SHARPI_LAYER_BUDGET_SHARED,
                       random() % 2 == 0 ? SHARPI_POLICY_SNAPKV : SHARPI_POLICY_DEFENSIVE,
                       60 + random() % 120, random() % 100);
            if (window == 0) p.probe = probe.data(), p.n_probe = 12;
            sharpi_error e = SHARPI_ERROR_INIT;
            const uint32_t more = chat.info().n_slots_max + 12;
            ASSERT_EQ(sharpi_session_reserve(chat.get(), more, &e), SHARPI_OK) << text_of(e);
            compact(chat, p);
          } else if (kind == 2) {
            Chat fork = chat.fork();
            chat = std::move(fork);
          } else {
            const std::vector<char> blob = saved(chat);
            restore(chat, blob);
            EXPECT_TRUE(saved(chat) == blob) << what;
          }
          on.expect_bytes({&chat}, what);
          own.push_back(saved(chat));
        }
      }
      EXPECT_TRUE(blobs[0] == blobs[1]) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace sharpi::testing
