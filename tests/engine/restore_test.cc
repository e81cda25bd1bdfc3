// SPDX-License-Identifier: MIT
// Blobs that somebody forged: the checksum is right, one field is not. Every such blob is refused
// with the session untouched, or says the same in other words and leaves a session that works. And
// restoring is atomic: no allocation that fails leaves half a session.
#include <cmath>
#include <cstddef>
#include <new>

#include "base/hash.h"
#include "engine/session_blob.h"
#include "engine_case.h"
#include "support/watched_new.h"

namespace sharpi::testing {
namespace {

using Blob = std::vector<char>;

struct Answer {
  sharpi_status status;
  std::string text;
};
Answer restore(const Chat& chat, const Blob& blob) {
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status s = sharpi_session_restore(chat.get(), blob.data(), blob.size(), &e);
  return {s, e.text};
}

template <class T>
T get(const Blob& blob, size_t at) {
  T value;
  std::memcpy(&value, blob.data() + at, sizeof value);
  return value;
}
template <class T>
void set(Blob* blob, size_t at, T value) {
  std::memcpy(blob->data() + at, &value, sizeof value);
}

/// Length and checksum as they should be: what a forger would do.
void seal(Blob* blob) {
  set(blob, offsetof(BlobHeader, total_bytes), uint64_t{blob->size()});
  set(blob, blob->size() - kBlobSumBytes,
      striped_hash64(blob->data(), blob->size() - kBlobSumBytes));
}

/// Where the head's parts begin.
struct HeadMap {
  size_t sampler = 0, first_checkpoint = 0, body = 0;
  std::vector<size_t> layers, lags;
  /// `n_heads`: of a layer, where rows are by head.
  explicit HeadMap(const Blob& blob, uint32_t n_heads = 0) {
    const auto h = get<BlobHeader>(blob, 0);
    sampler = sizeof(BlobHeader) + h.n_tokens * sizeof(int32_t);
    size_t at = sampler + sizeof(BlobSampler) + get<BlobSampler>(blob, sampler).n_bias * 8ull;
    for (uint32_t l = 0; l < h.n_layers; ++l) {
      layers.push_back(at);
      const auto one = get<BlobLayerHeader>(blob, at);
      at += sizeof one + size_t{one.n_lists} * one.n_compacted * sizeof(uint32_t);
      if ((h.flags & kBlobByHead) == 0 || one.kind != BlobLayer::kRows) continue;
      lags.push_back(layers.back() + sizeof one);
      for (uint32_t i = 0; i < n_heads; ++i)  // and as many positions fewer
        at += sizeof(uint32_t) - get<uint32_t>(blob, lags.back() + i * 4ull) * sizeof(uint32_t);
    }
    first_checkpoint = at;
    body = at + h.n_checkpoints * sizeof(BlobCheckpointHeader);
  }
};

Edit roomy(uint32_t n_checkpoints = 2) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 32;
    s->n_ctx = 160;
    s->capture_window = 8;
    s->rewind = 8;
    s->n_checkpoints = n_checkpoints;
  };
}

