// SPDX-License-Identifier: MIT
// What a host's process and threads may be like: children of fork(), other floating-point
// environments, threads that are cancelled.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cfenv>

#include "engine/engine_case.h"

namespace sharpi::testing {
namespace {

Loaded load_on_host(const MadeModel& file) {
  return load(file.path(), setup_with([](sharpi_plan_params* p, sharpi_session_params* s) {
                p->n_gpu_layers = 0;
                p->deterministic = 1;
                p->n_sessions = 3;
                s->n_ctx = 2048;
                s->k_dtype = s->v_dtype = SHARPI_KV_F32;
              }));
}

/// Rows that sessions have in common lie in a file of memory, which a child has as well.
TEST(HostProcess, AChildThatDestroysLeavesItsParentsRows) {
  const MadeModel file(test::tiny_qwen3());
  const Loaded l = load_on_host(file);
  Chat chat(l.model.get());
  chat.prefill(file.tokens(1500));
  Chat other = chat.fork(), reference = chat.fork();
  EXPECT_GT(chat.info().kv_shared_bytes, 0u);
  reference.decode(3);
  const pid_t child = fork();
  if (child == 0) {
    for (Chat* c : {&chat, &other, &reference}) sharpi_session_destroy(c->get());
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (Chat* c : {&chat, &other}) {
    c->decode(3);
    EXPECT_TRUE(same_bits(c->logits(), reference.logits()));
  }
}

TEST(HostProcess, TheHostsArithmeticIsItsOwn) {
  const MadeModel file(test::tiny_gemma4());
  const auto logits_of = [&] {
    const Loaded l = load_on_host(file);
    Chat chat(l.model.get());
    chat.prefill(file.tokens(200));
    chat.decode(3);
    return chat.logits();
  };
  const Logits want = logits_of();
  std::fenv_t before;
  ASSERT_EQ(std::fegetenv(&before), 0);
  constexpr int kTraps = FE_OVERFLOW | FE_UNDERFLOW | FE_INVALID | FE_DIVBYZERO;
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  ASSERT_NE(feenableexcept(kTraps), -1);
  const Logits got = logits_of();
  const int traps = fegetexcept(), rounding = std::fegetround();
  ASSERT_EQ(std::fesetenv(&before), 0);
  EXPECT_EQ(traps, kTraps);
  EXPECT_EQ(rounding, FE_UPWARD);
  EXPECT_TRUE(same_bits(got, want));
}

struct Loop {
  sharpi_context* context;
  const char* path;
};

/// Opening a file is full of calls at which a thread may be cancelled.
void* plan_for_ever(void* p) {
  const auto& loop = *static_cast<const Loop*>(p);
  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  sharpi_plan_params params;
  sharpi_plan_params_init(&params, sizeof params);
  params.n_gpu_layers = 0;
  params.session = &s;
  for (;;) {
    sharpi_plan* plan = nullptr;
    if (sharpi_plan_create(loop.context, loop.path, &params, &plan, nullptr) != SHARPI_OK)
      return nullptr;
    sharpi_plan_destroy(plan);
    pthread_testcancel();
  }
}

TEST(HostProcess, AThreadIsCancelledBetweenCalls) {
  const MadeModel file(test::tiny_qwen3());
  const ContextPtr context = make_context({});
  Loop loop{context.get(), file.path().c_str()};
  for (int i = 0; i < 20; ++i) {
    pthread_t thread;
    ASSERT_EQ(pthread_create(&thread, nullptr, plan_for_ever, &loop), 0);
    usleep(static_cast<useconds_t>(500 + 777 * i));
    ASSERT_EQ(pthread_cancel(thread), 0);
    void* result = nullptr;
    ASSERT_EQ(pthread_join(thread, &result), 0);
    EXPECT_EQ(result, PTHREAD_CANCELED);
  }
}

TEST(HostProcess, WhatTheHostSaysOfCancelsStays) {
  int before = 0, behind = 0;
  for (const int state : {PTHREAD_CANCEL_DISABLE, PTHREAD_CANCEL_ENABLE}) {
    ASSERT_EQ(pthread_setcancelstate(state, &before), 0);
    const ContextPtr context = make_context({});
    ASSERT_EQ(pthread_setcancelstate(before, &behind), 0);
    EXPECT_EQ(behind, state);
  }
}

struct Last {
  Loaded loaded;
  std::vector<sharpi_session*> sessions;
  bool destroyed = false;
};

/// With a cancel that waits for the first place where the thread may end.
void* destroy_all(void* p) {
  auto* last = static_cast<Last*>(p);
  pthread_cancel(pthread_self());
  for (sharpi_session* s : last->sessions) sharpi_session_destroy(s);
  sharpi_model_destroy(last->loaded.model.release());
  sharpi_plan_destroy(last->loaded.plan.release());
  sharpi_context_destroy(last->loaded.context.release());
  last->destroyed = true;
  pthread_testcancel();
  return nullptr;
}

/// Files are closed and threads joined there, where a thread may be cancelled.
TEST(HostProcess, ACancelledThreadDestroysWhatItHas) {
  const MadeModel file(test::tiny_qwen3());
  Last last;
  last.loaded = load_on_host(file);
  sharpi_session *first = nullptr, *other = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_create(last.loaded.model.get(), nullptr, &first, &e), SHARPI_OK)
      << text_of(e);
  const std::vector<int32_t> tokens = file.tokens(1500);
  ASSERT_EQ(sharpi_session_prefill(first, tokens.data(), 1500, nullptr, nullptr, &e), SHARPI_OK)
      << text_of(e);
  ASSERT_EQ(sharpi_session_fork(first, &other, &e), SHARPI_OK) << text_of(e);
  last.sessions = {first, other};
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, nullptr, destroy_all, &last), 0);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_TRUE(last.destroyed);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

}  // namespace
}  // namespace sharpi::testing
