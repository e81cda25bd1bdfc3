// SPDX-License-Identifier: MIT
// Forks: rows that they have in common are in memory once where the system can share pages, are
// paid for twice where it cannot, and nothing that one does is seen by another.
#include "engine_case.h"
#include "os/pages.h"
#include "support/system.h"
#include "support/watched_new.h"

namespace sharpi::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kRow = 16 * 1024;  // bytes a token of wide_rows()
/// What forks share is cut to: memory of a GPU comes in whole pieces of 2 MiB (for ranges as small
/// as these), of the host in pages. Tests of exact bytes use prefixes that are multiples of both.
uint64_t held_for(uint64_t bytes) {
  const uint64_t unit = on_gpu() ? 2 * kMiB : 64 * 1024;
  return (bytes + unit - 1) / unit * unit;
}

/// 16 KiB of rows a token: on a GPU these models have heads of 64 (for_tier()).
test::ModelRecipe wide_rows() {
  test::ModelRecipe r = test::tiny_qwen3();
  r.n_layers = 2;
  r.n_heads = r.n_kv_heads = on_gpu() ? 16 : 8;
  r.head_dim = on_gpu() ? 64 : 128;
  return r;
}

/// Whether forks share at all: where the host's pages cannot be, each has rows of its own.
bool rows_are_shared() {
  return on_gpu() || os::can_share_pages();
}
uint64_t if_shared(uint64_t bytes) {
  return rows_are_shared() ? bytes : 0;
}

struct KvBytes {
  uint64_t held = 0, shared = 0;
};
KvBytes kv_bytes(const Chat& chat) {
  KvBytes b;
  for (const sharpi_memory_row& r : rows_of_handle(sharpi_session_memory, chat.get())) {
    if (r.purpose != SHARPI_ROW_KV) continue;
    b.held += r.held_bytes;
    b.shared += r.shared_bytes;
  }
  const sharpi_session_summary s = chat.info();
  EXPECT_EQ(s.kv_held_bytes, b.held);
  EXPECT_EQ(s.kv_shared_bytes, b.shared);
  return b;
}

void compact(const Chat& chat, uint32_t budget) {
  sharpi_compact_params p;
  sharpi_compact_params_init(&p, sizeof p);
  p.budget = budget;
  p.recency = 8;
  p.headroom = 64;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_compact(chat.get(), &p, nullptr, &e), SHARPI_OK) << text_of(e);
}

class Fork : public ::testing::Test {
 protected:
  void use(const test::ModelRecipe& recipe, const Edit& edit) {
    file_.emplace(recipe);
    loaded_ = load(file_->path(), setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
                     s->k_dtype = s->v_dtype = SHARPI_KV_F32;
                     edit(p, s);
                   }));
    ASSERT_TRUE(loaded_.model);
    tokens_ = file_->tokens(2048);
  }
  Chat read(uint32_t n) {
    Chat chat(loaded_.model.get());
    chat.prefill(tokens_.data(), n);
    return chat;
  }
  /// Limits the memory that rows are in.
  void budget(sharpi_plan_params* p) const {
    (on_gpu() ? p->device_budget : p->host_budget) = budget_;
  }
  uint64_t planned_bytes() const {
    return on_gpu() ? loaded_.plan_info.device_held_bytes : loaded_.plan_info.host_held_bytes;
  }
  /// What the plan prices a session at, of the memory that rows are in.
  uint64_t session_bytes() const {
    uint64_t bytes = 0;
    for (const sharpi_memory_row& r : rows_of_handle(sharpi_plan_rows, loaded_.plan.get())) {
      if (r.per_session != 0 && (r.kind == SHARPI_ROW_DEVICE) == on_gpu()) bytes += r.held_bytes;
    }
    return bytes;
  }
  /// What this context holds on the GPU; 0 without one.
  uint64_t device_bytes() const {
    if (!on_gpu()) return 0;
    sharpi_device d{};
    d.struct_size = sizeof d;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_device_info(loaded_.context.get(), 1, 0, &d, &e), SHARPI_OK) << text_of(e);
    return d.held_bytes;
  }
  uint64_t budget_ = SHARPI_ALL_FREE;
  std::optional<MadeModel> file_;
  Loaded loaded_;
  std::vector<int32_t> tokens_;
};

