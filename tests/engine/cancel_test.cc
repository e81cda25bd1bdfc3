// SPDX-License-Identifier: MIT
// Calls that are stopped, and calls that run beside each other: what was committed is whole chunks,
// the rerun gives the same bits, and sessions of one model do not touch each other.
#include <atomic>
#include <cstring>
#include <thread>

#include "engine_case.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kChunk = 16, kPrompt = 150;

Edit chunked(uint32_t max_concurrent = 1) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = kChunk;
    p->max_concurrent = max_concurrent;
    s->n_ctx = 256;
    s->rewind = 8;
  };
}

struct StopAt {
  uint64_t done_at_least;
  uint32_t calls = 0;
};
int32_t stop_at(void* user, uint32_t phase, uint64_t done, uint64_t total) {
  auto* s = static_cast<StopAt*>(user);
  ++s->calls;
  EXPECT_EQ(phase, SHARPI_PHASE_PREFILL);
  EXPECT_LE(done, total);
  return done >= s->done_at_least ? 1 : 0;
}

sharpi_status prefill(sharpi_session* s, const std::vector<int32_t>& tokens, size_t from,
                      sharpi_progress_fn fn, void* user, uint32_t* committed) {
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  p.progress = fn;
  p.user_data = user;
  sharpi_error e = SHARPI_ERROR_INIT;
  return sharpi_session_prefill(s, tokens.data() + from,
                                static_cast<uint32_t>(tokens.size() - from), &p, committed, &e);
}

class Cancel : public ::testing::TestWithParam<test::ModelRecipe> {
 protected:
  void SetUp() override {
    file_.emplace(GetParam());
    loaded_ = load(file_->path(), setup_with(chunked()));
    ASSERT_TRUE(loaded_.model);
    tokens_ = file_->tokens(kPrompt);
  }
  Logits uncut() const {
    Chat chat(loaded_.model.get());
    chat.prefill(tokens_);
    return chat.logits();
  }
  std::optional<MadeModel> file_;
  Loaded loaded_;
  std::vector<int32_t> tokens_;
};

TEST_P(Cancel, FromTheProgressCallbackAfterEveryChunk) {
  const Logits want = uncut();
  for (uint32_t chunk = 1; chunk * kChunk < kPrompt; ++chunk) {
    Chat chat(loaded_.model.get());
    StopAt stop{chunk * kChunk};
    uint32_t committed = 0;
    ASSERT_EQ(prefill(chat.get(), tokens_, 0, stop_at, &stop, &committed), SHARPI_E_CANCELLED);
    ASSERT_EQ(committed, chunk * kChunk);
    EXPECT_GE(stop.calls, chunk);
    ASSERT_EQ(chat.info().n_tokens, committed);
    EXPECT_EQ(chat.info().n_logit_rows, 0u);
    chat.prefill(slice(tokens_, committed, kPrompt));
    EXPECT_TRUE(same_bits(chat.logits(), want)) << "cut after " << committed;
  }
}

/// A prompt tells of every layer, so that a host hears of it before a chunk is read, and can stop
/// it there.
TEST_P(Cancel, FromTheProgressCallbackWithinTheFirstChunk) {
  Chat chat(loaded_.model.get());
  struct First {
    uint64_t done = 0, last = 0;
    bool stop = true;
  } first;
  const sharpi_progress_fn hear = [](void* user, uint32_t, uint64_t done, uint64_t) -> int32_t {
    auto* f = static_cast<First*>(user);
    if (f->done == 0) f->done = done;
    EXPECT_GE(done, f->last) << "progress goes on only";
    f->last = done;
    return f->stop ? 1 : 0;
  };
  uint32_t committed = 99;
  EXPECT_EQ(prefill(chat.get(), tokens_, 0, hear, &first, &committed), SHARPI_E_CANCELLED);
  EXPECT_GT(first.done, 0u);
  EXPECT_LT(first.done, kChunk);
  const bool finishes = loaded_.info.has_window != 0;  // its rings cannot be taken back
  EXPECT_EQ(committed, finishes ? kChunk : 0u);
  first = {0, 0, false};
  const std::vector<int32_t> rest = slice(tokens_, committed, kPrompt);
  ASSERT_EQ(prefill(chat.get(), rest, 0, hear, &first, &committed), SHARPI_OK);
  EXPECT_EQ(first.last, rest.size());
  EXPECT_TRUE(same_bits(chat.logits(), uncut()));
}

