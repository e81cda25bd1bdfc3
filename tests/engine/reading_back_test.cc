// SPDX-License-Identifier: MIT
// What a host reads back: tokens, blobs in pieces, what a file is before anything is loaded, and a
// session's summary while a call on it runs.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>

#include "engine_case.h"

namespace sharpi::testing {
namespace {

Edit small() {
  return [](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 16;
    p->max_logit_rows = 16;
    s->n_ctx = 160;
    s->capture_window = 8;
  };
}

class ReadingBack : public ::testing::Test {
 protected:
  void SetUp() override {
    file_.emplace(test::tiny_qwen35());
    loaded_ = load(file_->path(), setup_with(small()));
    ASSERT_TRUE(loaded_.model);
  }
  std::optional<MadeModel> file_;
  Loaded loaded_;
};

std::vector<int32_t> tokens_of(const Chat& chat) {
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status asked = sharpi_session_tokens(chat.get(), nullptr, 0, &n, &e);
  EXPECT_EQ(asked, n == 0 ? SHARPI_OK : SHARPI_E_BUFFER_TOO_SMALL);
  std::vector<int32_t> out(n);
  EXPECT_EQ(sharpi_session_tokens(chat.get(), out.data(), n, &n, &e), SHARPI_OK) << text_of(e);
  return out;
}

/// Eight, or a chunk where that is less: a host that sets n_chunk alone is not refused.
TEST_F(ReadingBack, TheDefaultOfLogitRowsIsNoMoreThanAChunk) {
  for (const uint32_t n_chunk : {1u, 4u, 8u, 64u}) {
    const Loaded l = load(file_->path(), setup_with([=](sharpi_plan_params* p, auto* s) {
                            p->n_chunk = n_chunk;
                            s->n_ctx = 128;
                          }));
    EXPECT_EQ(l.plan_info.max_logit_rows, std::min(n_chunk, 8u));
    EXPECT_TRUE(l.model);
  }
}

/// The header lets several calls read a session at once. On a GPU rows leave through one buffer,
/// and eight threads got pieces of each other's.
TEST_F(ReadingBack, SeveralThreadsAtOnceReadWhatOneReads) {
  constexpr uint32_t kRows = 16, kThreads = 8;
  Chat chat(loaded_.model.get());
  chat.prefill(file_->tokens(32).data(), 32, kRows);
  std::vector<std::vector<float>> want;
  for (uint32_t r = 0; r < kRows; ++r) want.push_back(chat.logits(r));
  const std::vector<char> blob = saved(chat);
  std::atomic<uint32_t> differing = 0;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 40; ++i) {
        const uint32_t r = (t + i) % kRows;
        if (chat.logits(r) != want[r]) ++differing;
      }
      if (saved(chat) != blob) ++differing;
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(differing, 0u);
}

TEST_F(ReadingBack, TokensAreTheLogicalHistory) {
  Chat chat(loaded_.model.get());
  EXPECT_TRUE(tokens_of(chat).empty());
  std::vector<int32_t> want = file_->tokens(60);
  chat.prefill(want);
  chat.decode(7);
  want.push_back(7);
  EXPECT_EQ(tokens_of(chat), want);
  sharpi_compact_params c;
  sharpi_compact_params_init(&c, sizeof c);
  c.budget = 20;
  c.recency = 4;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_compact(chat.get(), &c, nullptr, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(tokens_of(chat), want);
  Chat twin(loaded_.model.get());
  const std::vector<char> blob = saved(chat);
  ASSERT_EQ(sharpi_session_restore(twin.get(), blob.data(), blob.size(), &e), SHARPI_OK);
  EXPECT_EQ(tokens_of(twin), want);
  ASSERT_EQ(sharpi_session_truncate(chat.get(), 0, &e), SHARPI_OK) << text_of(e);
  EXPECT_TRUE(tokens_of(chat).empty());
}

/// A blob that arrives, and leaves, in pieces.
struct Store {
  std::vector<char> bytes;
  uint64_t fail_from = UINT64_MAX;  // bytes given or taken before it refuses
  uint64_t moved = 0, largest = 0;
  static int32_t write(void* user, const void* data, uint64_t n) {
    auto* s = static_cast<Store*>(user);
    if ((s->moved += n) > s->fail_from) return 28;
    s->largest = std::max(s->largest, n);
    const auto* from = static_cast<const char*>(data);
    s->bytes.insert(s->bytes.end(), from, from + n);
    return 0;
  }
  static int32_t read(void* user, uint64_t at, void* out, uint64_t n) {
    auto* s = static_cast<Store*>(user);
    if ((s->moved += n) > s->fail_from || at + n > s->bytes.size()) return 5;
    std::memcpy(out, s->bytes.data() + at, n);
    return 0;
  }
};

/// Sessions that never set a sampler draw differently; what they drew with can be read and given.
TEST_F(ReadingBack, TheSeedOfASessionIsItsOwnUnlessItIsGiven) {
  const auto made = [&] {
    sharpi_session* s = nullptr;
    EXPECT_EQ(sharpi_session_create(loaded_.model.get(), nullptr, &s, nullptr), SHARPI_OK);
    return Chat(SessionPtr(s), loaded_.info.n_vocab);
  };
  const auto draws = [&](const Chat& c) {
    sharpi_sampler_params p;
    sharpi_sampler_params_init(&p, sizeof p);
    p.seed = c.info().seed;
    p.temperature = 5.0f;
    p.top_k = 0, p.top_p = 1.0f, p.min_p = 0.0f;
    EXPECT_EQ(sharpi_session_set_sampler(c.get(), &p, nullptr), SHARPI_OK);
    std::vector<int32_t> out(16);
    for (int32_t& t : out)
      EXPECT_EQ(sharpi_session_sample(c.get(), nullptr, &t, nullptr), SHARPI_OK);
    return out;
  };
  Chat a = made(), b = made();
  EXPECT_NE(a.info().seed, b.info().seed);
  EXPECT_NE(a.info().seed, SHARPI_SEED_RANDOM);
  for (Chat* c : {&a, &b}) c->prefill(file_->tokens(5));
  const std::vector<int32_t> of_a = draws(a);
  EXPECT_NE(of_a, draws(b));
  // A fork and a restored session go on with it.
  sharpi_session* raw = nullptr;
  ASSERT_EQ(sharpi_session_fork(a.get(), &raw, nullptr), SHARPI_OK);
  const Chat twin(SessionPtr(raw), loaded_.info.n_vocab);
  EXPECT_EQ(twin.info().seed, a.info().seed);
  const std::vector<char> blob = saved(a);
  ASSERT_EQ(sharpi_session_restore(b.get(), blob.data(), blob.size(), nullptr), SHARPI_OK);
  EXPECT_EQ(b.info().seed, a.info().seed);
  EXPECT_EQ(draws(b), of_a);
  // Asked for again, it is another one.
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  EXPECT_EQ(p.seed, SHARPI_SEED_RANDOM);
  const uint64_t before = a.info().seed;
  ASSERT_EQ(sharpi_session_set_sampler(a.get(), &p, nullptr), SHARPI_OK);
  EXPECT_NE(a.info().seed, before);
}

TEST_F(ReadingBack, ABlobInPiecesIsTheBlob) {
  Chat chat(loaded_.model.get()), twin(loaded_.model.get());
  chat.prefill(file_->tokens(90), 3);
  Store store;
  uint64_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_save_to(chat.get(), &Store::write, &store, &n, &e), SHARPI_OK)
      << text_of(e);
  EXPECT_EQ(n, store.bytes.size());
  EXPECT_TRUE(store.bytes == saved(chat));
  EXPECT_LE(store.largest, 256u * 1024);
  ASSERT_EQ(sharpi_session_restore_from(twin.get(), &Store::read, &store, &e), SHARPI_OK)
      << text_of(e);
  EXPECT_TRUE(saved(twin) == store.bytes);
}

TEST_F(ReadingBack, CallbacksThatRefuseEndTheCall) {
  Chat chat(loaded_.model.get());
  chat.prefill(file_->tokens(90));
  const std::vector<char> blob = saved(chat);
  Store full;
  full.fail_from = 1000;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_save_to(chat.get(), &Store::write, &full, nullptr, &e), SHARPI_E_IO);
  EXPECT_EQ(e.native_code, 28);
  Chat other(loaded_.model.get());
  other.prefill(file_->tokens(9, 2));
  const std::vector<char> before = saved(other);
  Store broken;
  broken.bytes = blob;
  broken.fail_from = blob.size() / 2;  // while it is checked
  EXPECT_EQ(sharpi_session_restore_from(other.get(), &Store::read, &broken, &e), SHARPI_E_IO);
  EXPECT_EQ(e.native_code, 5);
  EXPECT_TRUE(saved(other) == before);
  broken.moved = 0;
  broken.fail_from = blob.size() * 2 - 1000;  // while it is applied
  EXPECT_EQ(sharpi_session_restore_from(other.get(), &Store::read, &broken, &e), SHARPI_E_IO);
  EXPECT_EQ(other.info().n_tokens, 0u);
  other.decode(3);
  Chat fresh(loaded_.model.get());
  fresh.decode(3);
  EXPECT_TRUE(same_bits(other.logits(), fresh.logits()));
  EXPECT_EQ(sharpi_session_save_to(chat.get(), nullptr, nullptr, nullptr, &e),
            SHARPI_E_INVALID_ARGUMENT);
  EXPECT_EQ(sharpi_session_restore_from(chat.get(), nullptr, nullptr, &e),
            SHARPI_E_INVALID_ARGUMENT);
}

