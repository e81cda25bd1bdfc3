// SPDX-License-Identifier: MIT
// Rows in blocks of one KV head, of which each has a count of its own: what reads and writes them
// has the bits that rows of all heads together have, where the counts are alike, and where they are
// not every head keeps what was chosen; memory is what the plan, the session and the allocator say.
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "base/hash.h"
#include "engine/by_head_case.h"
#include "engine/session_blob.h"
#include "support/session_rows.h"

namespace sharpi::testing {
namespace {

/// Every head looks at the same hits by this policy, so one threshold gives all of them as many
/// rows as EQUAL: sessions of both layouts hold the same rows, and all that is computed from them
/// has the same bits.
TEST(ByHead, WhereHeadsKeepAsManyRowsTheBitsAreThoseOfRowsTogether) {
  for (const Case& c : cases()) {
    const MadeModel file(c.recipe);
    const std::vector<int32_t> text = file.tokens(480);
    for (const sharpi_kv_dtype kv : c.dtypes) {
      for (const bool exact : {true, false}) {
        const std::string what =
            std::string(c.name) + " " + dtype_text(kv) + (exact ? " exact" : " fast");
        const Loaded l = load(file.path(), setup_with(watching(kv, exact, true)));
        Chat a(l.model.get()), b(l.model.get());
        for (Chat* chat : {&a, &b}) chat->prefill(slice(text, 0, 300));
        compact(a, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_RETRIEVAL, 100));
        compact(b, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_RETRIEVAL, 100));
        ASSERT_EQ(counts(a), counts(b)) << what;
        for (uint32_t layer = 0; layer < c.recipe.n_layers; ++layer) {
          for (uint32_t h = 0; h < 2; ++h) ASSERT_EQ(kept(a, layer, h), kept(b, layer, h)) << what;
        }
        for (Chat* chat : {&a, &b}) chat->prefill(slice(text, 300, 390));  // a chunk and a rest
        EXPECT_TRUE(same_bits(a.logits(), b.logits())) << what << ", a chunk";
        for (size_t i = 390; i < 400; ++i) {
          for (Chat* chat : {&a, &b}) chat->decode(text[i]);
          EXPECT_TRUE(same_bits(a.logits(), b.logits())) << what << ", step " << i;
        }
        // Scores of such rows, and a second compaction.
        compact(a, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_VALUE, 70));
        compact(b, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_VALUE, 70));
        for (uint32_t layer = 0; layer < c.recipe.n_layers; ++layer) {
          for (uint32_t h = 0; h < 2; ++h) EXPECT_EQ(kept(a, layer, h), kept(b, layer, h)) << what;
        }
        for (Chat* chat : {&a, &b}) chat->prefill(slice(text, 400, 403));  // few rows
        EXPECT_TRUE(same_bits(a.logits(), b.logits())) << what << ", few rows";
        // One batch for sessions of both kinds.
        sharpi_session* both[] = {a.get(), b.get()};
        const int32_t two[] = {text[403], text[403]};
        sharpi_error e = SHARPI_ERROR_INIT;
        ASSERT_EQ(sharpi_decode_batch(both, two, 2, &e), SHARPI_OK) << text_of(e);
        EXPECT_TRUE(same_bits(a.logits(), b.logits())) << what << ", a batch";
      }
    }
  }
}

