// SPDX-License-Identifier: MIT
// Rows in blocks of one KV head on a Vulkan device: every codec, heads of 32 to 512 elements,
// layers that share rows, keys that are values, windows and delta nets beside; what heads keep is
// what they keep on the CPU, and memory is what sessions say.
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/by_head_ways.h"
#include "vulkan/driver.h"
#include "vulkan/vulkan_ladders.h"

namespace sharpi::testing {
namespace {

/// The first device as a card: a few rows' attention is in shares there.
Result<std::vector<std::unique_ptr<Backend>>> host_and_card(const BackendOptions&) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, small_cpu());
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::move(host));
  std::string why;
  vulkan::PhysicalDevice physical = vulkan_device(&why)->physical();
  physical.kind = vulkan::DeviceKind::kDiscrete;
  physical.id = "vulkan-posed-by-head";
  out.push_back(vulkan::make_backend(std::make_shared<vulkan::Device>(physical, 1)));
  return out;
}

LadderMachine card() {
  static const ContextPtr made = context_of(&host_and_card);
  return {made.get()};
}

class VulkanByHead : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    SHARPI_NEEDS_VULKAN();
    file_.emplace(GetParam().recipe);
    n_ = static_cast<int32_t>(GetParam().recipe.n_layers);
  }
  std::optional<MadeModel> file_;
  int32_t n_ = 0;
};

TEST_P(VulkanByHead, HeadsKeepWhatTheyKeepOnTheCpu) {
  for (const int32_t layers : {n_ / 2, n_}) {
    sharpi_error why = SHARPI_ERROR_INIT;
    const Ladder ladder{{1, layers}};
    if (!vulkan_machine().try_load(file_->path(), ladder, &why).model) continue;
    check_keeping(vulkan_machine(), *file_, ladder, text_of(ladder));
  }
}

TEST_P(VulkanByHead, TheBitsAreThoseOfRowsTogether) {
  for (const sharpi_kv_dtype kv : GetParam().dtypes)
    check_bits(vulkan_machine(), *file_, {{1, n_}}, kv, dtype_text(kv));
}

TEST_P(VulkanByHead, SavedFormsGoFromTierToTier) {
  for (const sharpi_kv_dtype kv : GetParam().dtypes)
    check_saved_forms(vulkan_machine(), *file_, {{1, n_}}, kv, dtype_text(kv));
}

/// A chunk, few rows and steps behind what the CPU compacted.
TEST_P(VulkanByHead, SharesOfRowsAreNearTheCpu) {
  const std::vector<int32_t> text = file_->tokens(300);
  for (const sharpi_kv_dtype kv : GetParam().dtypes) {
    const Edit edit = [=](sharpi_plan_params* p, sharpi_session_params* s) {
      exact_rows(kv)(p, s);
      p->deterministic = 0;
    };
    const Loaded host = vulkan_machine().load(file_->path(), {}, edit),
                 there = card().load(file_->path(), {{1, n_}}, edit);
    ASSERT_TRUE(host.model && there.model);
    Chat a(host.model.get()), b(there.model.get()), together(there.model.get());
    a.prefill(slice(text, 0, 200));
    compact(a, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 70));
    restore(b, saved(a));
    const double near = kv == SHARPI_KV_F32 ? kNearTheCpu : kNearInFewBits;
    for (const auto& [from, to] :
         {std::pair<size_t, size_t>{200, 270}, {270, 273}, {273, 274}, {274, 275}}) {
      for (Chat* chat : {&a, &b}) chat->prefill(slice(text, from, to));
      EXPECT_LE(distance(a.logits(), b.logits()), near) << dtype_text(kv) << ", token " << from;
    }
    // In a batch with rows that are together.
    together.prefill(slice(text, 0, 100));
    sharpi_session* two[] = {together.get(), b.get()};
    const int32_t tokens[] = {text[275], text[275]};
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_decode_batch(two, tokens, 2, &e), SHARPI_OK) << text_of(e);
    a.decode(text[275]);
    EXPECT_LE(distance(a.logits(), b.logits()), near) << dtype_text(kv) << ", a batch";
  }
}

