// SPDX-License-Identifier: MIT
// What a compaction with a probe takes: as many queries as the session captures are in the plan;
// what goes beyond that is taken from the budgets for the time of the call, and a call that fails
// leaves nothing behind. Of a session that captures none only the positions of its rows stay.
#include "engine_case.h"
#include "support/needle.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kWindow = 8;

MemoryRows session_part(const MemoryRows& rows) {
  MemoryRows out;
  for (const sharpi_memory_row& r : rows) {
    if (r.per_session != 0 && r.transient == 0) out.push_back(r);
  }
  return out;
}

uint64_t bytes_of(const MemoryRows& rows, const std::string& label = {}) {
  uint64_t bytes = 0;
  for (const sharpi_memory_row& r : rows)
    bytes += label.empty() || label == r.label ? r.held_bytes : 0;
  return bytes;
}

class ProbeMemory : public ::testing::Test {
 protected:
  ProbeMemory() : file_(for_tier(test::tiny_qwen3())), probe_(file_.tokens(64, 5)) {}
  /// `more`: of the memory that the sessions are in, beyond what the plan takes.
  void open(uint32_t window, std::optional<uint64_t> more) {
    const auto with = [=](uint64_t budget) {
      return setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
        p->n_chunk = 64;
        (on_gpu() ? p->device_budget : p->host_budget) = budget;
        s->n_ctx = 512;
        s->capture_window = window;
      });
    };
    const Loaded free = load(file_.path(), with(SHARPI_ALL_FREE));
    const uint64_t held =
        on_gpu() ? free.plan_info.device_held_bytes : free.plan_info.host_held_bytes;
    loaded_ = load(file_.path(), with(more ? held + *more : SHARPI_ALL_FREE));
    ASSERT_NE(loaded_.model, nullptr);
    planned_ = session_part(rows_of_handle(sharpi_plan_rows, loaded_.plan.get()));
  }
  Chat read() const {
    Chat chat(loaded_.model.get());
    chat.prefill(file_.tokens(300));
    return chat;
  }
  sharpi_status compact(const Chat& chat, uint32_t n_probe, sharpi_error* e,
                        sharpi_policy policy = SHARPI_POLICY_SNAPKV) const {
    sharpi_compact_params p = compact_params(policy, chat.info().n_slots_max - 20);
    p.recency = 4;
    p.headroom = 512;  // the rows' memory stays
    p.n_probe = n_probe;
    p.probe = probe_.data();
    return sharpi_session_compact(chat.get(), &p, nullptr, e);
  }
  static MemoryRows rows(const Chat& chat) {
    return rows_of_handle(sharpi_session_memory, chat.get());
  }
  MadeModel file_;
  std::vector<int32_t> probe_;
  Loaded loaded_;
  MemoryRows planned_;
};

TEST_F(ProbeMemory, AsManyQueriesAsAreCapturedAreInThePlan) {
  open(kWindow, 0);
  EXPECT_GT(bytes_of(planned_, "observer queries"), 0u);
  const Chat chat = read();
  EXPECT_EQ(bytes_of(rows(chat)), bytes_of(planned_));
  sharpi_error e = SHARPI_ERROR_INIT;
  for (const uint32_t n : {1u, 4u, kWindow}) {
    ASSERT_EQ(compact(chat, n, &e), SHARPI_OK) << text_of(e);
    EXPECT_EQ(bytes_of(rows(chat)), bytes_of(planned_)) << n;
  }
}

TEST_F(ProbeMemory, ALongerOneIsRefusedWhereTheBudgetHasNoRoom) {
  open(kWindow, 0);
  const Chat chat = read();
  const std::vector<char> before = saved(chat);
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(compact(chat, 64, &e), SHARPI_E_DOES_NOT_FIT) << text_of(e);
  EXPECT_NE(std::string(e.text).find(on_gpu() ? "device_budget" : "host_budget"), std::string::npos)
      << e.text;
  EXPECT_TRUE(saved(chat) == before);
  EXPECT_EQ(bytes_of(rows(chat)), bytes_of(planned_));
  EXPECT_EQ(compact(chat, kWindow, &e), SHARPI_OK) << text_of(e);
}

