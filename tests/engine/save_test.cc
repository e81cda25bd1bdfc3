// SPDX-License-Identifier: MIT
// Saving, restoring and forking: the copy continues with the same bits, and whatever is not a whole
// blob of this model and these settings is refused without a trace.
#include <cstddef>

#include "engine_case.h"

namespace sharpi::testing {
namespace {

struct Answer {
  sharpi_status status;
  std::string text;
};
Answer restore(const Chat& chat, const std::vector<char>& blob, size_t len) {
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status s = sharpi_session_restore(chat.get(), blob.data(), len, &e);
  return {s, e.text};
}
Answer restore(const Chat& chat, const std::vector<char>& blob) {
  return restore(chat, blob, blob.size());
}

/// Both read the same: the present logits and those of the next tokens, in bits.
void expect_twins(Chat& a, Chat& b, const std::vector<int32_t>& next) {
  ASSERT_EQ(a.info().n_tokens, b.info().n_tokens);
  ASSERT_EQ(a.info().n_logit_rows, b.info().n_logit_rows);
  ASSERT_TRUE(same_bits(a.logits(), b.logits()));
  EXPECT_EQ(reachable(a), reachable(b));
  for (const int32_t t : next) {
    a.decode(t);
    b.decode(t);
    ASSERT_TRUE(same_bits(a.logits(), b.logits())) << "after " << a.info().n_tokens;
  }
}

Edit with(sharpi_kv_dtype k, sharpi_kv_dtype v, uint32_t n_checkpoints = 2) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 128;
    s->n_ctx = 640;
    s->k_dtype = k;
    s->v_dtype = v;
    s->n_checkpoints = n_checkpoints;
  };
}

class SaveFixture : public ModelTest {
 protected:
  /// Two codecs, where a row is not key and value in one.
  static Edit with_two(sharpi_kv_dtype k, sharpi_kv_dtype v) {
    return with(stores_one_row(GetParam()) ? v : k, v);
  }
};

TEST_P(SaveFixture, ARestoredSessionContinuesWithTheSameBits) {
  const Loaded l = load(path(), setup_with(with_two(SHARPI_KV_BF16, SHARPI_KV_Q8_0)));
  for (const size_t n : {1u, 40u, 500u}) {  // 500 wraps the rings of windowed models
    Chat from(l.model.get()), to(l.model.get());
    from.prefill(tokens(n));
    to.prefill(tokens(630));  // must not shine through
    ASSERT_EQ(restore(to, saved(from)).status, SHARPI_OK);
    EXPECT_TRUE(saved(to) == saved(from));
    expect_twins(from, to, tokens(8));
  }
}

class SaveHybrid : public ModelTest {};

TEST_P(SaveHybrid, ARestoredSessionKeepsItsCheckpoints) {
  const Loaded l = load(path(), setup_with(with(SHARPI_KV_F32, SHARPI_KV_F32)));
  if (l.info.is_hybrid == 0) return;
  const auto prompt = tokens(90);
  Chat from(l.model.get()), to(l.model.get());
  sharpi_error e = SHARPI_ERROR_INIT;
  from.prefill(prompt.data(), 30);
  ASSERT_EQ(sharpi_session_checkpoint(from.get(), 1, &e), SHARPI_OK) << text_of(e);
  from.prefill(prompt.data() + 30, 60);
  ASSERT_EQ(restore(to, saved(from)).status, SHARPI_OK);
  EXPECT_EQ(reachable(to), (std::vector<uint32_t>{30, 90}));
  for (Chat* c : {&from, &to}) {
    ASSERT_EQ(sharpi_session_truncate(c->get(), 30, &e), SHARPI_OK) << text_of(e);
    c->decode(prompt[31]);
  }
  expect_twins(from, to, tokens(4));
}

TEST_P(SaveFixture, AForkContinuesWithTheSameBitsAndOnItsOwn) {
  const Loaded l = load(path(), setup_with(with_two(SHARPI_KV_F32, SHARPI_KV_BF16)));
  Chat from(l.model.get());
  from.prefill(tokens(400));
  Chat a = from.fork(), b = from.fork();
  const Logits before = from.logits();
  a.prefill(tokens(100));
  EXPECT_TRUE(same_bits(from.logits(), before));
  expect_twins(from, b, tokens(8));
}

INSTANTIATE_TEST_SUITE_P(Engine, SaveFixture, ::testing::ValuesIn(all_models()), model_name);
INSTANTIATE_TEST_SUITE_P(Engine, SaveHybrid, ::testing::Values("tiny-qwen35", "tiny-qwen35moe"),
                         model_name);