class Restore : public ::testing::Test {
 protected:
  void use(const test::ModelRecipe& recipe, sharpi_kv_dtype v = SHARPI_KV_AUTO) {
    recipe_ = recipe;
    file_.emplace(recipe);
    loaded_ = load(file_->path(), setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
                     roomy()(p, s);
                     s->v_dtype = v;
                   }));
    ASSERT_TRUE(loaded_.model);
  }
  Chat read(uint32_t n, uint32_t seed = 1) {
    Chat chat(loaded_.model.get());
    chat.prefill(file_->tokens(n, seed));
    return chat;
  }
  /// A session with everything that a blob can hold.
  Blob rich(sharpi_layer_budget mode = SHARPI_LAYER_BUDGET_EQUAL) {
    Chat chat(loaded_.model.get());
    sharpi_error e = SHARPI_ERROR_INIT;
    chat.prefill(file_->tokens(90, 5));
    sharpi_sampler_params p;
    sharpi_sampler_params_init(&p, sizeof p);
    const int32_t tokens[] = {3, 4};
    const float values[] = {-1.0f, 2.0f};
    p.n_bias = 2;
    p.bias_tokens = tokens;
    p.bias_values = values;
    EXPECT_EQ(sharpi_session_set_sampler(chat.get(), &p, &e), SHARPI_OK) << text_of(e);
    if (loaded_.info.is_hybrid != 0) {
      EXPECT_EQ(sharpi_session_checkpoint(chat.get(), 1, &e), SHARPI_OK) << text_of(e);
    }
    sharpi_compact_params c;
    sharpi_compact_params_init(&c, sizeof c);
    c.budget = 40;
    c.recency = 8;
    c.layer_budget = mode;
    if (mode == SHARPI_LAYER_BUDGET_SHARED) c.policy = SHARPI_POLICY_SNAPKV;
    EXPECT_EQ(sharpi_session_compact(chat.get(), &c, nullptr, &e), SHARPI_OK) << text_of(e);
    chat.prefill(file_->tokens(12, 6), 3);
    if (loaded_.info.is_hybrid != 0) {
      EXPECT_EQ(sharpi_session_checkpoint(chat.get(), 0, &e), SHARPI_OK) << text_of(e);
    }
    return saved(chat);
  }
  void expect_refused(const Blob& blob, sharpi_status status, const std::string& text,
                      const std::string& what) {
    Chat chat = read(9, 2);
    const Blob before = saved(chat);
    const Logits logits = chat.logits();
    const Answer a = restore(chat, blob);
    EXPECT_EQ(a.status, status) << what << ": " << a.text;
    EXPECT_NE(a.text.find(text), std::string::npos) << what << ": " << a.text;
    EXPECT_TRUE(saved(chat) == before) << what;
    EXPECT_TRUE(same_bits(chat.logits(), logits)) << what;
    // An empty session, which reads once, says the same.
    const Chat empty(loaded_.model.get());
    const Blob nothing = saved(empty);
    const Answer b = restore(empty, blob);
    EXPECT_EQ(b.status, status) << what << ": " << b.text;
    EXPECT_EQ(b.text, a.text) << what;
    EXPECT_TRUE(saved(empty) == nothing) << what;
  }
  /// Everything that follows a restore: it may be refused, but nothing leaves its memory.
  static void use_up(Chat& chat) {
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_session_decode(chat.get(), 1, &e);
    int32_t token = 0;
    uint32_t n = 0;
    sharpi_session_step(chat.get(), nullptr, &token, 1, &n, &e);
    sharpi_compact_params c;
    sharpi_compact_params_init(&c, sizeof c);
    c.budget = 20;
    c.recency = 4;
    sharpi_session_compact(chat.get(), &c, nullptr, &e);
    for (const uint32_t length : reachable(chat)) sharpi_session_truncate(chat.get(), length, &e);
    sharpi_session_truncate(chat.get(), 0, &e);
    sharpi_session_decode(chat.get(), 1, &e);
  }
  test::ModelRecipe recipe_;
  std::optional<MadeModel> file_;
  Loaded loaded_;
};

struct Forgery {
  const char* what;
  size_t at;
  uint32_t value;
  sharpi_status status;
  const char* text;
};