/// Bounded sessions make room by themselves, and turn keys where their context ends.
TEST(ByHead, BoundedSessionsGoOnPastTheirContextWithTheSameBits) {
  const MadeModel file(deep(test::tiny_qwen3(), 3));
  const std::vector<int32_t> text = file.tokens(420);
  for (const sharpi_kv_dtype kv : stored_dtypes()) {
    const Loaded l = load(file.path(), setup_with([=](sharpi_plan_params* p, auto* s) {
                            watching(kv, false, true)(p, s);
                            p->n_chunk = 16;
                            s->n_ctx = 192;
                            s->kv_budget = 80;
                          }));
    Chat a(l.model.get()), b(l.model.get());
    for (Chat* chat : {&a, &b}) chat->prefill(slice(text, 0, 90));
    compact(a, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_RETRIEVAL, 60));
    compact(b, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_RETRIEVAL, 60));
    const uint64_t held = b.info().kv_held_bytes;
    for (size_t i = 90; i < text.size(); ++i) {
      for (Chat* chat : {&a, &b}) chat->decode(text[i]);
      ASSERT_TRUE(same_bits(a.logits(), b.logits())) << dtype_text(kv) << ", token " << i;
    }
    EXPECT_EQ(b.info().kv_held_bytes, held) << "a bounded session took memory";
    EXPECT_EQ(a.info().capacity, b.info().capacity);
    EXPECT_LT(b.info().n_tokens, 193u);
    // No head keeps more than kv_budget, whatever the threshold.
    compact(b, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 79));
    EXPECT_LE(b.info().n_slots_max, 80u);
    for (size_t i = 0; i < 200; ++i) b.decode(text[i]);
  }
}

/// Sessions of a template in which every head is scored for itself, so that counts differ.
class Uneven {
 public:
  explicit Uneven(const Case& c, sharpi_kv_dtype kv, uint32_t n_sessions = 4)
      : file(c.recipe), text(file.tokens(900)) {
    loaded = load(file.path(), setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
                    watching(kv, false, true)(p, s);
                    p->n_sessions = n_sessions;
                    s->n_checkpoints = 2;
                  }));
  }
  Chat chat(uint32_t n_tokens = 300) const {
    Chat c(loaded.model.get());
    c.prefill(slice(text, 0, n_tokens));
    return c;
  }
  /// The next tokens of both give the same bits.
  void expect_alike(const Chat& a, const Chat& b, const std::string& what, size_t at) const {
    for (size_t i = at; i < at + 70; ++i) {
      for (const Chat* c : {&a, &b}) const_cast<Chat*>(c)->decode(text[i]);
      ASSERT_TRUE(same_bits(a.logits(), b.logits())) << what << ", token " << i;
    }
  }
  MadeModel file;
  std::vector<int32_t> text;
  Loaded loaded;
};

TEST(ByHead, HeadsKeepWhatOneThresholdLeavesThem) {
  for (const Case& c : cases()) {
    const Uneven u(c, c.dtypes[0]);
    const Chat chat = u.chat();
    const size_t n_heads = counts(chat).size();
    const Report r =
        compact(chat, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 100, 50));
    const std::vector<uint32_t> n = counts(chat);
    ASSERT_EQ(n.size(), n_heads) << c.name;
    const auto [least, most] = std::minmax_element(n.begin(), n.end());
    EXPECT_EQ(std::accumulate(n.begin(), n.end(), 0u), 100 * n_heads) << c.name;
    EXPECT_LT(*least, *most) << c.name;
    EXPECT_GE(*least, 4 + 4 + 8) << c.name << ": recency, sinks and the best few";
    EXPECT_EQ(r.rows_after, *most);
    EXPECT_EQ(chat.info().n_slots_max, *most);
    EXPECT_EQ(chat.info().n_slots_min, *least);
    EXPECT_EQ(chat.info().capacity, *most + 50);
    EXPECT_EQ(r.kept_sinks + r.kept_recent + r.kept_scored, *most);
    // The first rows, the last ones, and no row twice.
    for (uint32_t l = 0; l < c.recipe.n_layers; ++l) {
      for (uint32_t h = 0; h < 2; ++h) {
        const std::vector<uint32_t> at = kept(chat, l, h);
        if (at.empty()) continue;
        EXPECT_TRUE(std::adjacent_find(at.begin(), at.end(), std::greater_equal<>()) == at.end());
        EXPECT_EQ(at[3], 3u) << c.name;
        EXPECT_EQ(at[at.size() - 4], 296u) << c.name;
      }
    }
    // More of the same budget: no row is in a smaller set that is not in the larger one.
    const Chat more = u.chat();
    compact(more, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 140, 50));
    for (uint32_t l = 0; l < c.recipe.n_layers; ++l) {
      for (uint32_t h = 0; h < 2; ++h) {
        const std::vector<uint32_t> few = kept(chat, l, h), many = kept(more, l, h);
        EXPECT_TRUE(std::includes(many.begin(), many.end(), few.begin(), few.end())) << c.name;
      }
    }
  }
}