TEST_P(Cancel, SmallerChunksOfACallLoseLess) {
  Chat chat(loaded_.model.get());
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  p.n_chunk = 4;
  StopAt stop{8};
  p.progress = stop_at;
  p.user_data = &stop;
  uint32_t committed = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_prefill(chat.get(), tokens_.data(), kPrompt, &p, &committed, &e),
            SHARPI_E_CANCELLED);
  EXPECT_EQ(committed, 8u);
  p.n_chunk = kChunk + 1;
  EXPECT_EQ(sharpi_session_prefill(chat.get(), tokens_.data(), kPrompt, &p, &committed, &e),
            SHARPI_E_INVALID_ARGUMENT);
  EXPECT_STREQ(e.text, "n_chunk is 17, but the plan's n_chunk is 16");
}

TEST_P(Cancel, TheLastChunkIsNoLongerCancelled) {
  Chat chat(loaded_.model.get());
  StopAt stop{kPrompt};
  uint32_t committed = 0;
  EXPECT_EQ(prefill(chat.get(), tokens_, 0, stop_at, &stop, &committed), SHARPI_OK);
  EXPECT_EQ(committed, kPrompt);
  EXPECT_TRUE(same_bits(chat.logits(), uncut()));
}

struct CancelInside {
  sharpi_session* session;
  uint64_t at;
};
int32_t cancel_inside(void* user, uint32_t, uint64_t done, uint64_t) {
  const auto* c = static_cast<CancelInside*>(user);
  if (done == c->at) sharpi_session_cancel(c->session);
  return 0;
}

TEST_P(Cancel, TheCallStopsBeforeTheNextChunk) {
  const Logits want = uncut();
  Chat chat(loaded_.model.get());
  CancelInside c{chat.get(), 3 * kChunk};
  uint32_t committed = 0;
  ASSERT_EQ(prefill(chat.get(), tokens_, 0, cancel_inside, &c, &committed), SHARPI_E_CANCELLED);
  ASSERT_EQ(committed, 3 * kChunk);
  chat.prefill(slice(tokens_, committed, kPrompt));
  EXPECT_TRUE(same_bits(chat.logits(), want));
}

/// What a call that failed must leave as it was.
struct Before {
  explicit Before(const Chat& chat)
      : blob(saved(chat)), lengths(reachable(chat)), info(chat.info()) {}
  std::vector<char> blob;  // rows, recurrent state, captured queries, logits, checkpoints, tokens
  std::vector<uint32_t> lengths;
  sharpi_session_summary info;
};
void expect_as_before(const Chat& chat, const Before& b, const std::string& what) {
  EXPECT_TRUE(saved(chat) == b.blob) << what << ": the saved session differs";
  EXPECT_EQ(reachable(chat), b.lengths) << what;
  const sharpi_session_summary now = chat.info();
  EXPECT_EQ(std::memcmp(&now, &b.info, sizeof now), 0) << what << ": the summary differs";
}