TEST_F(Restore, EveryFieldOfTheHeaderIsCheckedAgainstTheOthers) {
  use(test::tiny_qwen3());
  const Blob good = rich();
  const uint32_t n = get<BlobHeader>(good, 0).n_tokens;
  ASSERT_EQ(n, 102u);
  const Forgery cases[] = {
      {"no floor", offsetof(BlobHeader, evicted_floor), 0, SHARPI_E_FORMAT, "evicted rows"},
      {"a lower floor", offsetof(BlobHeader, evicted_floor), 89, SHARPI_E_FORMAT, "evicted rows"},
      {"a floor past the end", offsetof(BlobHeader, evicted_floor), 103, SHARPI_E_FORMAT,
       "evicted rows"},
      {"not compacted", offsetof(BlobHeader, flags), 0, SHARPI_E_FORMAT, "evicted rows"},
      {"flags", offsetof(BlobHeader, flags), 17, SHARPI_E_FORMAT, "unknown flags"},
      {"the flag of rows by head", offsetof(BlobHeader, flags), 9, SHARPI_E_FORMAT, "its version"},
      {"the version of rows by head", offsetof(BlobHeader, version), kBlobVersionByHead,
       SHARPI_E_FORMAT, "its version"},
      {"the flag without adapters", offsetof(BlobHeader, flags), 5, SHARPI_E_FORMAT, "adapters"},
      {"scores without the flag", offsetof(BlobHeader, n_scored), 1, SHARPI_E_FORMAT,
       "its replay scores are impossible"},
      {"the flag without scores", offsetof(BlobHeader, flags), 3, SHARPI_E_FORMAT,
       "its replay scores are impossible"},
      {"a ring that is not there", offsetof(BlobHeader, ring_low), 4, SHARPI_E_FORMAT,
       "the bounds of its rings"},
      {"queries", offsetof(BlobHeader, n_queries), n + 1, SHARPI_E_FORMAT,
       "more captured queries than tokens"},
      {"logits", offsetof(BlobHeader, n_logit_rows), n + 1, SHARPI_E_FORMAT,
       "more rows of logits than tokens"},
      {"more logits", offsetof(BlobHeader, n_logit_rows), 9, SHARPI_E_MISMATCH,
       "the plan allows 8"},
      {"checkpoints", offsetof(BlobHeader, n_checkpoints), 1, SHARPI_E_MISMATCH, "room for 0"},
      {"fewer tokens", offsetof(BlobHeader, n_tokens), 101, SHARPI_E_FORMAT, "damaged"},
      {"more tokens", offsetof(BlobHeader, n_tokens), 161, SHARPI_E_KV_FULL, "a context of 160"},
      {"layers", offsetof(BlobHeader, n_layers), 3, SHARPI_E_MISMATCH, "3 layers"},
      {"version", offsetof(BlobHeader, version), 1, SHARPI_E_MISMATCH, "version 1"}};
  for (const Forgery& f : cases) {
    Blob bad = good;
    set(&bad, f.at, f.value);
    seal(&bad);
    expect_refused(bad, f.status, f.text, f.what);
  }
}

TEST_F(Restore, EveryFieldOfALayerIsCheckedAgainstTheOthers) {
  use(test::tiny_qwen3());
  const Blob good = rich();
  const size_t at = HeadMap(good).layers[1];
  const auto h = get<BlobLayerHeader>(good, at);
  ASSERT_EQ(h.n_rows, 52u);
  ASSERT_EQ(h.tail_position, 90u);
  const size_t list = at + sizeof h;
  const Forgery cases[] = {
      {"kind", at + offsetof(BlobLayerHeader, kind), 2, SHARPI_E_FORMAT,
       "a layer is of another kind"},
      {"dtype", at + offsetof(BlobLayerHeader, k_dtype), 2, SHARPI_E_MISMATCH, "KV dtypes"},
      {"first", at + offsetof(BlobLayerHeader, first_position), 1, SHARPI_E_FORMAT, "compacted"},
      {"fewer rows", at + offsetof(BlobLayerHeader, n_rows), 51, SHARPI_E_FORMAT,
       "rows of a layer"},
      {"more rows", at + offsetof(BlobLayerHeader, n_rows), 0xFFFFFFFBu, SHARPI_E_KV_FULL,
       "capacity"},
      {"no lists", at + offsetof(BlobLayerHeader, n_lists), 0, SHARPI_E_FORMAT,
       "compacted rows of a layer"},
      {"lists", at + offsetof(BlobLayerHeader, n_lists), 3, SHARPI_E_FORMAT,
       "compacted rows of a layer"},
      {"tail", at + offsetof(BlobLayerHeader, tail_position), 91, SHARPI_E_FORMAT,
       "the rows of a layer"},
      {"compacted", at + offsetof(BlobLayerHeader, n_compacted), 53, SHARPI_E_FORMAT, "compacted"},
      {"a position past the tail", list + 39 * 4, 90, SHARPI_E_FORMAT, "positions"},
      {"a position twice", list + 4, get<uint32_t>(good, list), SHARPI_E_FORMAT, "positions"}};
  for (const Forgery& f : cases) {
    Blob bad = good;
    set(&bad, f.at, f.value);
    seal(&bad);
    expect_refused(bad, f.status, f.text, f.what);
  }
}