/// Small models, so that every length of a blob can be tried.
class Save : public ::testing::Test {
 protected:
  void use(test::ModelRecipe recipe, Edit edit = with(SHARPI_KV_F32, SHARPI_KV_F32)) {
    file_.emplace(recipe);
    loaded_ = load(file_->path(), setup_with(std::move(edit)));
    ASSERT_TRUE(loaded_.model);
  }
  Chat read(uint32_t n, uint32_t seed = 1) {
    Chat chat(loaded_.model.get());
    chat.prefill(file_->tokens(n, seed));
    return chat;
  }
  /// The session is bit for bit what `was` (its blob) says, and computes `next` as its twin does.
  void expect_untouched(Chat& chat, Chat& twin) {
    ASSERT_TRUE(saved(chat) == saved(twin));
    expect_twins(chat, twin, {1, 2, 3});
  }
  std::optional<MadeModel> file_;
  Loaded loaded_;
};

TEST_F(Save, EveryTruncatedLengthIsRefused) {
  for (const test::ModelRecipe& recipe : {test::tiny_qwen35(), test::tiny_gemma4kv()}) {
    use(recipe);
    Chat chat = read(9, 2), twin = read(9, 2);
    const std::vector<char> blob = saved(read(21));
    const size_t step = std::max<size_t>(1, blob.size() / 1500);
    for (size_t n = 0; n < blob.size(); n += n < 256 ? 1 : step) {
      const Answer a = restore(chat, blob, n);
      ASSERT_EQ(a.status, SHARPI_E_FORMAT) << n << " of " << blob.size() << ": " << a.text;
      ASSERT_FALSE(a.text.empty());
    }
    ASSERT_EQ(restore(chat, blob, blob.size() - 1).status, SHARPI_E_FORMAT);
    expect_untouched(chat, twin);
  }
}

TEST_F(Save, EveryFlippedBitIsRefused) {
  use(test::tiny_qwen35());
  Chat chat = read(9, 2), twin = read(9, 2);
  const std::vector<char> blob = saved(read(21));
  uint64_t x = 12345;
  for (int i = 0; i < 1000; ++i) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    // The first bits are the header's, where every one counts.
    const uint64_t bit = i < 512 ? static_cast<uint64_t>(i) : (x >> 20) % (blob.size() * 8);
    std::vector<char> bad = blob;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const Answer a = restore(chat, bad);
    ASSERT_TRUE(a.status == SHARPI_E_FORMAT || a.status == SHARPI_E_MISMATCH)
        << bit << ": " << a.text;
  }
  expect_untouched(chat, twin);
}

TEST_F(Save, AForeignModelIsRefused) {
  test::ModelRecipe other = test::tiny_qwen3();
  other.seed = 77;
  use(other);
  const std::vector<char> blob = saved(read(21));
  use(test::tiny_qwen3());
  Chat chat = read(9), twin = read(9);
  const Answer a = restore(chat, blob);
  EXPECT_EQ(a.status, SHARPI_E_MISMATCH);
  EXPECT_NE(a.text.find("another model"), std::string::npos) << a.text;
  expect_untouched(chat, twin);
}

TEST_F(Save, AnotherDtypeIsRefusedNamingTheLayer) {
  const MadeModel file(test::tiny_qwen3());
  const Loaded one = load(file.path(), setup_with(with(SHARPI_KV_F32, SHARPI_KV_BF16)));
  const Loaded two = load(file.path(), setup_with(with(SHARPI_KV_F32, SHARPI_KV_F32)));
  Chat from(one.model.get()), to(two.model.get()), twin(two.model.get());
  from.prefill(file.tokens(21));
  to.prefill(file.tokens(9));
  twin.prefill(file.tokens(9));
  const Answer a = restore(to, saved(from));
  EXPECT_EQ(a.status, SHARPI_E_MISMATCH);
  EXPECT_NE(a.text.find("layer 0"), std::string::npos) << a.text;
  expect_untouched(to, twin);
}

TEST_F(Save, TooLittleRoomIsRefused) {
  const MadeModel file(test::tiny_qwen3());
  const Loaded one = load(file.path(), setup_with(with(SHARPI_KV_F32, SHARPI_KV_F32)));
  const Loaded two =
      load(file.path(), setup_with([](sharpi_plan_params*, sharpi_session_params* s) {
             s->n_ctx = 20;
             s->k_dtype = s->v_dtype = SHARPI_KV_F32;
           }));
  Chat from(one.model.get()), to(two.model.get()), twin(two.model.get());
  from.prefill(file.tokens(21));
  to.prefill(file.tokens(9));
  twin.prefill(file.tokens(9));
  const Answer a = restore(to, saved(from));
  EXPECT_EQ(a.status, SHARPI_E_KV_FULL);
  EXPECT_TRUE(a.text.find("21") != std::string::npos && a.text.find("20") != std::string::npos)
      << a.text;
  expect_untouched(to, twin);
}