TEST_F(ReadingBack, ASourceThatAnswersDifferentlyTheSecondTimeLeavesAnEmptySession) {
  Chat chat(loaded_.model.get());
  chat.prefill(file_->tokens(90));
  struct Liar {
    Store store;
    static int32_t read(void* user, uint64_t at, void* out, uint64_t n) {
      auto* l = static_cast<Liar*>(user);
      const int32_t said = Store::read(&l->store, at, out, n);
      const bool again = l->store.moved > l->store.bytes.size() * 3 / 2;
      if (again) static_cast<char*>(out)[n - 1] ^= 1;
      return said;
    }
  } liar;
  liar.store.bytes = saved(chat);
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_restore_from(chat.get(), &Liar::read, &liar, &e), SHARPI_E_FORMAT);
  EXPECT_NE(std::string(e.text).find("the second time"), std::string::npos) << e.text;
  EXPECT_EQ(chat.info().n_tokens, 0u);
}

template <class Read>
std::string text_from(Read&& read) {
  char text[4096];
  size_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(read(text, sizeof text, &n, &e), SHARPI_OK) << text_of(e);
  return {text, n};
}

class ReadingBackFixture : public ModelTest {};

TEST_P(ReadingBackFixture, APlanSaysWhatTheLoadedModelSays) {
  const Loaded l = load(path(), setup_with(small()));
  sharpi_model_summary planned{};
  planned.struct_size = sizeof planned;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_plan_model(l.plan.get(), &planned, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(std::memcmp(&planned, &l.info, sizeof planned), 0);
  EXPECT_NE(std::string(planned.tokenizer), "");
  for (uint32_t i = 0;; ++i) {
    char key[256];
    size_t n = 0;
    const sharpi_status got = sharpi_plan_meta_key(l.plan.get(), i, key, sizeof key, &n, &e);
    if (got == SHARPI_E_NOT_FOUND) {
      EXPECT_GT(i, 10u);
      break;
    }
    ASSERT_EQ(got, SHARPI_OK) << text_of(e);
  }
  const auto planned_name = text_from([&](char* out, size_t cap, size_t* n, sharpi_error* err) {
    return sharpi_plan_meta(l.plan.get(), "general.architecture", out, cap, n, err);
  });
  EXPECT_EQ(planned_name, l.info.architecture);
}

TEST_P(ReadingBackFixture, EveryTokenIsFoundByItsText) {
  const Loaded l = load(path(), setup_with(small()));
  sharpi_error e = SHARPI_ERROR_INIT;
  uint32_t found = 0;
  for (int32_t t = 0; t < static_cast<int32_t>(l.info.n_vocab); ++t) {
    char text[512];
    size_t n = 0;
    if (sharpi_token_bytes(l.model.get(), t, text, sizeof text, &n, &e) != SHARPI_OK || n == 0)
      continue;
    int32_t id = -1;
    ASSERT_EQ(sharpi_token_id(l.model.get(), text, n, &id, &e), SHARPI_OK)
        << t << ": " << std::string(text, n) << ": " << e.text;
    char back[512];
    size_t back_n = 0;
    ASSERT_EQ(sharpi_token_bytes(l.model.get(), id, back, sizeof back, &back_n, &e), SHARPI_OK);
    ASSERT_EQ(std::string(back, back_n), std::string(text, n));  // of equal texts, one of them
    found += id == t ? 1 : 0;
  }
  EXPECT_GT(found, l.info.n_vocab / 2);
  int32_t id = -1;
  EXPECT_EQ(sharpi_token_id(l.model.get(), "no token has this text", 22, &id, &e),
            SHARPI_E_NOT_FOUND);
}

INSTANTIATE_TEST_SUITE_P(Engine, ReadingBackFixture,
                         ::testing::Values("tiny-qwen3", "tiny-gemma4kv", "tiny-qwen35"),
                         model_name);

TEST_F(ReadingBack, InfoWorksInACallbackOfTheSessionsOwnCall) {
  Chat chat(loaded_.model.get());
  struct Seen {
    const Chat* chat;
    std::vector<uint32_t> lengths;
    sharpi_status other = SHARPI_OK;
    static int32_t see(void* user, uint32_t, uint64_t done, uint64_t) {
      auto* s = static_cast<Seen*>(user);
      EXPECT_LE(s->chat->info().n_tokens, done);
      s->lengths.push_back(s->chat->info().n_tokens);
      uint32_t n = 0;
      s->other = sharpi_session_tokens(s->chat->get(), nullptr, 0, &n, nullptr);
      return 0;
    }
  } seen{&chat, {}};
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  p.progress = &Seen::see;
  p.user_data = &seen;
  const auto tokens = file_->tokens(40);
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_prefill(chat.get(), tokens.data(), 40, &p, nullptr, &e), SHARPI_OK);
  ASSERT_GE(seen.lengths.size(), 3u);
  EXPECT_EQ(seen.lengths.back(), 40u);
  EXPECT_EQ(seen.other, SHARPI_E_BUSY);  // nothing else does
}

}  // namespace
}  // namespace sharpi::testing
