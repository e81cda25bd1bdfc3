// SPDX-License-Identifier: MIT
// Budgets hold for sessions beyond those that were priced: one too many is refused with the bytes
// that are short, what a compaction gave back serves another, and a retry works after one is gone.
#include <thread>

#include "engine/engine_case.h"
#include "support/needle.h"

namespace sharpi::testing {
namespace {

class AllowanceTest : public ::testing::Test {
 protected:
  AllowanceTest() : file_(recipe()) {}
  static test::ModelRecipe recipe() {
    test::ModelRecipe r = test::tiny_qwen3();
    r.n_layers = 4;
    r.n_heads = r.n_kv_heads = 4;
    r.head_dim = 128;
    r.n_ctx = on_gpu() ? 65536 : 8192;  // a device gives memory back in larger pieces
    return r;
  }
  /// A budget of what the plan takes, and `more`, of the memory that the sessions are in.
  void open(uint64_t more) {
    const auto with = [](uint64_t budget) {
      return setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
        p->n_chunk = 64;
        (on_gpu() ? p->device_budget : p->host_budget) = budget;
        s->n_ctx = recipe().n_ctx;
        s->k_dtype = s->v_dtype = SHARPI_KV_F32;
        s->capture_window = 16;
      });
    };
    const Loaded free = load(file_.path(), with(SHARPI_ALL_FREE));
    held_ = on_gpu() ? free.plan_info.device_held_bytes : free.plan_info.host_held_bytes;
    l_ = load(file_.path(), with(held_ + more));
    ASSERT_NE(l_.model, nullptr);
    price_ = price(nullptr);
  }
  uint64_t price(const sharpi_session_params* p) const {
    sharpi_plan* raw = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_plan_session(l_.model.get(), p, &raw, &e), SHARPI_OK) << text_of(e);
    const PlanPtr plan(raw);
    sharpi_plan_summary s{};
    s.struct_size = sizeof s;
    EXPECT_EQ(sharpi_plan_info(raw, &s, &e), SHARPI_OK) << text_of(e);
    return on_gpu() ? s.device_held_bytes : s.host_held_bytes;
  }
  SessionPtr create(const sharpi_session_params* p = nullptr) const {
    sharpi_session* raw = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_create(l_.model.get(), p, &raw, &e), SHARPI_OK) << text_of(e);
    return SessionPtr(raw);
  }
  /// What a fork of a session with so many rows does not take: the first 64 of them.
  static uint64_t shared(const Chat& chat, uint32_t n_rows) {
    return on_gpu() ? 0 : chat.info().kv_payload_bytes / n_rows * 64;
  }
  void refused(sharpi_status status, const sharpi_error& e, uint64_t short_by) const {
    EXPECT_EQ(status, SHARPI_E_DOES_NOT_FIT) << e.text;
    const std::string text = e.text;
    EXPECT_NE(text.find(on_gpu() ? "device_budget" : "host_budget"), std::string::npos) << text;
    if (short_by != 0) {
      EXPECT_NE(text.find(": " + std::to_string(short_by) + " are missing"), std::string::npos)
          << text;
    }
  }
  void one_more_is_refused(uint64_t short_by) const {
    sharpi_session* raw = nullptr;
    sharpi_plan* priced = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    refused(sharpi_session_create(l_.model.get(), nullptr, &raw, &e), e, short_by);
    EXPECT_EQ(raw, nullptr);
    refused(sharpi_plan_session(l_.model.get(), nullptr, &priced, &e), e, short_by);
    EXPECT_EQ(priced, nullptr);
  }
  static sharpi_compact_report compact(sharpi_session* s, uint32_t budget, uint32_t headroom) {
    sharpi_compact_params p = compact_params(SHARPI_POLICY_AUTO, budget);
    p.recency = 8;
    p.headroom = headroom;
    sharpi_compact_report r{};
    r.struct_size = sizeof r;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_compact(s, &p, &r, &e), SHARPI_OK) << text_of(e);
    return r;
  }
  MadeModel file_;
  Loaded l_;
  uint64_t held_ = 0, price_ = 0;
};

TEST_F(AllowanceTest, OneSessionTooManyIsRefusedAndTheRetryWorks) {
  open(0);
  SessionPtr first = create();
  for (int i = 0; i < 3; ++i) one_more_is_refused(price_);  // a refusal keeps nothing
  first.reset();
  first = create();
  one_more_is_refused(price_);
}