TEST(ByHead, ForksAndSavedFormsGoOnAlike) {
  for (const Case& c : cases()) {
    for (const sharpi_kv_dtype kv : c.dtypes) {
      const std::string what = std::string(c.name) + " " + dtype_text(kv);
      const Uneven u(c, kv);
      Chat a = u.chat(500);
      compact(a, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 250));
      a.prefill(slice(u.text, 500, 530));
      const std::vector<char> blob = saved(a);
      const Chat twin = a.fork();
      // A GPU's granules hold more than these sessions have.
      EXPECT_EQ(twin.info().kv_shared_bytes > 0, !on_gpu()) << what;
      EXPECT_TRUE(saved(twin) == blob) << what;
      // Where all rows stay, none is copied.
      const uint64_t shared = twin.info().kv_shared_bytes;
      compact(twin, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 600));
      EXPECT_EQ(twin.info().kv_shared_bytes, shared) << what;
      Chat back(u.loaded.model.get());
      sharpi_error e = SHARPI_ERROR_INIT;
      ASSERT_EQ(sharpi_session_restore(back.get(), blob.data(), blob.size(), &e), SHARPI_OK)
          << what << ": " << text_of(e);
      EXPECT_TRUE(saved(back) == blob) << what;
      EXPECT_EQ(counts(back), counts(a)) << what;
      u.expect_alike(a, back, what + " restored", 530);
      const Chat third = twin.fork();
      // A fork that is compacted again leaves the other alone.
      compact(third, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SPAN, 60, 0));
      EXPECT_TRUE(saved(twin) == blob) << what;
      Chat again(u.loaded.model.get());
      ASSERT_EQ(sharpi_session_restore(again.get(), blob.data(), blob.size(), &e), SHARPI_OK);
      u.expect_alike(twin, again, what + " forked", 530);
    }
  }
}

TEST(ByHead, AnEmptySessionHasItsRowsTogetherAgain) {
  const Case c = cases()[0];
  const Uneven u(c, SHARPI_KV_BF16);
  const Chat fresh = u.chat(200);
  Chat a = u.chat();
  const std::vector<char> early = saved(u.chat(100));
  compact(a, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 60, 300));
  // Back to where it was compacted, and on with other tokens than those that were taken back.
  for (const uint32_t n : {310u, 320u}) a.prefill(slice(u.text, 0, n - 300));
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_truncate(a.get(), 300, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(sharpi_session_truncate(a.get(), 299, &e), SHARPI_E_STATE);
  ASSERT_EQ(sharpi_session_restore(a.get(), early.data(), early.size(), &e), SHARPI_OK)
      << text_of(e);
  EXPECT_TRUE(saved(a) == early);
  compact(a, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 40, 100));
  ASSERT_EQ(sharpi_session_truncate(a.get(), 0, &e), SHARPI_OK) << text_of(e);
  ASSERT_EQ(sharpi_session_reserve(a.get(), 700, &e), SHARPI_OK) << text_of(e);
  a.prefill(slice(u.text, 0, 200));
  u.expect_alike(a, fresh, "read again", 200);
}

