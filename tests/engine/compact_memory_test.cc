// SPDX-License-Identifier: MIT
// Compaction as storage: memory really goes back, capacity is what was promised, bounded sessions
// stay in what the plan priced, and what is not a full-attention row is left alone.
#include <unistd.h>

#include <cstdio>

#include "engine_case.h"
#include "support/needle.h"
#include "support/session_rows.h"

namespace sharpi::testing {
namespace {

using Report = sharpi_compact_report;

Report compact(Chat& chat, const sharpi_compact_params& p) {
  Report r{};
  r.struct_size = sizeof r;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_compact(chat.get(), &p, &r, &e), SHARPI_OK) << text_of(e);
  return r;
}

sharpi_compact_params small(sharpi_policy policy, uint32_t budget, uint32_t recency = 8) {
  sharpi_compact_params p = compact_params(policy, budget);
  p.recency = recency;
  return p;
}

std::vector<uint32_t> kept(const Chat& chat, uint32_t layer, uint32_t head) {
  std::vector<uint32_t> out(8192);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_kept(chat.get(), layer, head, out.data(), 8192, &n, &e), SHARPI_OK)
      << text_of(e);
  out.resize(n);
  return out;
}

bool stores_slots(const Chat& chat, uint32_t layer) {
  uint32_t n = 0;
  return sharpi_session_kept(chat.get(), layer, 0, nullptr, 0, &n, nullptr) != SHARPI_E_UNSUPPORTED;
}

Edit captured(uint32_t n_ctx, sharpi_kv_dtype kv = SHARPI_KV_F32, uint32_t window = 16) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 64;
    p->deterministic = 1;
    s->n_ctx = n_ctx;
    s->k_dtype = s->v_dtype = kv;
    s->capture_window = window;
  };
}

uint64_t resident_bytes() {
  long pages = 0, resident = 0;
  std::FILE* f = std::fopen("/proc/self/statm", "r");
  if (f == nullptr) return 0;
  const int n = std::fscanf(f, "%ld %ld", &pages, &resident);
  std::fclose(f);
  return n == 2 ? static_cast<uint64_t>(resident) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE))
                : 0;
}

/// Bytes in use: of the host's memory, or of the device's.
uint64_t in_use(const sharpi_context* context) {
  return on_gpu() ? UINT64_MAX / 2 - free_device_bytes(context) : resident_bytes();
}

TEST(CompactMemory, WhatIsInUseShrinksByWhatTheReportSays) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_layers = 4;
  recipe.n_heads = recipe.n_kv_heads = 4;
  recipe.head_dim = 128;
  // A device gives memory back in larger pieces.
  const uint32_t n_ctx = recipe.n_ctx = on_gpu() ? 65536 : 8192;
  const MadeModel file(recipe);
  for (const sharpi_kv_dtype kv : stored_dtypes()) {
    const Loaded l = load(file.path(), setup_with(captured(n_ctx, kv)));
    Chat chat(l.model.get());
    chat.prefill(file.tokens(700));
    const uint64_t before = in_use(l.context.get());
    sharpi_compact_params p = small(SHARPI_POLICY_AUTO, 100);
    p.headroom = 28;
    const Report r = compact(chat, p);
    const uint64_t after = in_use(l.context.get()), freed = r.held_before - r.held_after;
    EXPECT_EQ(r.held_after, chat.info().kv_held_bytes);
    EXPECT_LT(r.held_after, r.held_before / 16);
    ASSERT_GT(freed, (kv == SHARPI_KV_Q4 ? 16u : 30u) << 20);
    ASSERT_GT(before, after);
    EXPECT_GT(before - after, freed - freed / 20) << dtype_text(kv);
    EXPECT_LT(before - after, freed + freed / 20) << dtype_text(kv);
    const int32_t t = chat.argmax();
    chat.decode(t);  // what stayed is still there
    EXPECT_EQ(chat.info().n_tokens, 701u);
  }
}