TEST_F(AllowanceTest, AsManyAsFitByteForByte) {
  open(0);
  const uint64_t one = price_;
  open(2 * one - 1);
  std::vector<SessionPtr> sessions;
  sessions.push_back(create());
  sessions.push_back(create());
  one_more_is_refused(1);
  open(2 * one);
  sessions.clear();
  for (int i = 0; i < 3; ++i) sessions.push_back(create());
  one_more_is_refused(one);
}

TEST_F(AllowanceTest, AForkIsASession) {
  open(0);
  Chat chat(l_.model.get());
  chat.prefill(file_.tokens(70));
  sharpi_session* raw = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  refused(sharpi_session_fork(chat.get(), &raw, &e), e, price_ - shared(chat, 70));
  EXPECT_EQ(raw, nullptr);
  chat.decode(3);
  const uint64_t one = price_;
  open(one);
  Chat other(l_.model.get());
  other.prefill(file_.tokens(70));
  ASSERT_EQ(sharpi_session_fork(other.get(), &raw, &e), SHARPI_OK) << text_of(e);
  const SessionPtr twin(raw);
  one_more_is_refused(one - shared(other, 70));
}

TEST_F(AllowanceTest, AForkOfACompactedSessionTakesWhatThatOneHolds) {
  open(0);
  Chat chat(l_.model.get());
  chat.prefill(file_.tokens(2000));
  const sharpi_compact_report r = compact(chat.get(), 100, 28);
  const uint64_t rest = price_ - (r.held_before - r.held_after);
  ASSERT_LT(rest, price_ - rest) << "a fork needs less than what went back";
  sharpi_session* raw = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_fork(chat.get(), &raw, &e), SHARPI_OK) << text_of(e);
  Chat twin(SessionPtr(raw), chat.n_vocab());
  EXPECT_EQ(twin.info().capacity, r.capacity);
  EXPECT_EQ(twin.info().kv_held_bytes, chat.info().kv_held_bytes);
  EXPECT_EQ(saved(twin), saved(chat));
  one_more_is_refused(2 * rest - shared(chat, 100));
  const uint32_t all = recipe().n_ctx;
  refused(sharpi_session_reserve(twin.get(), all, &e), e, rest - shared(chat, 100));
  chat.decode(3);
  twin.decode(3);
  EXPECT_EQ(twin.logits(), chat.logits());
}

TEST_F(AllowanceTest, WhatACompactionReturnsServesAnotherUntilItIsTakenBack) {
  open(0);
  Chat first(l_.model.get());
  first.prefill(file_.tokens(2000));
  const sharpi_compact_report r = compact(first.get(), 100, 28);
  const uint64_t freed = r.held_before - r.held_after;
  ASSERT_GT(freed, 0u);
  sharpi_session_params half;
  sharpi_session_params_init(&half, sizeof half);
  half.n_ctx = recipe().n_ctx / 2;
  half.k_dtype = half.v_dtype = SHARPI_KV_F32;
  ASSERT_LE(price(&half), freed);
  one_more_is_refused(price_ - freed);
  SessionPtr second = create(&half);
  sharpi_error e = SHARPI_ERROR_INIT;
  const uint32_t all = recipe().n_ctx;
  refused(sharpi_session_reserve(first.get(), all, &e), e, 0);
  EXPECT_EQ(first.info().capacity, r.capacity) << "a refusal changes nothing";
  EXPECT_EQ(sharpi_session_reserve(first.get(), r.capacity + 64, &e), SHARPI_OK) << text_of(e);
  second.reset();
  ASSERT_EQ(sharpi_session_reserve(first.get(), all, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(first.info().capacity, all);
  one_more_is_refused(price_);
  first.prefill(file_.tokens(300));
}

TEST_F(AllowanceTest, ThreadsThatCreateAtOnceGetWhatThereIs) {
  open(0);
  const uint64_t one = price_;
  open(2 * one);  // three sessions
  std::vector<SessionPtr> got(8);
  std::vector<sharpi_status> status(8, SHARPI_OK);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < got.size(); ++i) {
    threads.emplace_back([&, i] {
      sharpi_session* raw = nullptr;
      sharpi_error e = SHARPI_ERROR_INIT;
      status[i] = sharpi_session_create(l_.model.get(), nullptr, &raw, &e);
      got[i].reset(raw);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(std::count(status.begin(), status.end(), SHARPI_OK), 3);
  EXPECT_EQ(std::count(status.begin(), status.end(), SHARPI_E_DOES_NOT_FIT), 5);
  one_more_is_refused(one);
}

}  // namespace
}  // namespace sharpi::testing