/// A blob of a model with one KV head, whose rows are by head, as one whose layers have counts of
/// their own in rows together: the lags, which are 0 within a layer, go.
std::vector<char> rows_together(const std::vector<char>& blob) {
  BlobHeader h;
  std::memcpy(&h, blob.data(), sizeof h);
  EXPECT_EQ(h.version, kBlobVersionByHead);
  h.version = kBlobVersion;
  h.flags &= ~kBlobByHead;
  size_t at = sizeof h + h.n_tokens * sizeof(int32_t) + sizeof(BlobSampler);
  std::vector<char> out(blob.begin(), blob.begin() + static_cast<long>(at));
  for (uint32_t l = 0; l < h.n_layers; ++l) {
    BlobLayerHeader layer;
    std::memcpy(&layer, blob.data() + at, sizeof layer);
    const size_t end = at + sizeof layer;
    out.insert(out.end(), blob.data() + at, blob.data() + end);
    at = end + sizeof(uint32_t);
    const size_t lists = layer.n_lists * layer.n_compacted * sizeof(uint32_t);
    out.insert(out.end(), blob.data() + at, blob.data() + at + lists);
    at += lists;
  }
  out.insert(out.end(), blob.begin() + static_cast<long>(at), blob.end() - kBlobSumBytes);
  h.total_bytes = out.size() + kBlobSumBytes;
  std::memcpy(out.data(), &h, sizeof h);
  const uint64_t value = striped_hash64(out.data(), out.size());
  const auto* bytes = reinterpret_cast<const char*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
  return out;
}

/// Counts that differ, against rows together, which may differ by layer.
TEST(ByHead, UnevenCountsHaveTheBitsOfLayersThatDiffer) {
  for (const sharpi_kv_dtype kv : stored_dtypes()) {
    test::ModelRecipe recipe = deep(test::tiny_qwen3(), 4);
    recipe.n_kv_heads = 1;
    const Uneven u({"one KV head", recipe}, kv);
    Chat a = u.chat();
    compact(a, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 90));
    const std::vector<uint32_t> n = counts(a);
    ASSERT_NE(*std::min_element(n.begin(), n.end()), *std::max_element(n.begin(), n.end()));
    const std::vector<char> blob = rows_together(saved(a));
    Chat b(u.loaded.model.get());
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_restore(b.get(), blob.data(), blob.size(), &e), SHARPI_OK)
        << text_of(e);
    EXPECT_EQ(counts(b), n);
    for (Chat* chat : {&a, &b}) chat->prefill(slice(u.text, 300, 390));
    u.expect_alike(a, b, dtype_text(kv), 390);
    // What looks at the rows sees the same: another choice in both.
    compact(a, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_DEFENSIVE, 60));
    compact(b, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_DEFENSIVE, 60));
    for (uint32_t l = 0; l < 4; ++l) EXPECT_EQ(kept(a, l, 0), kept(b, l, 0)) << dtype_text(kv);
    u.expect_alike(a, b, dtype_text(kv), 460);
  }
}

/// Random tokens, compactions, drafts and growth. A twin that is forked and restored at every step
/// goes the same way and saves the same, with tables that were planned and with those of a call.
TEST(ByHead, RandomSequencesAndTheirTwinsSaveTheSame) {
  for (const Case& c : cases()) {
    for (const uint32_t window : {16u, 0u}) {
      const MadeModel file(c.recipe);
      const std::vector<int32_t> text = file.tokens(900), probe = file.tokens(12, 7);
      const Loaded l = load(file.path(), setup_with([&](auto* p, auto* s) {
                              watching(c.dtypes.back(), false, true)(p, s);
                              s->capture_window = window;
                            }));
      for (uint32_t seed = 1; seed <= 4; ++seed) {
        std::mt19937 source(seed);
        const auto below = [&](uint32_t n) { return static_cast<uint32_t>(source()) % n; };
        Chat a(l.model.get()), b(l.model.get());
        for (Chat* chat : {&a, &b}) chat->prefill(slice(text, 0, 200));
        for (int32_t step = 0; step < 12; ++step) {
          const std::string what = std::string(c.name) + " window " + std::to_string(window) +
                                   ", seed " + std::to_string(seed) + ", step " +
                                   std::to_string(step);
          const size_t at = below(800), n = 1 + below(step % 3 == 0 ? 80 : 5);
          sharpi_compact_params p =
              params(below(4) == 0 ? SHARPI_LAYER_BUDGET_EQUAL : SHARPI_LAYER_BUDGET_SHARED,
                     below(2) == 0 ? SHARPI_POLICY_SNAPKV : SHARPI_POLICY_DEFENSIVE,
                     50 + below(100), below(90));
          if (window == 0) p.probe = probe.data(), p.n_probe = 12;
          const bool compacts = below(2) == 0;
          for (Chat* chat : {&a, &b}) {
            sharpi_error e = SHARPI_ERROR_INIT;
            const uint32_t more =
                chat->info().n_slots_max + std::max(static_cast<uint32_t>(n), 12u);
            if (chat->info().n_tokens + n >= 680) continue;
            ASSERT_EQ(sharpi_session_reserve(chat->get(), more, &e), SHARPI_OK) << text_of(e);
            if (compacts) {
              compact(*chat, p);
            } else {
              chat->prefill(slice(text, at, at + n));
            }
          }
          const std::vector<char> blob = saved(b);
          ASSERT_TRUE(saved(a) == blob) << what;
          b = step % 2 == 0 ? b.fork() : Chat(l.model.get());
          sharpi_error e = SHARPI_ERROR_INIT;
          if (step % 2 != 0) {
            ASSERT_EQ(sharpi_session_restore(b.get(), blob.data(), blob.size(), &e), SHARPI_OK)
                << what << ": " << text_of(e);
          }
          ASSERT_TRUE(saved(b) == blob) << what;
        }
      }
    }
  }
}