TEST(CompactMemory, AProbeNeedsNoPlannedWindowAndThePlanSaysWhatOneWouldTake) {
  for (const test::ModelRecipe& recipe :
       test::with_newer_kinds({test::tiny_qwen3(), test::tiny_gemma4kv(), test::tiny_qwen35()})) {
    SCOPED_TRACE(recipe.arch);
    const MadeModel file(recipe);
    const Loaded bare = load(file.path(), setup_with(captured(512, SHARPI_KV_F32, 0))),
                 planned = load(file.path(), setup_with(captured(512, SHARPI_KV_F32, 64)));
    EXPECT_EQ(bare.plan_info.capture_window, 0u);
    EXPECT_GT(bare.plan_info.capture_bytes, 0u);
    EXPECT_EQ(bare.plan_info.capture_bytes, planned.plan_info.capture_bytes);
    EXPECT_EQ(bare.plan_info.session_held_bytes + bare.plan_info.capture_bytes,
              planned.plan_info.session_held_bytes);
    const std::vector<int32_t> probe = file.tokens(12, 5);
    sharpi_compact_params p = small(SHARPI_POLICY_AUTO, 40);
    p.probe = probe.data();
    p.n_probe = 12;
    std::vector<std::vector<uint32_t>> stay;
    for (const Loaded* l : {&bare, &planned}) {
      Chat chat(l->model.get());
      chat.prefill(file.tokens(200));
      const Report r = compact(chat, p);
      EXPECT_EQ(r.rows_after, 40u);
      uint32_t layer = 0;
      while (!stores_slots(chat, layer)) ++layer;
      stay.push_back(kept(chat, layer, 0));
      chat.decode(7);
    }
    EXPECT_EQ(stay[0], stay[1]);
  }
}

TEST(CompactMemory, CapacityIsKeptPlusHeadroomUntilReserved) {
  const MadeModel file(test::tiny_qwen3());
  const Loaded l = load(file.path(), setup_with(captured(512)));
  Chat tight(l.model.get()), roomy(l.model.get());
  for (Chat* c : {&tight, &roomy}) c->prefill(file.tokens(300));
  sharpi_compact_params p = small(SHARPI_POLICY_SNAPKV, 60);
  compact(roomy, p);
  p.headroom = 5;
  EXPECT_EQ(compact(tight, p).capacity, 65u);
  const auto next = file.tokens(40, 7);
  for (size_t i = 0; i < 5; ++i) tight.decode(next[i]);
  const std::vector<char> full = saved(tight);
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_decode(tight.get(), next[5], &e), SHARPI_E_KV_FULL);
  EXPECT_NE(std::string(e.text).find("capacity of 65 slots"), std::string::npos) << e.text;
  EXPECT_EQ(sharpi_session_prefill(tight.get(), next.data(), 2, nullptr, nullptr, &e),
            SHARPI_E_KV_FULL);
  EXPECT_TRUE(saved(tight) == full);
  EXPECT_EQ(sharpi_session_reserve(tight.get(), 513, &e), SHARPI_E_DOES_NOT_FIT);
  EXPECT_TRUE(saved(tight) == full);
  ASSERT_EQ(sharpi_session_reserve(tight.get(), 200, &e), SHARPI_OK) << text_of(e);
  EXPECT_GE(tight.info().capacity, 200u);
  EXPECT_TRUE(saved(tight) == full);
  for (size_t i = 0; i < 5; ++i) roomy.decode(next[i]);
  for (size_t i = 5; i < next.size(); ++i) {
    tight.decode(next[i]);
    roomy.decode(next[i]);
    ASSERT_TRUE(same_bits(tight.logits(), roomy.logits())) << i;
  }
}

TEST(CompactMemory, HeadsThatSplitABlockAreKeptTogetherOrRefusedByName) {
  if (on_gpu()) GTEST_SKIP() << "the GPU takes no heads of 16 elements";
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.head_dim = 16;
  recipe.n_heads = recipe.n_kv_heads = 4;
  const MadeModel file(recipe);
  const Loaded l = load(file.path(), setup_with(captured(256, SHARPI_KV_Q8_0)));
  Chat chat(l.model.get());
  chat.prefill(file.tokens(200));
  const std::vector<char> before = saved(chat);
  sharpi_error e = SHARPI_ERROR_INIT;
  for (const sharpi_policy policy :
       {SHARPI_POLICY_SNAPKV, SHARPI_POLICY_DEFENSIVE, SHARPI_POLICY_VALUE, SHARPI_POLICY_SPAN,
        SHARPI_POLICY_RETRIEVAL}) {
    const sharpi_compact_params p = small(policy, 50);
    ASSERT_EQ(sharpi_session_compact(chat.get(), &p, nullptr, &e), SHARPI_E_UNSUPPORTED);
    EXPECT_NE(
        std::string(e.text).find("heads of 16 elements, which cannot be kept one by one in q8_0"),
        std::string::npos)
        << e.text;
    EXPECT_TRUE(saved(chat) == before);
  }
  EXPECT_EQ(compact(chat, small(SHARPI_POLICY_GLOBAL, 50)).rows_after, 50u);
  chat.decode(1);
}