/// The same bytes would decode to other values: it is the levels that are named, not the dtype.
/// What a blob says of heads that have counts of their own.
TEST_F(Restore, CountsOfHeadsThatLieAreRefused) {
  if (on_gpu()) GTEST_SKIP() << "rows by head are kept on the CPU alone";
  use(test::tiny_qwen3());
  const Blob good = rich(SHARPI_LAYER_BUDGET_SHARED);
  ASSERT_EQ(get<BlobHeader>(good, 0).version, kBlobVersionByHead);
  const HeadMap map(good, 2);
  ASSERT_EQ(map.lags.size(), 2u);
  size_t layer = 0;  // one whose heads differ
  const auto lag = [&](size_t l, size_t head) {
    return get<uint32_t>(good, map.lags[l] + 4 * head);
  };
  if (lag(0, 0) == lag(0, 1)) layer = 1;
  const size_t full = lag(layer, 0) == 0 ? 0 : 1, less = 1 - full;
  ASSERT_NE(lag(layer, full), lag(layer, less));
  const size_t at = map.lags[layer];
  const uint32_t placed =
      get<uint32_t>(good, map.layers[layer] + offsetof(BlobLayerHeader, n_compacted));
  const Forgery cases[] = {
      {"no fullest head", at + 4 * full, 1, SHARPI_E_FORMAT, "counts of rows of its heads"},
      {"a head without rows", at + 4 * less, placed, SHARPI_E_FORMAT,
       "counts of rows of its heads"},
      {"a head with fewer than none", at + 4 * less, 0xFFFFFFF0u, SHARPI_E_FORMAT,
       "counts of rows of its heads"},
      {"one row fewer", at + 4 * less, lag(layer, less) + 1, SHARPI_E_FORMAT, "damaged"},
      {"one row more", at + 4 * less, lag(layer, less) - 1, SHARPI_E_FORMAT, "damaged"},
      {"heads alike", at + 4 * less, 0, SHARPI_E_FORMAT, "damaged"},
      {"one list", map.layers[layer] + offsetof(BlobLayerHeader, n_lists), 1, SHARPI_E_FORMAT,
       "counts of rows of its heads"},
      {"no list", map.layers[layer] + offsetof(BlobLayerHeader, n_lists), 0, SHARPI_E_FORMAT,
       "compacted rows of a layer"},
      {"the version of rows together", offsetof(BlobHeader, version), kBlobVersion, SHARPI_E_FORMAT,
       "its version"},
      {"the flags of rows together", offsetof(BlobHeader, flags), kBlobCompacted, SHARPI_E_FORMAT,
       "its version"}};
  for (const Forgery& f : cases) {
    Blob bad = good;
    set(&bad, f.at, f.value);
    seal(&bad);
    expect_refused(bad, f.status, f.text, f.what);
  }
  // Any number in place of any of the counts: refused, or a session that works.
  for (size_t l = 0; l < map.lags.size(); ++l) {
    for (size_t head = 0; head < 2; ++head) {
      for (uint32_t value = 0; value < 64; ++value) {
        Blob bad = good;
        set(&bad, map.lags[l] + 4 * head, value);
        seal(&bad);
        Chat chat = read(9, 2);
        restore(chat, bad);
        use_up(chat);
      }
    }
  }
  Chat chat = read(9, 2);
  EXPECT_EQ(restore(chat, good).status, SHARPI_OK);
  EXPECT_TRUE(saved(chat) == good);
}

TEST_F(Restore, RowsOfOtherLevelsAreRefusedByTheirVersion) {
  use(test::tiny_qwen3(), SHARPI_KV_Q4);
  const Blob good = rich();
  const size_t at = HeadMap(good).layers[1] + offsetof(BlobLayerHeader, v_dtype);
  EXPECT_EQ(get<uint32_t>(good, at), SHARPI_KV_Q4 | 1u << 16);
  Chat chat = read(9, 2);
  EXPECT_EQ(restore(chat, good).status, SHARPI_OK);
  const Forgery cases[] = {
      {"later levels", at, SHARPI_KV_Q4 | 2u << 16, SHARPI_E_MISMATCH,
       "layer 1 was saved with version 2 of the levels of q4, but this library has version 1"},
      {"no levels", at, SHARPI_KV_Q4, SHARPI_E_MISMATCH, "version 0 of the levels of q4"},
      {"a dtype", at, SHARPI_KV_Q8_0, SHARPI_E_MISMATCH, "KV dtypes"}};
  for (const Forgery& f : cases) {
    Blob bad = good;
    set(&bad, f.at, f.value);
    seal(&bad);
    expect_refused(bad, f.status, f.text, f.what);
  }
}

