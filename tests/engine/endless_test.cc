// SPDX-License-Identifier: MIT
// Bounded sessions that go on past their context: recent rows stay what they were, older ones are
// turned to where they move, and sessions that cannot go on say why.
#include <cmath>

#include "api/backends.h"
#include "cpu/ops.h"
#include "engine_case.h"
#include "inner_engine.h"
#include "kv/codec.h"
#include "kv/rotation.h"
#include "tier/key_shift.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kChunk = 8, kBudget = 16;

Edit bounded(uint32_t n_ctx, uint32_t recency, sharpi_kv_dtype kv = SHARPI_KV_F32) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = kChunk;
    p->n_sessions = 2;
    p->deterministic = 1;
    s->n_ctx = n_ctx;
    s->rewind = 4;
    s->kv_budget = kBudget;
    s->capture_window = 6;
    s->recency = recency;
    s->k_dtype = s->v_dtype = kv;
  };
}

std::vector<test::ModelRecipe> recipes() {
  return test::with_newer_kinds({test::tiny_qwen3(), test::tiny_gemma4kv(), test::tiny_qwen35()});
}

/// Where only the last rows stay, no row moves against the others.
TEST(Endless, RecentRowsGiveTheBitsOfALongerContext) {
  for (const test::ModelRecipe& recipe : recipes()) {
    const MadeModel file(recipe);
    const Loaded cut = load(file.path(), setup_with(bounded(64, kBudget)));
    const Loaded whole = load(file.path(), setup_with(bounded(512, kBudget)));
    Chat a(cut.model.get()), b(whole.model.get());
    const auto tokens = file.tokens(400);
    for (Chat* c : {&a, &b}) c->prefill(slice(tokens, 0, kBudget));
    for (uint32_t at = kBudget; at < 400; ++at) {
      a.decode(tokens[at]);
      b.decode(tokens[at]);
      ASSERT_TRUE(same_bits(a.logits(), b.logits())) << recipe.arch << " after " << at;
      ASSERT_LE(a.info().n_tokens, 64u);
    }
    EXPECT_EQ(a.info().n_decode_tokens, 400u - kBudget);
    EXPECT_EQ(b.info().n_tokens, 400u);
  }
}

std::vector<uint32_t> kept(const Chat& chat, uint32_t layer) {
  std::vector<uint32_t> out(1000);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status s = sharpi_session_kept(chat.get(), layer, 0, out.data(), 1000, &n, &e);
  EXPECT_TRUE(s == SHARPI_OK || s == SHARPI_E_UNSUPPORTED) << text_of(e);
  out.resize(s == SHARPI_OK ? n : 0);
  return out;
}

TEST(Endless, LongConversationsAreSavedAndForkedLikeOthers) {
  for (const test::ModelRecipe& recipe : recipes()) {
    const MadeModel file(recipe);
    for (const sharpi_kv_dtype kv : stored_dtypes()) {
      const Loaded l = load(file.path(), setup_with(bounded(64, 4, kv)));
      Chat chat(l.model.get());
      const auto tokens = file.tokens(1000);
      chat.prefill(tokens);
      for (int i = 0; i < 200; ++i) chat.decode(i);
      const sharpi_session_summary info = chat.info();
      ASSERT_LE(info.n_tokens, 64u);
      for (uint32_t layer = 0; layer < recipe.n_layers; ++layer) {
        const std::vector<uint32_t> at = kept(chat, layer);
        for (size_t i = 1; i < at.size(); ++i) ASSERT_LT(at[i - 1], at[i]);
        EXPECT_TRUE(at.empty() || at.back() == info.n_tokens - 1);
      }
      const std::vector<char> blob = saved(chat);
      Chat other(l.model.get());
      sharpi_error e = SHARPI_ERROR_INIT;
      ASSERT_EQ(sharpi_session_restore(other.get(), blob.data(), blob.size(), &e), SHARPI_OK)
          << text_of(e);
      EXPECT_TRUE(saved(other) == blob);
      sharpi_session* raw = nullptr;
      ASSERT_EQ(sharpi_session_fork(chat.get(), &raw, &e), SHARPI_OK) << text_of(e);
      Chat twin(SessionPtr(raw), chat.n_vocab());
      for (Chat* c : {&chat, &other, &twin}) c->prefill(file.tokens(100, 2));
      EXPECT_TRUE(same_bits(chat.logits(), other.logits())) << recipe.arch;
      EXPECT_TRUE(same_bits(chat.logits(), twin.logits())) << recipe.arch;
      ASSERT_EQ(sharpi_session_truncate(chat.get(), 0, &e), SHARPI_OK) << text_of(e);
      Chat fresh(l.model.get());
      chat.prefill(file.tokens(30));
      fresh.prefill(file.tokens(30));
      EXPECT_TRUE(same_bits(chat.logits(), fresh.logits())) << "positions start again";
    }
  }
}

/// Rows as the forward pass would have stored them at another position.
class TurnedKeys : public ::testing::TestWithParam<test::ModelRecipe> {};