TEST(CompactMemory, WhatIsNoFullAttentionRowStaysBitForBit) {
  for (const test::ModelRecipe& recipe :
       {test::tiny_gemma4(), test::tiny_gemma4kv(), test::tiny_qwen35(), test::tiny_qwen35moe()}) {
    const MadeModel file(recipe);
    const auto spec = spec_of(file.path());
    ASSERT_TRUE(spec);
    const Loaded l = load(file.path(), setup_with(captured(512)));
    Chat chat(l.model.get());
    chat.prefill(file.tokens(300));
    const SessionRows before = session_rows(*spec, saved(chat));
    compact(chat, small(SHARPI_POLICY_SPAN, 60));
    const SessionRows after = session_rows(*spec, saved(chat));
    size_t n_other = 0, n_rows = 0;
    for (uint32_t i = 0; i < spec->n_layers(); ++i) {
      EXPECT_TRUE(before.others[i] == after.others[i]) << recipe.arch << " layer " << i;
      n_other += before.others[i].empty() ? 0 : 1;
      const AttentionSpec& a = spec->layers[i].attention;
      const bool full = spec->layers[i].mixer == MixerKind::kAttention && a.window == 0;
      if (full && a.kv_source >= 0) {  // a reader has its owner's rows
        for (uint32_t h = 0; h < a.n_kv_heads; ++h)
          EXPECT_EQ(kept(chat, i, h), kept(chat, static_cast<uint32_t>(a.kv_source), h));
      }
      if (before.layers[i].n_rows == 0) continue;
      ++n_rows;
      ASSERT_EQ(after.layers[i].n_rows, 60u);
      // Every row that stayed is the one that was at its position.
      for (uint32_t h = 0; h < a.n_kv_heads; ++h) {
        for (uint32_t t = 0; t < 60; ++t) {
          const uint32_t from = after.layers[i].positions[h][t];
          for (uint32_t d = 0; d < a.head_dim; ++d) {
            const auto at = [&](uint32_t row) {
              return (uint64_t{row} * a.n_kv_heads + h) * a.head_dim + d;
            };
            ASSERT_EQ(after.layers[i].k[at(t)], before.layers[i].k[at(from)]);
            ASSERT_EQ(after.layers[i].v[at(t)], before.layers[i].v[at(from)]);
          }
        }
      }
    }
    EXPECT_GT(n_other, 0u) << recipe.arch;
    EXPECT_GT(n_rows, 0u) << recipe.arch;
  }
}

TEST(CompactMemory, TheSameRowsStayWithAnyNumberOfThreads) {
  for (const test::ModelRecipe& recipe : {test::tiny_qwen3(), test::tiny_gemma4()}) {
    const MadeModel file(recipe);
    std::vector<std::vector<char>> first;
    for (const uint32_t threads : {1u, 2u, 5u}) {
      const Loaded l = load(file.path(), setup_with(captured(2048, SHARPI_KV_BF16), threads));
      for (sharpi_policy p = SHARPI_POLICY_GLOBAL; p <= SHARPI_POLICY_RETRIEVAL; ++p) {
        for (int again = 0; again < 2; ++again) {
          Chat chat(l.model.get());
          chat.prefill(file.tokens(1200));  // three spans of the scoring kernel
          compact(chat, small(p, 100));
          const std::vector<char> now = saved(chat);
          if (first.size() < p) first.push_back(now);
          EXPECT_TRUE(now == first[p - 1]) << recipe.arch << " policy " << p << ", " << threads;
        }
      }
    }
  }
}