TEST_F(Fork, ThreeForksOfSixteenMegabytesHoldThemOnce) {
  constexpr uint32_t kPrefix = 1024, kRoom = 64;
  const auto edit = [&](sharpi_plan_params* p, sharpi_session_params* s) {
    budget(p);
    p->n_chunk = 256;
    s->n_ctx = kPrefix + kRoom;
  };
  use(wide_rows(), edit);
  const uint64_t own = session_bytes() - if_shared(kPrefix * kRow);
  // The budget has room for one session and what three forks have besides the prefix, if that is
  // shared: three copies of it would be 48 MiB more.
  budget_ = planned_bytes() + 3 * own;
  use(wide_rows(), edit);
  std::vector<Chat> all;
  all.push_back(read(kPrefix));
  EXPECT_EQ(kv_bytes(all[0]).shared, 0u);
  const uint64_t before = device_bytes();
  for (int i = 0; i < 3; ++i) all.push_back(all[0].fork());
  if (on_gpu()) {
    EXPECT_EQ(device_bytes() - before, 3 * own) << "the prefix is on the device once";
  } else {
    EXPECT_EQ(test::shared_row_pages(), if_shared(kPrefix * kRow)) << "16 MiB, once";
  }
  for (const Chat& c : all) {
    EXPECT_EQ(kv_bytes(c).held, held_for((kPrefix + kRoom) * kRow));
    EXPECT_EQ(kv_bytes(c).shared, if_shared(kPrefix * kRow));
  }
  sharpi_session* more = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_fork(all[0].get(), &more, &e), SHARPI_E_DOES_NOT_FIT) << text_of(e);
  // The last one gives the prefix back.
  all.clear();
  EXPECT_EQ(device_bytes(), on_gpu() ? before - session_bytes() : 0u);
}