TEST_F(ProbeMemory, WhatALongerOneTakesGoesBack) {
  for (const std::optional<uint64_t> more : {std::optional<uint64_t>(), {16u << 20}}) {
    open(kWindow, more);
    const Chat chat = read();
    sharpi_error e = SHARPI_ERROR_INIT;
    for (uint32_t i = 0; i < 4; ++i) {  // the budget has room for one, and for one after another
      ASSERT_EQ(compact(chat, 64, &e), SHARPI_OK) << text_of(e);
      EXPECT_EQ(bytes_of(rows(chat)), bytes_of(planned_));
    }
  }
}

TEST_F(ProbeMemory, WithoutCapturedQueriesOnlyPositionsStay) {
  open(0, std::nullopt);
  const Chat chat = read();
  EXPECT_EQ(bytes_of(rows(chat)), bytes_of(planned_));
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(compact(chat, 12, &e), SHARPI_OK) << text_of(e);
  sharpi_model_summary info = loaded_.info;
  uint64_t lists = 0;
  for (uint32_t l = 0; l < info.n_layers; ++l) {
    sharpi_layer_info layer{};
    layer.struct_size = sizeof layer;
    ASSERT_EQ(sharpi_session_layer(chat.get(), l, &layer, &e), SHARPI_OK) << text_of(e);
    lists += layer.n_kv_heads;
  }
  EXPECT_EQ(bytes_of(rows(chat), "compaction tables"), lists * 512 * sizeof(uint32_t));
  EXPECT_EQ(bytes_of(rows(chat)), bytes_of(planned_) + lists * 512 * sizeof(uint32_t));
  const Chat fork = chat.fork();
  EXPECT_EQ(bytes_of(rows(fork)), bytes_of(rows(chat)));
  const std::vector<char> blob = saved(chat);
  const Chat other = read();
  ASSERT_EQ(sharpi_session_restore(other.get(), blob.data(), blob.size(), &e), SHARPI_OK)
      << text_of(e);
  EXPECT_EQ(bytes_of(rows(other)), bytes_of(rows(chat)));
  for (const Chat* c : {&chat, &other}) {
    ASSERT_EQ(sharpi_session_truncate(c->get(), 0, &e), SHARPI_OK) << text_of(e);
    EXPECT_EQ(bytes_of(rows(*c)), bytes_of(planned_));
  }
}

TEST_F(ProbeMemory, OneThatFailsLeavesNothing) {
  open(0, 0);
  const Chat chat = read();
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(compact(chat, 12, &e), SHARPI_E_DOES_NOT_FIT) << text_of(e);
  EXPECT_EQ(bytes_of(rows(chat)), bytes_of(planned_));
  open(0, std::nullopt);
  const Chat stopped = read();
  sharpi_compact_params p = compact_params(SHARPI_POLICY_SNAPKV, 100);
  p.n_probe = 12;
  p.probe = probe_.data();
  p.progress = [](void*, uint32_t, uint64_t, uint64_t) -> int32_t { return 1; };
  ASSERT_EQ(sharpi_session_compact(stopped.get(), &p, nullptr, &e), SHARPI_E_CANCELLED);
  EXPECT_EQ(bytes_of(rows(stopped)), bytes_of(planned_));
}

/// A list that a sampler keeps is the session's, and the budget counts it.
TEST_F(ProbeMemory, BiasListsOfASamplerAreCounted) {
  if (on_gpu()) GTEST_SKIP() << "they are in the host's memory";
  open(kWindow, 800);
  const Chat chat = read();
  std::vector<int32_t> tokens(101, 1);
  std::vector<float> values(101, 0.5f);
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  p.bias_tokens = tokens.data(), p.bias_values = values.data();
  sharpi_error e = SHARPI_ERROR_INIT;
  p.n_bias = 101;
  EXPECT_EQ(sharpi_session_set_sampler(chat.get(), &p, &e), SHARPI_E_DOES_NOT_FIT);
  EXPECT_EQ(bytes_of(rows(chat)), bytes_of(planned_));
  for (const uint32_t n : {100u, 3u, 100u, 0u, 100u}) {
    p.n_bias = n;
    ASSERT_EQ(sharpi_session_set_sampler(chat.get(), &p, &e), SHARPI_OK) << text_of(e);
    EXPECT_EQ(bytes_of(rows(chat)), bytes_of(planned_) + 8 * n);
  }
}

}  // namespace
}  // namespace sharpi::testing
