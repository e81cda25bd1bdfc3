// SPDX-License-Identifier: MIT
// What goes wrong in a compaction changes nothing: every bad request has its own sentence, and a
// failure at any allocation or stage leaves the session bit for bit as it was.
#ifdef __linux__
#include <dlfcn.h>
#include <execinfo.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <set>

#include "engine/engine_case.h"
#include "support/needle.h"
#include "support/paths.h"

namespace {
#ifdef __linux__
std::string_view library_of(const void* code) {
  Dl_info info;
  return dladdr(code, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}
#endif
/// Countdown to an allocation that fails; 0 = none does.
std::atomic<int64_t> fail_in{0};
/// A Vulkan driver's C++ allocations come here too, and one that fails ends the process: beside it
/// only those count that no other library of the system has asked for.
bool counts() {
#ifdef __linux__
  if (sharpi::test::suites_tier() != "vulkan") return true;
  static const std::string_view kProgram = library_of(reinterpret_cast<const void*>(&library_of));
  std::array<void*, 64> callers;
  const int n = backtrace(callers.data(), static_cast<int>(callers.size()));
  return std::all_of(callers.begin(), callers.begin() + n, [](const void* at) {
    const std::string_view from = library_of(at);
    return from == kProgram || from.find("libstdc++") != from.npos ||
           from.find("/libc.so") != from.npos;
  });
#else
  return true;
#endif
}
void* allocated(std::size_t bytes, std::size_t alignment) {
  if (fail_in.load(std::memory_order_relaxed) > 0 && counts() && fail_in.fetch_sub(1) == 1)
    throw std::bad_alloc();
  void* p = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
}  // namespace

// Every C++ allocation of the program, the library's included, passes here.
void* operator new(std::size_t n) {
  return allocated(n, 16);
}
void* operator new[](std::size_t n) {
  return allocated(n, 16);
}
void* operator new(std::size_t n, std::align_val_t a) {
  return allocated(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace sharpi::testing {
namespace {

/// A host allocator that fails at a chosen request.
struct HostMemory {
  std::atomic<int64_t> fail_in{0};
  static void* take(void* user, uint64_t bytes, uint64_t alignment) {
    auto* m = static_cast<HostMemory*>(user);
    if (m->fail_in.load() > 0 && m->fail_in.fetch_sub(1) == 1) return nullptr;
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  static void give(void*, void* p, uint64_t) { std::free(p); }
};

class CompactFailure : public ::testing::Test {
 protected:
  void use(const test::ModelRecipe& recipe, uint32_t window = 16, uint32_t n_ctx = 256,
           uint32_t archive_rows = 0) {
    file_.emplace(recipe);
    ModelSetup setup = setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
      p->n_chunk = 32;
      s->n_ctx = n_ctx;
      s->capture_window = window;
      s->archive_rows = archive_rows;
    });
    setup.edit_context = [this](sharpi_context_params* c) {
      c->alloc = &HostMemory::take;
      c->free = &HostMemory::give;
      c->alloc_user_data = &memory_;
    };
    loaded_ = load(file_->path(), setup);
    ASSERT_NE(loaded_.model, nullptr);
  }
  Chat read(uint32_t n) {
    Chat chat(loaded_.model.get());
    chat.prefill(file_->tokens(n));
    return chat;
  }
  static sharpi_status try_compact(const Chat& chat, const sharpi_compact_params& p,
                                   sharpi_error* e) {
    return sharpi_session_compact(chat.get(), &p, nullptr, e);
  }

  std::optional<MadeModel> file_;
  HostMemory memory_;
  Loaded loaded_;
};

sharpi_compact_params request(sharpi_policy policy = SHARPI_POLICY_SNAPKV, uint32_t budget = 50) {
  sharpi_compact_params p = compact_params(policy, budget);
  p.recency = 8;
  return p;
}

uint64_t held_by(const Chat& chat) {
  uint64_t bytes = 0;
  for (const sharpi_memory_row& r : rows_of_handle(sharpi_session_memory, chat.get()))
    bytes += r.held_bytes;
  return bytes;
}

TEST_F(CompactFailure, EveryAllocationMayFailAndChangesNothing) {
  const std::vector<int32_t> probe(40, 3);
  for (const test::ModelRecipe& recipe : {test::tiny_qwen3(), test::tiny_gemma4()}) {
    for (const sharpi_policy policy :
         {SHARPI_POLICY_GLOBAL, SHARPI_POLICY_VALUE, SHARPI_POLICY_RETRIEVAL}) {
      use(recipe, 0);  // nothing is priced: all scratch is taken by the call
      const Chat chat = read(150), twin = read(150);
      const std::vector<char> before = saved(chat);
      const uint64_t held = held_by(chat);
      sharpi_compact_params p = request(policy);
      p.probe = probe.data();
      p.n_probe = policy == SHARPI_POLICY_VALUE ? 40 : 5;  // more than a chunk: several passes
      std::array<uint64_t, 2> n_failed{};
      // The host allocator's requests, then C++ allocations. A GPU's own are those of
      // tests/cuda/faults_test.
      for (const int kind : {0, 1}) {
        if (kind == 0 && on_gpu()) continue;
        std::atomic<int64_t>& countdown = kind == 0 ? memory_.fail_in : fail_in;
        for (int64_t n = 1; n < 2000; ++n) {
          sharpi_error e = SHARPI_ERROR_INIT;
          countdown = n;
          const sharpi_status s = try_compact(chat, p, &e);
          const bool failed = countdown.exchange(0) <= 0;
          if (!failed) {
            ASSERT_EQ(s, SHARPI_OK) << text_of(e);
            break;
          }
          ASSERT_EQ(s, SHARPI_E_OUT_OF_MEMORY) << recipe.arch << " allocation " << n;
          ASSERT_TRUE(saved(chat) == before) << recipe.arch << " allocation " << n;
          ASSERT_EQ(held_by(chat), held) << recipe.arch << " allocation " << n;
          ++n_failed[static_cast<size_t>(kind)];
        }
        if (kind == 0) {  // done once: go back for the second kind
          sharpi_error e = SHARPI_ERROR_INIT;
          ASSERT_EQ(sharpi_session_restore(chat.get(), before.data(), before.size(), &e),
                    SHARPI_OK);
        }
      }
      EXPECT_TRUE(on_gpu() || n_failed[0] > 1u);
      EXPECT_GT(n_failed[1], 1u);
      sharpi_error e = SHARPI_ERROR_INIT;  // and in the end it does what an undisturbed one does
      ASSERT_EQ(try_compact(twin, p, &e), SHARPI_OK) << text_of(e);
      EXPECT_TRUE(saved(chat) == saved(twin));
    }
  }
}

/// Of a compaction that fills an archive, and of a recall from it.
TEST_F(CompactFailure, EveryAllocationOfARecallMayFailAndChangesNothing) {
  const std::vector<int32_t> probe(40, 3);  // more than a chunk
  use(test::tiny_gemma4(), 0, 256, 256);
  const Chat chat = read(150), twin = read(150);
  sharpi_compact_params compaction = request();
  compaction.probe = probe.data();
  compaction.n_probe = 5;
  sharpi_recall_params recall;
  sharpi_recall_params_init(&recall, sizeof recall);
  recall.budget = 20;
  recall.recency = 8;
  recall.probe = probe.data();
  recall.n_probe = 40;
  for (const bool recalls : {false, true}) {
    const auto call = [&](const Chat& c, sharpi_error* e) {
      return recalls ? sharpi_session_recall(c.get(), &recall, nullptr, e)
                     : try_compact(c, compaction, e);
    };
    for (const int kind : {0, 1}) {
      const std::vector<char> before = saved(chat);
      const uint64_t held = held_by(chat);
      std::atomic<int64_t>& countdown = kind == 0 ? memory_.fail_in : fail_in;
      int64_t n = 1;
      for (bool failed = true; failed && n < 2000; ++n) {
        sharpi_error e = SHARPI_ERROR_INIT;
        countdown = n;
        const sharpi_status s = call(chat, &e);
        failed = countdown.exchange(0) <= 0;
        ASSERT_EQ(s, failed ? SHARPI_E_OUT_OF_MEMORY : SHARPI_OK) << n << text_of(e);
        if (!failed) break;
        ASSERT_TRUE(saved(chat) == before) << n;
        ASSERT_EQ(held_by(chat), held) << n;
      }
      EXPECT_TRUE(n > 2 || (kind == 0 && on_gpu())) << n << ", " << kind;
      sharpi_error e = SHARPI_ERROR_INIT;
      ASSERT_EQ(call(twin, &e), SHARPI_OK) << text_of(e);
      ASSERT_TRUE(saved(chat) == saved(twin));
    }
  }
}

TEST_F(CompactFailure, APricedCompactionTakesNothingFromTheHostAllocator) {
  use(test::tiny_qwen35());
  const Chat chat = read(200);
  memory_.fail_in = 1;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(try_compact(chat, request(SHARPI_POLICY_AUTO), &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(memory_.fail_in.exchange(0), 1);
}

TEST_F(CompactFailure, ACancelledCompactionChangesNothing) {
  use(test::tiny_qwen3());
  Chat chat = read(200), twin = read(200);
  const std::vector<char> before = saved(chat);
  int32_t calls = 0;
  for (const sharpi_policy policy :
       {SHARPI_POLICY_GLOBAL, SHARPI_POLICY_SPAN, SHARPI_POLICY_RETRIEVAL}) {
    for (int32_t stop_at = 1; stop_at <= 2; ++stop_at) {
      struct State {
        int32_t at, calls;
      } state{stop_at, 0};
      sharpi_compact_params p = request(policy);
      p.user_data = &state;
      p.progress = [](void* user, uint32_t phase, uint64_t, uint64_t) -> int32_t {
        auto* s = static_cast<State*>(user);
        return phase == SHARPI_PHASE_COMPACT && ++s->calls == s->at ? 1 : 0;
      };
      sharpi_error e = SHARPI_ERROR_INIT;
      EXPECT_EQ(try_compact(chat, p, &e), SHARPI_E_CANCELLED);
      EXPECT_TRUE(saved(chat) == before);
      calls += state.calls;
    }
  }
  EXPECT_EQ(calls, 9);
  for (const int32_t t : file_->tokens(5, 3)) {
    chat.decode(t);
    twin.decode(t);
    ASSERT_TRUE(same_bits(chat.logits(), twin.logits()));
  }
}

TEST_F(CompactFailure, AnotherCallMeanwhileIsBusyAndChangesNothing) {
  use(test::tiny_qwen3());
  const Chat chat = read(200), twin = read(200);
  struct State {
    const Chat* chat;
    std::vector<std::string> texts;
  } state{&chat, {}};
  sharpi_compact_params p = request();
  p.user_data = &state;
  p.progress = [](void* user, uint32_t, uint64_t, uint64_t) -> int32_t {
    auto* s = static_cast<State*>(user);
    sharpi_error e = SHARPI_ERROR_INIT;
    const sharpi_compact_params other = request(SHARPI_POLICY_GLOBAL, 20);
    EXPECT_EQ(try_compact(*s->chat, other, &e), SHARPI_E_BUSY);
    s->texts.push_back(e.text);
    EXPECT_EQ(sharpi_session_decode(s->chat->get(), 1, &e), SHARPI_E_BUSY);
    return 0;
  };
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(try_compact(chat, p, &e), SHARPI_OK) << text_of(e);
  ASSERT_FALSE(state.texts.empty());
  EXPECT_EQ(state.texts[0], "another call is using the session");
  ASSERT_EQ(try_compact(twin, request(), &e), SHARPI_OK) << text_of(e);
  EXPECT_TRUE(saved(chat) == saved(twin));
}

struct Bad {
  const char* name;
  std::function<void(sharpi_compact_params*)> edit;
  sharpi_status status;
  const char* says;
};

std::vector<Bad> bad_requests() {
  using P = sharpi_compact_params*;
  static const std::vector<uint32_t> unsorted{3, 2}, twice{5, 5}, outside{1, 200}, fine{1, 2};
  static const std::vector<int32_t> ids{1, 2, 3}, wrong_id{1, -1}, large_id{1, 1 << 30};
  static const std::vector<int32_t> overlong(33, 1), beyond(153, 1), endless(70000, 1);
  const auto keep = [](const std::vector<uint32_t>& rows) {
    return [&rows](P p) {
      p->policy = SHARPI_POLICY_KEEP;
      p->budget = SHARPI_UNSET;
      p->recency = SHARPI_UNSET;
      p->keep = rows.data();
      p->n_keep = static_cast<uint32_t>(rows.size());
    };
  };
  const auto probe = [](const std::vector<int32_t>& tokens) {
    return [&tokens](P p) {
      p->probe = tokens.data();
      p->n_probe = static_cast<uint32_t>(tokens.size());
    };
  };
  const sharpi_status invalid = SHARPI_E_INVALID_ARGUMENT, state = SHARPI_E_STATE;
  const uint32_t minus_one = 0xFFFFFFFFu, minus_five = 0xFFFFFFFBu;
  return {
      {"budget 0", [](P p) { p->budget = 0; }, invalid, "budget"},
      {"budget unset", [=](P p) { p->budget = minus_one; }, invalid, "budget is unset"},
      {"budget -5", [=](P p) { p->budget = minus_five; }, invalid, "4294967291"},
      {"window 0", [](P p) { p->window = 0; }, invalid, "window"},
      {"window > captured", [](P p) { p->window = 17; }, invalid, "captures 16"},
      {"window -5", [=](P p) { p->window = minus_five; }, invalid, "window"},
      {"recency > budget", [](P p) { p->recency = 51; }, invalid, "recency"},
      {"recency -2", [=](P p) { p->recency = minus_one - 1; }, invalid, "4294967294"},
      {"sinks > budget", [](P p) { p->sinks = 51; }, invalid, "sinks"},
      {"sinks + recency > budget", [](P p) { p->sinks = 43; }, invalid, "recency 8 and sinks 43"},
      {"headroom -1", [=](P p) { p->headroom = minus_one; }, invalid, "headroom"},
      {"even kernel", [](P p) { p->pool_kernel = 8; }, invalid, "pool_kernel 8 is even"},
      {"kernel 0", [](P p) { p->pool_kernel = 0; }, invalid, "pool_kernel"},
      {"kernel 4001", [](P p) { p->pool_kernel = 4001; }, invalid, "4001"},
      {"span -2", [=](P p) { p->span = minus_one - 1; }, invalid, "span"},
      {"policy 10", [](P p) { p->policy = 10; }, invalid, "policy"},
      {"scores that nobody captured", [](P p) { p->policy = SHARPI_POLICY_REPLAY; },
       SHARPI_E_UNSUPPORTED, "which this session does not capture: replay is 0"},
      {"layer budget 4", [](P p) { p->layer_budget = 4; }, invalid, "layer_budget"},
      {"no rows", [](P p) { p->policy = SHARPI_POLICY_KEEP; }, invalid, "n_keep is 0"},
      {"rows without KEEP", [=](P p) { keep(fine)(p), p->policy = SHARPI_POLICY_SPAN; }, invalid,
       "n_keep is 2 with policy 5"},
      {"null rows", [=](P p) { keep(fine)(p), p->keep = nullptr; }, invalid, "keep is null"},
      {"unsorted rows", keep(unsorted), invalid, "keep[1] is 2 after 3; the rows must ascend"},
      {"a row twice", keep(twice), invalid, "keep[1] is 5 after 5; the rows must ascend"},
      {"a row outside", keep(outside), invalid,
       "keep[1] is slot 200, but the session has 150 rows"},
      {"null probe", [](P p) { p->n_probe = 3; }, invalid, "probe"},
      {"negative id", probe(wrong_id), invalid, "token 1 is -1"},
      {"large id", probe(large_id), invalid, "token 1 is 1073741824"},
      {"no room for several chunks", probe(overlong), state, "33 tokens cannot be observed"},
      {"probe > context", probe(beyond), invalid, "153 tokens, which is more than the context of"},
      {"endless probe", probe(endless), invalid, "70000"},
      {"no room for the probe", nullptr, state, "cannot be observed"},
  };
}

TEST_F(CompactFailure, EveryBadRequestHasItsOwnSentence) {
  use(test::tiny_qwen3(), 16, 152);
  Chat chat = read(150);
  const std::vector<char> before = saved(chat);
  std::set<std::string> texts;
  const auto bad = bad_requests();
  const std::array<int32_t, 3> three{1, 2, 3};
  for (const Bad& b : bad) {
    sharpi_compact_params p = request();
    if (b.edit) {
      b.edit(&p);
    } else {  // two slots are free
      p.probe = three.data();
      p.n_probe = 3;
    }
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(try_compact(chat, p, &e), b.status) << b.name << ": " << e.text;
    EXPECT_NE(std::string(e.text).find(b.says), std::string::npos) << b.name << ": " << e.text;
    EXPECT_TRUE(texts.insert(e.text).second) << b.name << ": " << e.text << " was said before";
    ASSERT_TRUE(saved(chat) == before) << b.name;
  }
  const sharpi_compact_params p =
      request(SHARPI_POLICY_AUTO, 5000);  // more than there is: identity
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(try_compact(chat, p, &e), SHARPI_OK) << text_of(e);
  EXPECT_TRUE(saved(chat) == before);
  EXPECT_EQ(chat.info().is_compacted, 0u);
}

TEST_F(CompactFailure, WhatIsMissingIsNamed) {
  use(test::tiny_qwen3(), 0);
  sharpi_error e = SHARPI_ERROR_INIT;
  const Chat empty(loaded_.model.get());
  EXPECT_EQ(try_compact(empty, request(), &e), SHARPI_E_STATE);
  EXPECT_STREQ(e.text, "the session is empty");
  const Chat blind = read(100);
  EXPECT_EQ(try_compact(blind, request(), &e), SHARPI_E_STATE);
  EXPECT_NE(std::string(e.text).find("captures no queries"), std::string::npos) << e.text;
  use(test::tiny_qwen3(), 16);
  const Chat brief = read(10);
  sharpi_compact_params p = request(SHARPI_POLICY_SPAN, 8);
  p.window = 16;  // longer than the session
  EXPECT_EQ(try_compact(brief, p, &e), SHARPI_E_STATE);
  EXPECT_NE(std::string(e.text).find("only 10 queries"), std::string::npos) << e.text;
  EXPECT_EQ(brief.info().n_slots_max, 10u);
  p.window = SHARPI_UNSET;  // all there are
  EXPECT_EQ(try_compact(brief, p, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(brief.info().n_slots_max, 8u);
}

TEST_F(CompactFailure, ASessionsProbeLongerThanAChunkIsRefused) {
  use(test::tiny_qwen3(), 16);
  const std::vector<int32_t> probe(33, 1);
  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  s.n_ctx = 128;
  s.kv_budget = 64;
  s.capture_window = 8;
  s.recency = 8;
  s.probe = probe.data();
  s.n_probe = 33;
  sharpi_session* out = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  constexpr const char* kText = "the probe has 33 tokens, which is more than a chunk of 32";
  EXPECT_EQ(sharpi_session_create(loaded_.model.get(), &s, &out, &e), SHARPI_E_INVALID_ARGUMENT);
  EXPECT_STREQ(e.text, kText);
  EXPECT_EQ(out, nullptr);
  // Neither is it priced, nor planned: its model would be loaded in vain.
  sharpi_plan* plan = nullptr;
  EXPECT_EQ(sharpi_plan_session(loaded_.model.get(), &s, &plan, &e), SHARPI_E_INVALID_ARGUMENT);
  EXPECT_STREQ(e.text, kText);
  EXPECT_EQ(plan, nullptr);
  const auto as_planned = [&](sharpi_plan_params* p, sharpi_session_params* own) {
    p->n_chunk = 32;
    *own = s;
  };
  PlanPtr planned;
  EXPECT_EQ(try_plan(loaded_.context.get(), file_->path(), setup_with(as_planned), &planned, &e),
            SHARPI_E_INVALID_ARGUMENT);
  EXPECT_STREQ(e.text, kText);
  s.n_probe = 32;  // a whole chunk
  const Loaded whole = load(file_->path(), setup_with(as_planned));
  const Chat chat(whole.model.get());
}

}  // namespace
}  // namespace sharpi::testing