TEST_P(Cancel, WhenNothingRunsTheNextCallAnswersItOnceAndChangesNothing) {
  Chat chat(loaded_.model.get());
  chat.prefill(tokens_);
  sharpi_session* s = chat.get();
  const int32_t token = 3;
  int32_t out = 0;
  uint32_t n = 0;
  sharpi_compact_params c;
  sharpi_compact_params_init(&c, sizeof c);
  c.budget = 100;
  c.n_probe = 1;
  c.probe = &token;
  const std::vector<std::pair<const char*, std::function<sharpi_status(sharpi_error*)>>> calls{
      {"prefill", [&](auto* e) { return sharpi_session_prefill(s, &token, 1, nullptr, &n, e); }},
      {"decode", [&](auto* e) { return sharpi_session_decode(s, token, e); }},
      {"batch", [&](auto* e) { return sharpi_decode_batch(&s, &token, 1, e); }},
      {"step", [&](auto* e) { return sharpi_session_step(s, nullptr, &out, 1, &n, e); }},
      {"compact", [&](auto* e) { return sharpi_session_compact(s, &c, nullptr, e); }}};
  for (const auto& [name, call] : calls) {
    const Before before(chat);
    sharpi_session_cancel(s);
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(call(&e), SHARPI_E_CANCELLED) << name;
    expect_as_before(chat, before, name);
    chat.decode(5);  // the cancel is over
    sharpi_session_cancel(s);
    sharpi_session_resume(s);
    chat.decode(5);
  }
}

TEST_P(Cancel, ABatchSaysWhichSessionAndForgetsNoOther) {
  Chat a(loaded_.model.get()), b(loaded_.model.get());
  a.prefill(tokens_);
  b.prefill(tokens_);
  const Before of_a(a), of_b(b);
  sharpi_session* both[] = {a.get(), b.get()};
  const int32_t tokens[] = {1, 2};
  sharpi_session_cancel(a.get());
  sharpi_session_cancel(b.get());
  for (int32_t i = 0; i < 2; ++i) {
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_decode_batch(both, tokens, 2, &e), SHARPI_E_CANCELLED);
    EXPECT_EQ(e.native_code, i);
  }
  expect_as_before(a, of_a, "the first");
  expect_as_before(b, of_b, "the second");
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_decode_batch(both, tokens, 2, &e), SHARPI_OK) << text_of(e);
}

TEST_P(Cancel, StopsAGenerationBetweenOrWithinSteps) {
  for (uint32_t round = 0; round < 4; ++round) {
    Chat chat(loaded_.model.get());
    chat.prefill(slice(tokens_, 0, 20));
    std::atomic<uint32_t> steps{0};
    std::atomic<bool> sent{false};
    std::thread other([&] {
      while (steps.load() < 5) std::this_thread::yield();
      sharpi_session_cancel(chat.get());
      sent.store(true);
    });
    sharpi_status status = SHARPI_OK;
    for (uint32_t i = 0; i < 200 && status == SHARPI_OK; ++i) {
      sharpi_error e = SHARPI_ERROR_INIT;
      status = sharpi_session_decode(chat.get(), static_cast<int32_t>(i), &e);
      ++steps;
      while (i > 100 && !sent.load()) std::this_thread::yield();
    }
    other.join();
    EXPECT_EQ(status, SHARPI_E_CANCELLED);
    EXPECT_EQ(chat.info().n_tokens, 20 + steps.load() - 1);
  }
}

/// Calls in a row that committed nothing, behind which another thread lets the next one be: where a
/// chunk takes longer than the time between two cancels, nothing would ever be read.
constexpr uint32_t kPatience = 16;

/// Cancels at any moment: a call that says so left whole chunks, and nothing else.
TEST_P(Cancel, KeepsCapturedQueriesAndTheRowsOfBoundedSessions) {
  for (const uint32_t kv_budget : {0u, 48u}) {
    const Loaded l = load(file_->path(), setup_with([=](auto* p, auto* s) {
                            chunked()(p, s);
                            s->capture_window = 8;
                            s->kv_budget = kv_budget;
                            if (kv_budget != 0) s->recency = 4;
                          }));
    Chat chat(l.model.get()), twin(l.model.get());
    std::atomic<bool> done{false};
    std::atomic<uint32_t> in_vain{0};
    std::thread other([&] {
      for (uint32_t i = 1; !done.load(); ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(37 * (i % 40)));
        if (in_vain.load() < kPatience) sharpi_session_cancel(chat.get());
      }
    });
    for (uint32_t at = 0; at < kPrompt;) {
      const Before before(chat);
      uint32_t committed = 0;
      const auto part = slice(tokens_, 0, std::min(kPrompt, at + 40));
      const sharpi_status s = prefill(chat.get(), part, at, nullptr, nullptr, &committed);
      ASSERT_TRUE(s == SHARPI_OK || s == SHARPI_E_CANCELLED) << s;
      if (s != SHARPI_OK && committed == 0) expect_as_before(chat, before, "cancelled");
      if (committed == 0) {
        ++in_vain;
        continue;
      }
      in_vain.store(0);
      at += committed;
      if (kv_budget == 0) {  // where a prompt is cut changes what a bounded session keeps
        twin.prefill(slice(tokens_, at - committed, at));
        if (s == SHARPI_OK) {
          EXPECT_TRUE(saved(chat) == saved(twin)) << "after " << at;
        } else {  // but for the logits of the last row
          EXPECT_EQ(saved(chat).size() + chat.n_vocab() * sizeof(float), saved(twin).size());
        }
      }
    }
    done.store(true);
    other.join();
  }
}