/// Decode takes no memory, whatever is shared: captured steps go on at the same addresses.
TEST_F(Fork, AppendingTakesNothing) {
  use(wide_rows(), [](sharpi_plan_params*, sharpi_session_params* s) { s->n_ctx = 512; });
  Chat a = read(300), twin = read(300), b = a.fork();
  ASSERT_EQ(kv_bytes(a).shared, if_shared(256 * kRow));
  const uint64_t before = device_bytes();
  for (uint32_t i = 0; i < 100; ++i) {
    a.decode(tokens_[i]);
    b.decode(tokens_[1000 + i]);
    twin.decode(tokens_[i]);
  }
  EXPECT_EQ(device_bytes(), before);
  EXPECT_EQ(kv_bytes(b).shared, if_shared(256 * kRow));
  EXPECT_TRUE(saved(a) == saved(twin));
  // Restored over what it shares, and read on: the others keep theirs.
  const std::vector<char> blob = saved(b), of_a = saved(a);
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_restore(b.get(), of_a.data(), of_a.size(), &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(kv_bytes(b).shared, 0u);
  EXPECT_TRUE(saved(b) == of_a);
  ASSERT_EQ(sharpi_session_truncate(a.get(), 20, &e), SHARPI_OK) << text_of(e);
  a.prefill(tokens_.data() + 500, 300);
  EXPECT_TRUE(saved(b) == of_a);
}

TEST_F(Fork, WhatOneDoesNoOtherSees) {
  for (const test::ModelRecipe& recipe : test::with_newer_kinds(
           {wide_rows(), test::tiny_gemma4kv(), test::tiny_qwen35(), test::tiny_qwen3()})) {
    SCOPED_TRACE(recipe.arch);
    use(recipe, [](sharpi_plan_params* p, sharpi_session_params* s) {
      p->n_chunk = 64;
      s->n_ctx = 512;
      s->capture_window = 16;
      s->n_checkpoints = 2;
    });
    // Twins that were never forked get the same calls.
    Chat a = read(300), a_twin = read(300), b_twin = read(300), c_twin = read(300);
    Chat b = a.fork();
    Chat c = b.fork();
    EXPECT_TRUE(same_bits(c.logits(), a.logits()));
    compact(a, 100);
    compact(a_twin, 100);
    const bool cuts = recipe.arch == "qwen3";
    const uint32_t left = cuts ? 130 : 0;
    if (cuts) {
      ASSERT_EQ(sharpi_session_truncate(b.get(), left, nullptr), SHARPI_OK);
      ASSERT_EQ(sharpi_session_truncate(b_twin.get(), left, nullptr), SHARPI_OK);
    }
    for (uint32_t i = 0; i < 40; ++i) {
      for (Chat* one : {&a, &a_twin}) one->decode(tokens_[300 + i]);
      for (Chat* one : {&b, &b_twin}) one->decode(tokens_[600 + i]);
      for (Chat* one : {&c, &c_twin}) one->decode(tokens_[900 + i]);
      ASSERT_TRUE(same_bits(a.logits(), a_twin.logits())) << i;
      ASSERT_TRUE(same_bits(b.logits(), b_twin.logits())) << i;
      ASSERT_TRUE(same_bits(c.logits(), c_twin.logits())) << i;
    }
    EXPECT_TRUE(saved(a) == saved(a_twin));
    EXPECT_TRUE(saved(b) == saved(b_twin));
    // Whoever read the rows first may go first.
    a = Chat(SessionPtr(), a.n_vocab());
    compact(c, 64);
    compact(c_twin, 64);
    c.decode(5);
    c_twin.decode(5);
    EXPECT_TRUE(saved(c) == saved(c_twin));
    EXPECT_EQ(kv_bytes(b_twin).shared, 0u);
  }
  EXPECT_EQ(test::shared_row_pages(), 0u) << "all sessions are gone";
}

TEST_F(Fork, TheLastOneOwnsTheRowsAndChangesThemInPlace) {
  use(wide_rows(), [](sharpi_plan_params*, sharpi_session_params* s) { s->n_ctx = 320; });
  Chat a = read(300);
  {
    const Chat b = a.fork();
    EXPECT_EQ(kv_bytes(a).shared, if_shared(256 * kRow));
  }
  EXPECT_EQ(kv_bytes(a).shared, 0u);
  const Chat other = a.fork(), another = other.fork();
  EXPECT_EQ(kv_bytes(another).shared, if_shared(256 * kRow));
  EXPECT_EQ(test::shared_row_pages(), on_gpu() ? 0 : if_shared(256 * kRow));
  ASSERT_EQ(sharpi_session_truncate(a.get(), 128, nullptr), SHARPI_OK);
  EXPECT_EQ(kv_bytes(a).shared, if_shared(128 * kRow));
  EXPECT_EQ(kv_bytes(another).shared, if_shared(256 * kRow));
  ASSERT_EQ(sharpi_session_truncate(a.get(), 0, nullptr), SHARPI_OK);
  EXPECT_EQ(kv_bytes(a).shared, 0u);
}

TEST_F(Fork, WithoutMemoryForItsOwnRowsACallIsRefusedAndChangesNothing) {
  const auto edit = [&](sharpi_plan_params* p, sharpi_session_params* s) {
    budget(p);
    s->n_ctx = 320;
    s->capture_window = 8;
  };
  use(wide_rows(), edit);
  // One session, what a fork has besides the 4 MiB that both share, and not enough for those.
  budget_ = planned_bytes() + session_bytes() - 256 * kRow + 2 * kMiB;
  use(wide_rows(), edit);
  Chat a = read(300);
  const std::vector<char> before = saved(a);
  sharpi_error e = SHARPI_ERROR_INIT;
  if (!rows_are_shared()) {  // a fork has those 4 MiB itself, and is not made
    sharpi_session* fork = nullptr;
    EXPECT_EQ(sharpi_session_fork(a.get(), &fork, &e), SHARPI_E_DOES_NOT_FIT) << text_of(e);
    EXPECT_NE(std::string(e.text).find("host_budget"), std::string::npos) << e.text;
    EXPECT_TRUE(saved(a) == before);
    a.decode(3);
    return;
  }
  const Chat b = a.fork();
  EXPECT_EQ(sharpi_session_truncate(a.get(), 10, &e), SHARPI_E_DOES_NOT_FIT) << text_of(e);
  EXPECT_NE(std::string(e.text).find(on_gpu() ? "device_budget" : "host_budget"), std::string::npos)
      << e.text;
  sharpi_compact_params p;
  sharpi_compact_params_init(&p, sizeof p);
  p.budget = 64;
  EXPECT_EQ(sharpi_session_compact(a.get(), &p, nullptr, &e), SHARPI_E_DOES_NOT_FIT) << text_of(e);
  EXPECT_EQ(sharpi_session_restore(a.get(), before.data(), before.size(), &e),
            SHARPI_E_DOES_NOT_FIT)
      << text_of(e);
  EXPECT_TRUE(saved(a) == before);
  a.decode(3);  // appending was paid for
}

TEST_F(Fork, WithoutMemoryForBookkeepingChangesNothingAndLosesNoBudget) {
  const auto edit = [&](sharpi_plan_params* p, sharpi_session_params* s) {
    budget(p);
    s->n_ctx = 320;
    s->per_layer_budgets = 1;  // two groups: one may be shared before the other is refused
  };
  use(wide_rows(), edit);
  // One session and one fork of it.
  budget_ = planned_bytes() + session_bytes() - if_shared(256 * kRow);
  use(wide_rows(), edit);
  const std::vector<char> before = saved(read(300));
  bool failed = true;
  for (int nth = 1; failed; ++nth) {
    Chat a(loaded_.model.get());
    sharpi_session* out = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_restore(a.get(), before.data(), before.size(), &e), SHARPI_OK);
    fail_new(nth);
    const sharpi_status status = sharpi_session_fork(a.get(), &out, &e);
    failed = !new_pending();
    fail_new(0);
    EXPECT_EQ(status, failed ? SHARPI_E_OUT_OF_MEMORY : SHARPI_OK) << nth << ": " << text_of(e);
    EXPECT_TRUE(saved(a) == before) << nth;
    if (failed) {
      ASSERT_EQ(sharpi_session_fork(a.get(), &out, &e), SHARPI_OK) << text_of(e);
    }
    const Chat b(SessionPtr(out), a.n_vocab());
    EXPECT_TRUE(saved(b) == before) << nth;
    EXPECT_EQ(sharpi_session_fork(a.get(), &out, &e), SHARPI_E_DOES_NOT_FIT) << nth;
    a.decode(1);
  }
  EXPECT_EQ(test::shared_row_pages(), 0u);
}

TEST_F(Fork, BoundedSessionsShareNothing) {
  use(wide_rows(), [](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 64;
    s->n_ctx = 512;
    s->kv_budget = 128;
  });
  Chat a = read(192), twin = read(192), b = a.fork();
  EXPECT_EQ(kv_bytes(a).shared, 0u);
  b.prefill(tokens_.data(), 300);
  a.decode(1);
  twin.decode(1);
  EXPECT_TRUE(saved(a) == saved(twin));
}

}  // namespace
}  // namespace sharpi::testing
