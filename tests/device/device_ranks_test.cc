// SPDX-License-Identifier: MIT
// Ranks of a group on devices of the room of GPU tiers, seen without a GPU: parts of a model take
// hidden rows from other processes and leave them there, and give the bits of one process.
#include "device/several_devices.h"
#include "group/rank_case.h"

namespace sharpi::testing {
namespace {

test::ModelRecipe deep(test::ModelRecipe recipe, uint32_t n_layers) {
  recipe.n_layers = n_layers;
  recipe.n_mtp = 0;
  return recipe;
}

std::optional<RoomMachine> g_machine;  // of a rank's process

GroupSetup on_devices(uint32_t n) {
  GroupSetup setup;
  setup.context = [] {
    g_machine.emplace(three_cards());
    return g_machine->ladders().context;
  };
  setup.edit = [n](sharpi_plan_params* p, sharpi_session_params*) {
    static sharpi_device_request devices[2];
    for (uint32_t d = 0; d < n; ++d) {
      sharpi_device_request_init(&devices[d], sizeof devices[d]);
      devices[d].device = d + 1;
    }
    p->n_gpu_layers = -1;
    p->deterministic = 1;
    p->devices = devices;
    p->n_devices = n;
    p->split = SHARPI_SPLIT_ALL;
  };
  return setup;
}

/// Rows of a plan on a device come to what it holds.
void expect_planned(Rank& r, uint32_t device, const sharpi_session* session) {
  uint64_t planned = 0, held = 0;
  const auto add = [device](const MemoryRows& rows, uint64_t* to) {
    for (const sharpi_memory_row& row : rows)
      if (row.device == device && row.transient == 0) *to += row.held_bytes;
  };
  add(rows_of_handle(sharpi_plan_rows, r.loaded().plan.get()), &planned);
  add(rows_of_handle(sharpi_model_memory, r.model()), &held);
  add(rows_of_handle(sharpi_session_memory, session), &held);
  EXPECT_EQ(planned, held) << "device " << device << " of rank " << r.rank();
  const HostDevice& d = g_machine->device(device);
  const uint64_t taken = d.counts().device_bytes + d.granule_bytes_held() + d.counts().pinned_bytes;
  EXPECT_EQ(planned, taken) << "device " << device << " of rank " << r.rank();
}

void live(Rank& r, uint32_t n_devices) {
  const SessionPtr s = r.session();
  ASSERT_NE(s, nullptr);
  ASSERT_TRUE(r.seed(s.get(), 5, 0.9f));
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 75; ++i) tokens.push_back((i * 37 + 11) % 300);
  ASSERT_TRUE(r.prefill(s.get(), tokens, 2));
  r.say_logits(s.get(), 0);
  r.say_logits(s.get(), 1);
  const auto before = g_machine->replays();
  for (int i = 0; i < 4; ++i) {
    r.step(s.get());
    r.say_logits(s.get());
  }
  ASSERT_TRUE(r.truncate(s.get(), 0));
  ASSERT_TRUE(r.prefill(s.get(), {1, 2, 3}));
  ASSERT_TRUE(r.decode(s.get(), 4));
  r.say_logits(s.get());
  for (uint32_t d = 1; d <= n_devices; ++d) {
    EXPECT_EQ(g_machine->replays()[d - 1] - before[d - 1], 5u) << "a step is a recording";
    expect_planned(r, d, s.get());
  }
  const SessionPtr other = r.session();
  ASSERT_TRUE(r.prefill(other.get(), {5, 6}));
  sharpi_session* both[] = {s.get(), other.get()};
  const int32_t next[] = {9, 10};
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_decode_batch(both, next, 2, &e), SHARPI_OK) << e.text;
  for (sharpi_session* one : both) r.say_logits(one);
}

class RanksOnDevices : public ::testing::TestWithParam<test::ModelRecipe> {};

TEST_P(RanksOnDevices, GiveTheBitsOfOneProcess) {
  const MadeModel file(GetParam());
  const auto lines = [&](uint32_t n_ranks, uint32_t n_devices, std::vector<uint32_t> layers) {
    GroupSetup setup = on_devices(n_devices);
    setup.layers = std::move(layers);
    setup.batch_parts = 2;
    return run_ranks(n_ranks,
                     [&](Rank& r) {
                       ASSERT_TRUE(r.open(file.path(), setup));
                       live(r, n_devices);
                     })
        .back()
        .lines;
  };
  const std::vector<std::string> want = lines(1, 1, {});
  ASSERT_EQ(want.size(), 13u);
  EXPECT_EQ(lines(2, 1, {}), want);
  EXPECT_EQ(lines(2, 1, {1, 3}), want);
  EXPECT_EQ(lines(3, 1, {1, 1, 2}), want);
  EXPECT_EQ(lines(2, 2, {2, 2}), want);
}

INSTANTIATE_TEST_SUITE_P(Models, RanksOnDevices,
                         ::testing::Values(deep(test::tiny_qwen3(), 4),
                                           deep(test::tiny_qwen35(), 4),
                                           deep(test::tiny_gemma3(), 4),
                                           deep(test::tiny_olmoe(), 4)),
                         recipe_name);

}  // namespace
}  // namespace sharpi::testing