std::vector<Case> kinds() {
  const std::vector<Case> all = device_cases();
  return {{"qwen3", heads_of(32), stored_dtypes()},
          {"shared_layers_beside_windows", all[1].recipe, all[1].dtypes},
          {"keys_that_are_values", all[2].recipe, all[2].dtypes},
          {"delta_nets_beside", deep(test::tiny_qwen35(), 4), all[3].dtypes},
          {"one_kv_head", all[4].recipe, all[4].dtypes},
          {"heads_of_80", heads_of(80)},
          {"heads_of_128", heads_of(128), {SHARPI_KV_Q8_0}},
          {"heads_of_512", heads_of(512), {SHARPI_KV_Q4}},
          {"latents", test::tiny_deepseek2(), {SHARPI_KV_F32, SHARPI_KV_Q8_0}},
          {"learned_sinks", deep(test::tiny_gpt_oss(), 2)}};
}
INSTANTIATE_TEST_SUITE_P(Kinds, VulkanByHead, ::testing::ValuesIn(kinds()), case_name);

TEST(VulkanByHeadSessions, OfBoundedRowsGoOnPastTheirContextWithTheSameBits) {
  SHARPI_NEEDS_VULKAN();
  check_bounded(vulkan_machine(), MadeModel(heads_of(32)), {{1, 2}});
}

uint64_t device_bytes(const Chat& chat) {
  uint64_t n = 0;
  for (const sharpi_memory_row& r : rows_of_handle(sharpi_session_memory, chat.get()))
    n += r.kind == SHARPI_ROW_DEVICE && r.transient == 0 ? r.held_bytes : 0;
  return n;
}

/// Bytes are counted where the driver gives them.
TEST(VulkanByHeadSessions, HoldWhatTheySay) {
  SHARPI_NEEDS_VULKAN();
  test::ModelRecipe recipe = deep(test::tiny_qwen3(), 4);
  recipe.n_heads = recipe.n_kv_heads = 4;
  recipe.head_dim = 64;
  const MadeModel file(recipe);
  const Loaded l = vulkan_machine().load(file.path(), {{1, 4}}, [](auto* p, auto* s) {
    watching(SHARPI_KV_F32, false, true)(p, s);
    p->n_chunk = 256;
    s->n_ctx = 2048;
  });
  ASSERT_TRUE(l.model);
  std::string why;
  const auto device = vulkan_device(&why);
  ASSERT_TRUE(device && device->open().is_ok());
  const uint64_t before = device->driver().allocated_bytes();
  const auto expect_bytes = [&](std::initializer_list<const Chat*> chats, const char* what) {
    uint64_t said = 0;
    for (const Chat* chat : chats) said += device_bytes(*chat);
    EXPECT_EQ(device->driver().allocated_bytes() - before, said) << what;
  };
  const std::vector<int32_t> text = file.tokens(900);
  Chat chat(l.model.get());
  expect_bytes({&chat}, "new");
  chat.prefill(text);
  expect_bytes({&chat}, "read");
  const uint64_t whole = held_by_rows(chat);
  const Report r = compact(chat, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 112, 0));
  expect_bytes({&chat}, "compacted");
  EXPECT_EQ(r.held_after, held_by_rows(chat));
  EXPECT_LE(4 * held_by_rows(chat), whole) << "an eighth of the rows in granules of 2 MiB";
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_decode(chat.get(), 1, &e), SHARPI_E_KV_FULL);
  const uint32_t more = chat.info().n_slots_max + 300;
  ASSERT_EQ(sharpi_session_reserve(chat.get(), more, &e), SHARPI_OK) << text_of(e);
  expect_bytes({&chat}, "grown");
  chat.prefill(slice(text, 0, 120));
  const std::vector<char> blob = saved(chat);
  Chat back(l.model.get());
  restore(back, blob);
  expect_bytes({&chat, &back}, "restored");
  EXPECT_TRUE(saved(back) == blob);
  ASSERT_EQ(sharpi_session_truncate(back.get(), 0, &e), SHARPI_OK) << text_of(e);
  expect_bytes({&chat, &back}, "emptied");
}

}  // namespace
}  // namespace sharpi::testing