TEST_P(TurnedKeys, AreThoseOfTheirNewPositions) {
  if (on_gpu()) GTEST_SKIP() << "host memory only";
  const MadeModel file(GetParam());
  auto engine = InnerEngine::open(file.path(), api::make_backends);
  ASSERT_TRUE(engine.is_ok()) << engine.status().text();
  const InnerEngine e = engine.take();
  constexpr uint32_t kCtx = 512, kRows = 40, kShift = 200;
  for (const auto& [kv, bar] : {std::pair{SHARPI_KV_F32, 2e-5f}, std::pair{SHARPI_KV_BF16, 0.03f},
                                std::pair{SHARPI_KV_Q8_0, 0.06f}, std::pair{SHARPI_KV_Q4, 0.8f}}) {
    auto plan = e.plan([kv = kv](sharpi_plan_params* p, sharpi_session_params* s) {
      p->n_gpu_layers = 0;
      s->n_ctx = kCtx;
      s->k_dtype = s->v_dtype = kv;
    });
    ASSERT_TRUE(plan.is_ok()) << plan.status().text();
    const std::shared_ptr<const Plan> made = plan.take();
    auto model = e.load_tier(*made);
    ASSERT_TRUE(model.is_ok()) << model.status().text();
    auto session = model.value()->create_session(made->session);
    ASSERT_TRUE(session.is_ok()) << session.status().text();
    KvStore& store = session.value()->store();
    const KvLayerLayout& one = *store.layout().find(1);
    KvLedger ledger(*e.spec, 0, 0);
    ledger.reserve_positions(kCtx);
    ledger.commit(400);
    std::vector<uint32_t> slots(2 * kRows);  // one list a head: every ninth, and the last ones
    for (uint32_t i = 0; i < kRows; ++i) slots[i] = 9 * i, slots[kRows + i] = 400 - kRows + i;
    for (uint32_t l = 0; l < 2; ++l)
      ledger.set_compacted(l, KeepLists(slots.data(), 2, kRows, kRows));
    const RopeSpec& rope = e.spec->layers[1].attention.rope;
    const uint32_t n = one.n_heads * one.head_dim, half = one.head_dim / 2;
    const auto row_at = [&](uint32_t slot, const auto& position) {
      std::vector<float> x(n), cos(half), sin(half);
      for (uint32_t i = 0; i < n; ++i) x[i] = std::sin(static_cast<float>(slot * n + i * i));
      for (uint32_t h = 0; h < one.n_heads; ++h) {
        for (uint32_t j = 0; j < half; ++j) {
          const double a = position(h) * std::pow(rope.freq_base, -2.0 * j / one.head_dim);
          cos[j] = static_cast<float>(std::cos(a)), sin[j] = static_cast<float>(std::sin(a));
        }
        cpu::rope_apply(cpu::kScalarKernels, rope.pairs, x.data() + h * one.head_dim, 1,
                        one.head_dim, one.head_dim, cos.data(), sin.data());
      }
      return x;
    };
    const auto before = [&](uint32_t slot) {
      return row_at(slot, [&](uint32_t h) { return double{1.0} * ledger.position(1, h, slot); });
    };
    std::vector<std::byte> stored(one.k_row_bytes);
    for (uint32_t i = 0; i < kRows; ++i) {
      std::vector<float> row = before(i);
      kv_rotate(row.data(), n, kv_rotation(one.k_dtype, one.head_dim));
      ASSERT_TRUE(kv_encode_row(one.k_dtype, row.data(), n, stored.data()).is_ok());
      ASSERT_TRUE(store.write_rows(1, false, i, 1, stored.data()).is_ok());
    }
    std::vector<std::byte> rows_before(kRows * one.k_row_bytes), rows_after(rows_before.size());
    ASSERT_TRUE(store.read_rows(1, false, 0, kRows, rows_before.data()).is_ok());
    KeyShifter shifter;
    shifter.reserve(*e.spec, kCtx);
    const Status shifted = shifter.shift_rows(&store, 1, ledger, kShift);
    ASSERT_TRUE(shifted.is_ok()) << shifted.text();
    // What stays is not encoded again: it would be rounded again whenever a context ends.
    ASSERT_TRUE(store.read_rows(1, false, 0, kRows, rows_after.data()).is_ok());
    const bool whole_blocks = one.head_dim % kv_codec(one.k_dtype)->block == 0;
    for (uint32_t i = 0; i < kRows; ++i) {
      const std::byte* rows[2] = {rows_before.data() + i * one.k_row_bytes,
                                  rows_after.data() + i * one.k_row_bytes};
      for (uint32_t h = 0; h < one.n_heads; ++h) {
        const bool stays = ledger.positions_behind(1, h, i, kShift) == 0;
        EXPECT_EQ(stays, h == 1 || i >= 25);
        if (!stays || (!whole_blocks && i < 25)) continue;
        std::vector<float> was(one.head_dim), is(one.head_dim);
        for (const auto& [row, to] : {std::pair{rows[0], &was}, std::pair{rows[1], &is}}) {
          ASSERT_TRUE(kv_decode_row(one.k_dtype, row, n, h * one.head_dim, one.head_dim, to->data())
                          .is_ok());
        }
        EXPECT_EQ(was, is) << "row " << i << ", head " << h << ", kv " << kv;
      }
      if (i < 25) continue;
      EXPECT_EQ(std::memcmp(rows[0], rows[1], one.k_row_bytes), 0) << i << ", " << kv;
    }
    // One that keeps the rotations of a single far multiple computes the others again: the same
    // bits.
    KeyShifter narrow;
    narrow.reserve(*e.spec, 64);
    EXPECT_LT(narrow.bytes(), shifter.bytes());
    std::vector<std::byte> again(rows_after.size());
    ASSERT_TRUE(store.write_rows(1, false, 0, kRows, rows_before.data()).is_ok());
    ASSERT_TRUE(narrow.shift_rows(&store, 1, ledger, kShift).is_ok());
    ASSERT_TRUE(store.read_rows(1, false, 0, kRows, again.data()).is_ok());
    EXPECT_EQ(again, rows_after);
    // Angles that were computed for one layer are not used for another whose RoPE differs.
    ModelSpec two = *e.spec;
    two.layers[0].attention.rope.freq_base *= 7;
    KeyShifter both;
    both.reserve(two, kCtx);
    for (const uint32_t layer : {0u, 1u}) {
      ASSERT_TRUE(store.write_rows(layer, false, 0, kRows, rows_before.data()).is_ok());
      ASSERT_TRUE(both.shift_rows(&store, layer, ledger, kShift).is_ok());
    }
    ASSERT_TRUE(store.read_rows(1, false, 0, kRows, again.data()).is_ok());
    EXPECT_EQ(again, rows_after);
    ledger.rebase(kShift);
    EXPECT_EQ(ledger.n_tokens(), 200u);
    EXPECT_EQ(ledger.position(1, 0, 3), 3u);     // was 27
    EXPECT_EQ(ledger.position(1, 0, 39), 151u);  // was 351
    EXPECT_EQ(ledger.position(1, 1, 0), 160u);   // was 360
    std::vector<float> got(n);
    for (uint32_t i = 0; i < kRows; ++i) {
      const std::vector<float> want = row_at(i, [&](uint32_t h) {
        return static_cast<double>(ledger.base()) + ledger.position(1, h, i);
      });
      ASSERT_TRUE(store.read_rows(1, false, i, 1, stored.data()).is_ok());
      ASSERT_TRUE(kv_decode_row(one.k_dtype, stored.data(), n, 0, n, got.data()).is_ok());
      kv_unrotate(got.data(), n, kv_rotation(one.k_dtype, one.head_dim));
      EXPECT_LT(distance(got, want), static_cast<double>(bar)) << "row " << i << ", kv " << kv;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Endless, TurnedKeys,
                         ::testing::Values(test::tiny_qwen3(), test::tiny_llama()),
                         [](const auto& info) { return info.param.arch; });

void expect_full(const Chat& chat, uint32_t n, int32_t native, const std::string& text) {
  sharpi_error e = SHARPI_ERROR_INIT;
  const std::vector<int32_t> tokens(n, 1);
  EXPECT_EQ(sharpi_session_prefill(chat.get(), tokens.data(), n, nullptr, nullptr, &e),
            SHARPI_E_KV_FULL);
  EXPECT_EQ(e.native_code, native) << e.text;
  EXPECT_NE(std::string(e.text).find(text), std::string::npos) << e.text;
}

TEST(Endless, AFullSessionSaysOfWhatAndWhatHelps) {
  const MadeModel qwen(test::tiny_qwen3()), gemma(test::tiny_gemma4kv());
  const Loaded plain = load(qwen.path(), setup_with([](auto* p, auto* s) {
                              bounded(64, 4)(p, s);
                              s->kv_budget = 0;
                              s->recency = SHARPI_UNSET;
                            }));
  Chat chat(plain.model.get());
  chat.prefill(qwen.tokens(60));
  expect_full(chat, 5, SHARPI_KV_FULL_CONTEXT,
              "truncate it, or take a larger n_ctx or a session with");
  sharpi_compact_params c;
  sharpi_compact_params_init(&c, sizeof c);
  c.budget = 20;
  c.recency = 4;
  c.headroom = 2;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_compact(chat.get(), &c, nullptr, &e), SHARPI_OK) << text_of(e);
  expect_full(chat, 3, SHARPI_KV_FULL_SLOTS, "sharpi_session_reserve() commits more, up to 64");
  ASSERT_EQ(sharpi_session_reserve(chat.get(), 24, &e), SHARPI_OK) << text_of(e);
  chat.prefill(qwen.tokens(4));
  const Loaded small = load(qwen.path(), setup_with(bounded(20, 4)));
  Chat tight(small.model.get());
  expect_full(tight, 21, SHARPI_KV_FULL_CONTEXT, "kv_budget and a chunk fit n_ctx: 24 tokens");
  const Loaded windowed = load(gemma.path(), setup_with(bounded(26, 4)));
  Chat narrow(windowed.model.get());
  expect_full(narrow, 27, SHARPI_KV_FULL_CONTEXT,
              "its sliding window, rewind, drafts and a chunk fit n_ctx: 28 tokens");
}

}  // namespace
}  // namespace sharpi::testing