/// A long text to an eighth, without headroom: what is held is at most a tenth more than an eighth.
TEST(ByHead, AnEighthOfTheRowsTakesAnEighthOfTheMemory) {
  test::ModelRecipe recipe = deep(test::tiny_qwen3(), 4);
  recipe.n_heads = recipe.n_kv_heads = 4;
  recipe.head_dim = 64;
  recipe.n_ctx = 8192;
  const MadeModel file(recipe);
  const std::vector<int32_t> text = file.tokens(8000);
  for (const sharpi_kv_dtype kv : {SHARPI_KV_BF16, SHARPI_KV_Q8_0}) {
    const Loaded l = load(file.path(), setup_with([=](sharpi_plan_params* p, auto* s) {
                            watching(kv, false, false)(p, s);
                            p->n_chunk = 512;
                            p->n_sessions = 1;
                            s->n_ctx = 8192;
                          }));
    Chat chat(l.model.get());
    const MemoryRows planned = rows_of_handle(sharpi_plan_rows, l.plan.get());
    chat.prefill(text);
    const uint64_t whole = held_by_rows(chat);
    const Report r =
        compact(chat, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 1000, 0));
    const std::vector<uint32_t> n = counts(chat);
    const auto [least, most] = std::minmax_element(n.begin(), n.end());
    EXPECT_LT(*least + 250, *most) << "heads hardly differ";
    const double granule = on_gpu() ? 2 << 20 : 0;  // these sessions have few of them
    EXPECT_LE(static_cast<double>(held_by_rows(chat)),
              1.1 / 8 * static_cast<double>(whole) + granule);
    EXPECT_EQ(r.held_after, held_by_rows(chat));
    EXPECT_EQ(r.payload_after * 8, r.payload_before);
    EXPECT_GT(chat.info().capacity, 1000u);
    EXPECT_EQ(chat.info().capacity, *most);
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_decode(chat.get(), 1, &e), SHARPI_E_KV_FULL);
    ASSERT_EQ(sharpi_session_reserve(chat.get(), *most + 1, &e), SHARPI_OK) << text_of(e);
    chat.decode(1);
    // All that the session holds was in the plan.
    for (const sharpi_memory_row& row : rows_of_handle(sharpi_session_memory, chat.get())) {
      const auto same = [&](const sharpi_memory_row& p) {
        return std::string(p.label) == row.label && p.held_bytes >= row.held_bytes;
      };
      EXPECT_TRUE(std::any_of(planned.begin(), planned.end(), same)) << row.label;
    }
  }
}

}  // namespace
}  // namespace sharpi::testing