TEST_F(Save, TooFewCheckpointsAreRefused) {
  const MadeModel file(test::tiny_qwen35());
  const Loaded one = load(file.path(), setup_with(with(SHARPI_KV_F32, SHARPI_KV_F32, 2)));
  const Loaded two = load(file.path(), setup_with(with(SHARPI_KV_F32, SHARPI_KV_F32, 0)));
  Chat from(one.model.get()), to(two.model.get()), twin(two.model.get());
  from.prefill(file.tokens(21));
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_checkpoint(from.get(), 0, &e), SHARPI_OK) << text_of(e);
  to.prefill(file.tokens(9));
  twin.prefill(file.tokens(9));
  EXPECT_EQ(restore(to, saved(from)).status, SHARPI_E_MISMATCH);
  expect_untouched(to, twin);
}

TEST_F(Save, AnEmptySessionCanBeSaved) {
  use(test::tiny_qwen35());
  const Chat empty(loaded_.model.get());
  Chat chat = read(9), fresh(loaded_.model.get());
  ASSERT_EQ(restore(chat, saved(empty)).status, SHARPI_OK);
  EXPECT_EQ(chat.info().n_tokens, 0u);
  chat.decode(4);
  fresh.decode(4);
  EXPECT_TRUE(same_bits(chat.logits(), fresh.logits()));
}

TEST_F(Save, TheSizeIsAskedForAndTooSmallBuffersAreLeftAlone) {
  use(test::tiny_qwen3());
  const Chat chat = read(9);
  const std::vector<char> blob = saved(chat);
  std::vector<char> small(blob.size() - 1, 'x');
  uint64_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_save(chat.get(), small.data(), small.size(), &n, &e),
            SHARPI_E_BUFFER_TOO_SMALL);
  EXPECT_EQ(n, blob.size());
  EXPECT_EQ(small, std::vector<char>(blob.size() - 1, 'x'));
}

/// What compaction keeps, as the session that it leaves behind.
std::vector<char> compacted(const Chat& chat) {
  sharpi_compact_params p;
  sharpi_compact_params_init(&p, sizeof p);
  p.budget = 32;
  p.recency = 8;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_compact(chat.get(), &p, nullptr, &e), SHARPI_OK) << text_of(e);
  return saved(chat);
}

Edit with_window(uint32_t window) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 32;
    s->n_ctx = 256;
    s->capture_window = window;
  };
}

TEST_F(Save, CapturedQueriesComeBackWithARestoreAndAFork) {
  for (const test::ModelRecipe& recipe : test::tiny_recipes()) {
    use(recipe, with_window(16));
    for (const uint32_t n : {9u, 100u}) {
      Chat other = read(n, 2);
      for (int i = 0; i < 3; ++i) other.decode(i);  // decoded queries are in the ring as well
      Chat restored = read(61, 3), twin = other.fork();
      ASSERT_EQ(restore(restored, saved(other)).status, SHARPI_OK) << recipe.arch;
      if (n < 32) continue;
      const std::vector<char> want = compacted(other);
      EXPECT_TRUE(compacted(restored) == want) << recipe.arch;
      EXPECT_TRUE(compacted(twin) == want) << recipe.arch;
      expect_untouched(restored, twin);
    }
  }
}

TEST_F(Save, ANarrowerWindowTakesTheLastQueriesAndNoneIsRefused) {
  use(test::tiny_qwen3(), with_window(16));
  const std::vector<char> wide = saved(read(100, 2));
  const ModelSetup narrow_setup = setup_with(with_window(8)),
                   none_setup = setup_with(with_window(0));
  const Loaded narrow = load(file_->path(), narrow_setup), none = load(file_->path(), none_setup);
  Chat restored(narrow.model.get()), direct(narrow.model.get());
  ASSERT_EQ(restore(restored, wide).status, SHARPI_OK);
  direct.prefill(file_->tokens(100, 2));
  EXPECT_TRUE(compacted(restored) == compacted(direct));
  Chat without(none.model.get());
  ASSERT_EQ(restore(without, wide).status, SHARPI_OK);
  sharpi_compact_params p;
  sharpi_compact_params_init(&p, sizeof p);
  p.budget = 64;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_compact(without.get(), &p, nullptr, &e), SHARPI_E_STATE);
  EXPECT_NE(std::string(e.text).find("captures no queries"), std::string::npos) << e.text;
  // And the other way round: what was saved without queries cannot be scored with stale ones.
  Chat from(none.model.get()), to(narrow.model.get());
  from.prefill(file_->tokens(100, 2));
  to.prefill(file_->tokens(60, 3));
  ASSERT_EQ(restore(to, saved(from)).status, SHARPI_OK);
  EXPECT_EQ(sharpi_session_compact(to.get(), &p, nullptr, &e), SHARPI_E_STATE);
  EXPECT_NE(std::string(e.text).find("there are no captured queries"), std::string::npos) << e.text;
  to.decode(1);
  EXPECT_EQ(sharpi_session_compact(to.get(), &p, nullptr, &e), SHARPI_OK) << text_of(e);
}

}  // namespace
}  // namespace sharpi::testing