TEST_F(Restore, SamplerRingsAndCheckpointsAreChecked) {
  use(test::tiny_gemma4kv());
  Blob good = rich();
  const uint32_t low = get<BlobHeader>(good, 0).ring_low, n = get<BlobHeader>(good, 0).n_tokens;
  ASSERT_NE(low, 0u);
  for (const uint32_t forged : {low + 9, n + 1, 0xFFFFFFFFu}) {  // 8 rows of rewind are there
    Blob bad = good;
    set(&bad, offsetof(BlobHeader, ring_low), forged);
    seal(&bad);
    expect_refused(bad, SHARPI_E_FORMAT, "the bounds of its rings",
                   "ring_low " + std::to_string(forged));
  }
  Blob bad = good;
  set(&bad, offsetof(BlobHeader, ring_low), low - 1);
  seal(&bad);
  expect_refused(bad, SHARPI_E_FORMAT, "the rows of a ring", "a lower ring_low");
  for (const float temperature : {-1.0f, NAN}) {
    bad = good;
    set(&bad, HeadMap(good).sampler + offsetof(BlobSampler, temperature), temperature);
    seal(&bad);
    expect_refused(bad, SHARPI_E_FORMAT, "sampler settings", "temperature");
  }
  bad = good;
  set(&bad, HeadMap(good).sampler + sizeof(BlobSampler), int32_t{-1});
  seal(&bad);
  expect_refused(bad, SHARPI_E_FORMAT, "sampler settings", "a biased token");
  bad = good;
  set(&bad, HeadMap(good).sampler + offsetof(BlobSampler, n_bias), 0xFFFFFFFFu);
  seal(&bad);
  expect_refused(bad, SHARPI_E_FORMAT, "longer than what is left", "n_bias");

  use(test::tiny_qwen35());
  good = rich();
  const size_t at = HeadMap(good).first_checkpoint;
  const auto first = get<BlobCheckpointHeader>(good, at);
  const uint16_t kept = first.has_logits;
  for (const BlobCheckpointHeader forged :
       {BlobCheckpointHeader{103, first.pinned, kept, first.age},
        {102, first.pinned, kept, first.age},
        {first.n_tokens, 2, kept, first.age},
        {first.n_tokens, first.pinned, 2, first.age},
        {first.n_tokens, first.pinned, kept, 0},
        {first.n_tokens, first.pinned, kept, 2},
        {first.n_tokens, first.pinned, kept, UINT64_MAX}}) {
    bad = good;
    set(&bad, at, forged);
    seal(&bad);
    expect_refused(bad, SHARPI_E_FORMAT, "checkpoint", "checkpoint");
  }
}

TEST_F(Restore, NoByteOfTheHeadCanDoHarm) {
  for (const test::ModelRecipe& recipe :
       test::with_newer_kinds({test::tiny_qwen3(), test::tiny_qwen35(), test::tiny_gemma4kv()})) {
    use(recipe);
    Chat chat = read(9, 2);
    const Blob base = saved(chat), good = rich();
    const size_t body = HeadMap(good).body;
    for (size_t at = 0; at < body; ++at) {
      const bool token = at >= sizeof(BlobHeader) && at < HeadMap(good).sampler;
      if (token && at % 16 != 0) continue;
      for (const int value : {0x00, 0x01, 0x7F, 0xFF}) {
        Blob bad = good;
        bad[at] = static_cast<char>(value);
        if (bad == good) continue;
        const bool length = at >= offsetof(BlobHeader, total_bytes) &&
                            at < offsetof(BlobHeader, total_bytes) + sizeof(uint64_t);
        if (!length) seal(&bad);
        if (restore(chat, bad).status != SHARPI_OK) {
          ASSERT_TRUE(saved(chat) == base) << recipe.arch << ", byte " << at;
          continue;
        }
        if (at % 8 == 0) use_up(chat);
        ASSERT_EQ(restore(chat, base).status, SHARPI_OK);
      }
    }
  }
}