TEST(CompactMemory, LayerBudgetsAddUpAndOwnGroupsGiveTheirOwnMemoryBack) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_layers = 4;
  const MadeModel file(recipe);
  for (const sharpi_layer_budget mode :
       {SHARPI_LAYER_BUDGET_PYRAMID, SHARPI_LAYER_BUDGET_ENTROPY}) {
    const Loaded l =
        load(file.path(), setup_with([](sharpi_plan_params* p, sharpi_session_params* s) {
               captured(1024)(p, s);
               s->per_layer_budgets = 1;
             }));
    Chat chat(l.model.get());
    chat.prefill(file.tokens(600));
    sharpi_compact_params p = small(SHARPI_POLICY_SNAPKV, 80);
    p.layer_budget = mode;
    p.headroom = 10;
    compact(chat, p);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      sharpi_layer_info info{};
      info.struct_size = sizeof info;
      sharpi_error e = SHARPI_ERROR_INIT;
      ASSERT_EQ(sharpi_session_layer(chat.get(), i, &info, &e), SHARPI_OK) << text_of(e);
      sum += info.n_slots;
      EXPECT_EQ(info.capacity, info.n_slots + 10) << "layer " << i;
      EXPECT_EQ(kept(chat, i, 0).size(), info.n_slots);
    }
    EXPECT_EQ(sum, 320u);
    sharpi_session* twin = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_fork(chat.get(), &twin, &e), SHARPI_OK) << text_of(e);
    EXPECT_TRUE(saved(Chat(SessionPtr(twin), chat.n_vocab())) == saved(chat));
    EXPECT_GT(chat.info().n_slots_max, 80u);
    chat.decode(3);
  }
}

TEST(CompactMemory, ACompactedSessionIsTruncatedForkedAndRestoredOrRefused) {
  for (const test::ModelRecipe& recipe : {test::tiny_qwen3(), test::tiny_qwen35()}) {
    const MadeModel file(recipe);
    const Loaded l = load(file.path(), setup_with(captured(512)));
    const Loaded plain = load(file.path(), setup_with(captured(512, SHARPI_KV_F32, 0)));
    Chat chat(l.model.get());
    chat.prefill(file.tokens(300));
    compact(chat, small(SHARPI_POLICY_SPAN, 60));
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_session* raw = nullptr;
    ASSERT_EQ(sharpi_session_fork(chat.get(), &raw, &e), SHARPI_OK) << text_of(e);
    Chat twin(SessionPtr(raw), chat.n_vocab()), elsewhere(plain.model.get());
    const std::vector<char> blob = saved(chat);
    ASSERT_EQ(sharpi_session_restore(elsewhere.get(), blob.data(), blob.size(), &e), SHARPI_OK)
        << text_of(e);
    EXPECT_TRUE(saved(twin) == blob);
    for (const int32_t t : file.tokens(20, 5)) {
      for (Chat* c : {&chat, &twin, &elsewhere}) c->decode(t);
      ASSERT_TRUE(same_bits(chat.logits(), twin.logits()));
      ASSERT_TRUE(same_bits(chat.logits(), elsewhere.logits()));
    }
    const std::vector<char> later = saved(chat);
    EXPECT_EQ(sharpi_session_truncate(chat.get(), 299, &e), SHARPI_E_STATE);
    EXPECT_NE(std::string(e.text).find("were evicted"), std::string::npos) << e.text;
    EXPECT_TRUE(saved(chat) == later);
    if (l.info.is_hybrid == 0) {  // rows that came after the compaction may go again
      ASSERT_EQ(sharpi_session_truncate(chat.get(), 310, &e), SHARPI_OK) << text_of(e);
      EXPECT_EQ(chat.info().n_slots_max, 70u);
    }
    ASSERT_EQ(sharpi_session_truncate(chat.get(), 0, &e), SHARPI_OK) << text_of(e);
    EXPECT_EQ(chat.info().is_compacted, 0u);
    Chat fresh(l.model.get());
    for (Chat* c : {&chat, &fresh}) c->prefill(file.tokens(50, 9));
    EXPECT_TRUE(same_bits(chat.logits(), fresh.logits()));
  }
}