TEST_P(Cancel, FromAnotherThreadAtAnyMoment) {
  const Logits want = uncut();
  uint32_t n_cancelled = 0;
  for (uint32_t round = 0; round < 12; ++round) {
    Chat chat(loaded_.model.get());
    std::atomic<bool> done{false};
    std::atomic<uint32_t> in_vain{0};
    std::thread other([&] {
      for (uint32_t i = 0; !done.load(); ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(150 * (round + i % 5)));
        if (in_vain.load() < kPatience) sharpi_session_cancel(chat.get());
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
    uint32_t at = 0;
    for (uint32_t tries = 0; at < kPrompt && tries < 4000; ++tries) {
      uint32_t committed = 0;
      const sharpi_status s = prefill(chat.get(), tokens_, at, nullptr, nullptr, &committed);
      at += committed;
      in_vain.store(committed != 0 ? 0 : in_vain.load() + 1);
      if (s == SHARPI_OK) break;
      EXPECT_EQ(s, SHARPI_E_CANCELLED);
      EXPECT_EQ(committed % kChunk, 0u);
      EXPECT_EQ(chat.info().n_tokens, at);
      ++n_cancelled;
    }
    done.store(true);
    other.join();
    ASSERT_EQ(at, kPrompt);
    ASSERT_TRUE(same_bits(chat.logits(), want)) << "round " << round;
  }
  RecordProperty("cancelled", static_cast<int>(n_cancelled));
}

int32_t refuse_load(void* user, uint32_t phase, uint64_t done, uint64_t total) {
  EXPECT_EQ(phase, SHARPI_PHASE_LOAD);
  EXPECT_LE(done, total);
  ++*static_cast<uint32_t*>(user);
  return 1;
}

TEST_P(Cancel, ALoadIsCancelledFromItsProgress) {
  uint32_t calls = 0;
  sharpi_model* model = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_model_load(loaded_.plan.get(), refuse_load, &calls, &model, &e),
            SHARPI_E_CANCELLED);
  EXPECT_EQ(model, nullptr);
  EXPECT_EQ(calls, 1u);
  ASSERT_EQ(sharpi_model_load(loaded_.plan.get(), nullptr, nullptr, &model, &e), SHARPI_OK)
      << text_of(e);
  const ModelPtr owner(model);
  Chat chat(model);
  chat.prefill(tokens_);
  EXPECT_TRUE(same_bits(chat.logits(), uncut()));
}

/// A prompt, decode steps, a cut, and more of it: what one conversation computes.
std::vector<Logits> conversation(const Loaded& l, const std::vector<int32_t>& tokens) {
  Chat chat(l.model.get());
  std::vector<Logits> out;
  chat.prefill(slice(tokens, 0, 100));
  out.push_back(chat.logits());
  for (size_t i = 100; i < 112; ++i) {
    chat.decode(tokens[i]);
    out.push_back(chat.logits());
  }
  chat.prefill(slice(tokens, 112, kPrompt));
  out.push_back(chat.logits());
  return out;
}

/// It would wait for what the call that it is called from holds. Before, it did, for ever.
TEST_P(Cancel, ACallbackThatComputesIsRefused) {
  const Logits want = uncut();
  const Loaded bounded = load(file_->path(), setup_with([](auto* p, auto* s) {
                                chunked()(p, s);
                                s->capture_window = 6, s->recency = 4;
                                s->kv_budget = 24;  // the next token has to make room
                              }));
  Chat chat(loaded_.model.get()), other(bounded.model.get());
  other.prefill(slice(tokens_, 0, 40));
  const std::vector<char> before = saved(other);
  const Logits logits = other.logits();
  struct Inner {
    sharpi_session* session;
    uint32_t n_calls = 0;
  } inner{other.get()};
  const auto compute = [](void* user, uint32_t, uint64_t done, uint64_t total) -> int32_t {
    auto* in = static_cast<Inner*>(user);
    if (done == total || in->n_calls != 0) return 0;  // the last one may come behind the pass
    ++in->n_calls;
    int32_t token = 3;
    uint32_t n = 0;
    sharpi_batch_read read{};
    read.session = in->session, read.tokens = &token, read.n = 1;
    sharpi_compact_params p;
    sharpi_compact_params_init(&p, sizeof p);
    p.budget = 16;
    sharpi_error e = SHARPI_ERROR_INIT;
    const auto refused = [&](sharpi_status status) {
      EXPECT_EQ(status, SHARPI_E_BUSY);
      EXPECT_STREQ(e.text, "a callback of a call that computes cannot compute itself");
    };
    refused(sharpi_session_decode(in->session, token, &e));
    refused(sharpi_session_step(in->session, nullptr, &token, 1, &n, &e));
    refused(sharpi_verify_batch(&read, sizeof read, 1, &e));
    refused(sharpi_decode_batch(&in->session, &token, 1, &e));
    refused(sharpi_session_prefill(in->session, &token, 1, nullptr, nullptr, &e));
    refused(sharpi_session_compact(in->session, &p, nullptr, &e));
    return 0;
  };
  uint32_t committed = 0;
  ASSERT_EQ(prefill(chat.get(), tokens_, 0, compute, &inner, &committed), SHARPI_OK);
  EXPECT_EQ(inner.n_calls, 1u);
  EXPECT_TRUE(same_bits(chat.logits(), want));
  EXPECT_TRUE(saved(other) == before);
  EXPECT_TRUE(same_bits(other.logits(), logits));
}

TEST_P(Cancel, SessionsOfOneModelRunBesideEachOtherAndKeepTheirBits) {
  for (const uint32_t max_concurrent : {1u, 2u}) {
    const Loaded l = load(file_->path(), setup_with(chunked(max_concurrent)));
    const auto others = file_->tokens(kPrompt, 9);
    const std::vector<Logits> want = conversation(l, tokens_), want_other = conversation(l, others);
    std::atomic<bool> stop{false};
    std::thread noise([&] {
      do {
        expect_same_rows(conversation(l, others), want_other, "the other");
      } while (!stop.load());
    });
    for (int round = 0; round < 3; ++round)
      expect_same_rows(conversation(l, tokens_), want, "this one");
    stop.store(true);
    noise.join();
  }
}

TEST_P(Cancel, SavesOfOneSessionMayRunAtOnce) {
  Chat chat(loaded_.model.get());
  chat.prefill(tokens_);
  const std::vector<char> want = saved(chat);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) EXPECT_EQ(saved(chat), want);
    });
  }
  for (std::thread& t : threads) t.join();
}

std::string recipe_name(const ::testing::TestParamInfo<test::ModelRecipe>& info) {
  return info.param.arch;
}

INSTANTIATE_TEST_SUITE_P(Engine, Cancel,
                         ::testing::ValuesIn(test::with_newer_kinds(
                             {test::tiny_qwen3(), test::tiny_gemma4kv(), test::tiny_qwen35(),
                              test::tiny_llama(), test::tiny_gemma3()})),
                         recipe_name);

}  // namespace
}  // namespace sharpi::testing