TEST_F(Restore, EverythingThatABlobHoldsComesBack) {
  for (const test::ModelRecipe& recipe : test::tiny_recipes()) {
    use(recipe);
    const Blob good = rich();
    Chat chat = read(60, 2);
    ASSERT_EQ(restore(chat, good).status, SHARPI_OK) << recipe.arch;
    EXPECT_TRUE(saved(chat) == good) << recipe.arch;
  }
}

TEST_F(Restore, TheSamplerGoesOnWhereItWas) {
  use(test::tiny_qwen3());
  Chat from = read(30), to = read(9);
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  p.seed = 4711;
  p.temperature = 3.0f;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_set_sampler(from.get(), &p, &e), SHARPI_OK);
  const auto steps = [&](const Chat& chat) {
    std::vector<int32_t> out(8);
    for (int32_t& t : out) {
      uint32_t n = 0;
      EXPECT_EQ(sharpi_session_step(chat.get(), nullptr, &t, 1, &n, &e), SHARPI_OK) << text_of(e);
    }
    return out;
  };
  steps(from);
  ASSERT_EQ(restore(to, saved(from)).status, SHARPI_OK);
  EXPECT_EQ(steps(from), steps(to));
}

TEST_F(Restore, ATruncatedRingFitsASmallerRewind) {
  const MadeModel file(test::tiny_gemma4kv());
  const auto with_rewind = [&](uint32_t rewind) {
    return load(file.path(), setup_with([=](sharpi_plan_params*, sharpi_session_params* s) {
                  s->n_ctx = 160;
                  s->rewind = rewind;
                }));
  };
  const Loaded wide = with_rewind(40), narrow = with_rewind(4);
  Chat from(wide.model.get()), to(narrow.model.get());
  from.prefill(file.tokens(120));
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_truncate(from.get(), 90, &e), SHARPI_OK) << text_of(e);
  ASSERT_EQ(restore(to, saved(from)).status, SHARPI_OK);
  EXPECT_EQ(reachable(to), (std::vector<uint32_t>{86, 90}));
  for (Chat* c : {&from, &to}) c->prefill(file.tokens(9, 3));
  EXPECT_TRUE(same_bits(from.logits(), to.logits()));
}

TEST_F(Restore, AFailedAllocationLeavesTheSessionAsItWas) {
  for (const test::ModelRecipe& recipe : {test::tiny_qwen35(), test::tiny_gemma4kv()}) {
    use(recipe);
    const Blob good = rich();
    int refused = 0;
    for (int nth = 1; nth < 1000; ++nth) {
      Chat chat = read(9, 2);
      const Blob before = saved(chat);
      const Logits logits = chat.logits();
      fail_new(nth);
      const Answer a = restore(chat, good);
      const bool hit = !new_pending();
      fail_new(0);
      if (!hit) {
        ASSERT_EQ(a.status, SHARPI_OK) << a.text;
        break;
      }
      ASSERT_EQ(a.status, SHARPI_E_OUT_OF_MEMORY) << "allocation " << nth << ": " << a.text;
      ASSERT_TRUE(saved(chat) == before) << "allocation " << nth;
      ASSERT_TRUE(same_bits(chat.logits(), logits)) << "allocation " << nth;
      ++refused;
    }
    EXPECT_GT(refused, 3);
    for (int nth = 1, hit = 1; nth < 1000 && hit != 0; ++nth) {  // an empty one
      Chat chat(loaded_.model.get());
      const Blob before = saved(chat);
      fail_new(nth);
      const Answer a = restore(chat, good);
      hit = new_pending() ? 0 : 1;
      fail_new(0);
      ASSERT_EQ(a.status, hit != 0 ? SHARPI_E_OUT_OF_MEMORY : SHARPI_OK) << nth << ": " << a.text;
      ASSERT_TRUE(saved(chat) == (hit != 0 ? before : good)) << "allocation " << nth;
    }
  }
}

}  // namespace
}  // namespace sharpi::testing