class Bounded : public ModelTest {};

uint64_t held(const sharpi_plan* plan, uint32_t purpose) {
  std::vector<sharpi_memory_row> rows(64);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_plan_rows(plan, rows.data(), sizeof rows[0], 64, &n, &e), SHARPI_OK);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < n; ++i) sum += rows[i].purpose == purpose ? rows[i].held_bytes : 0;
  return sum;
}

TEST_P(Bounded, HoldsAtMostBudgetAndChunkRowsAndThePlanPricesExactlyThat) {
  constexpr uint32_t kBudget = 96, kChunk = 48;
  for (const uint32_t lookahead : {0u, 1u}) {
    const Loaded l = load(path(), setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
                            p->n_chunk = kChunk;
                            s->n_ctx = 2048;
                            s->kv_budget = kBudget;
                            s->recency = 16;
                            s->lookahead = lookahead;
                          }));
    Chat chat(l.model.get());
    EXPECT_EQ(held(l.plan.get(), SHARPI_ROW_KV), chat.info().kv_held_bytes);
    const auto text = tokens(700);
    const auto check = [&] {
      const sharpi_session_summary s = chat.info();
      ASSERT_LE(s.n_slots_max, kBudget + kChunk);
      ASSERT_EQ(s.capacity, kBudget + kChunk);
      ASSERT_EQ(s.kv_held_bytes, held(l.plan.get(), SHARPI_ROW_KV));
    };
    uint32_t done = 0;
    for (const uint32_t n : {700u - 330u, 1u, 47u, 48u, 49u, 100u, 85u}) {  // calls of any length
      chat.prefill(text.data() + done, n);
      done += n;
      check();
    }
    for (int i = 0; i < 150; ++i) {
      chat.decode(chat.argmax());
      check();
    }
    EXPECT_EQ(chat.info().n_tokens, 850u);
    EXPECT_GT(chat.info().n_slots_max, kBudget - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, Bounded, ::testing::ValuesIn(compactable_models()), model_name);

TEST(BoundedPlan, ALongContextCostsTheKvOfItsBudget) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_ctx = 131072;
  const MadeModel file(recipe);
  const auto kv_bytes = [&](uint32_t n_ctx, uint32_t budget) {
    const ContextPtr context = make_context({});
    PlanPtr plan;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(try_plan(context.get(), file.path(),
                       setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
                         p->n_chunk = 512;
                         s->n_ctx = n_ctx;
                         s->kv_budget = budget;
                       }),
                       &plan, &e),
              SHARPI_OK)
        << text_of(e);
    return held(plan.get(), SHARPI_ROW_KV);
  };
  EXPECT_EQ(kv_bytes(131072, 8192 - 512), kv_bytes(8192, 0));
  EXPECT_GT(kv_bytes(131072, 0), 15 * kv_bytes(8192, 0));
}

TEST(BoundedPlan, SinksAndRecencyArePositionsOfThePrompt) {
  const MadeModel file(test::tiny_qwen3());
  const Loaded l =
      load(file.path(), setup_with([](sharpi_plan_params* p, sharpi_session_params* s) {
             p->n_chunk = 32;
             s->n_ctx = 512;
             s->kv_budget = 64;
             s->capture_window = 16;
             s->recency = 16;
             s->sinks = 5;
           }));
  Chat chat(l.model.get());
  chat.prefill(file.tokens(64 + 32 * 7));  // a chunk ends where the prompt does
  uint32_t from_last_chunks = 0;
  for (uint32_t layer = 0; layer < l.info.n_layers; ++layer) {
    for (uint32_t h = 0; h < 2; ++h) {
      const auto rows = kept(chat, layer, h);
      for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(rows[i], i) << "a sink";
      for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(rows[rows.size() - 1 - i], 287 - i) << "recent";
      // The ends of inner chunks have no privilege: not all of their last 16 rows are there.
      for (uint32_t end = 96; end < 256; end += 32) {
        const auto first = std::lower_bound(rows.begin(), rows.end(), end - 16);
        const auto last = std::lower_bound(rows.begin(), rows.end(), end);
        from_last_chunks += last - first == 16 ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(from_last_chunks, 0u);
}

}  // namespace
}  // namespace sharpi::testing
