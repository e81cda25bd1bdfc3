// SPDX-License-Identifier: MIT
// Layers of one session that hold different counts of rows: what `budget` means then, and that no
// row is written past committed memory, whatever the first layer of a group holds.
#include "api/backends.h"
#include "base/poison.h"
#include "engine_case.h"
#include "inner_engine.h"
#include "support/needle.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kLayers = 4;

test::ModelRecipe four_layers(uint64_t seed) {
  test::ModelRecipe r = test::tiny_qwen3();
  r.n_layers = kLayers;
  r.seed = seed;
  return r;
}

sharpi_compact_params shares(uint32_t budget, sharpi_layer_budget mode, uint32_t recency = 4) {
  sharpi_compact_params p = compact_params(SHARPI_POLICY_SNAPKV, budget);
  p.recency = recency;
  p.layer_budget = mode;
  p.headroom = 0;
  return p;
}

void compact(const Chat& chat, const sharpi_compact_params& p) {
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_compact(chat.get(), &p, nullptr, &e), SHARPI_OK) << text_of(e);
}

std::vector<sharpi_layer_info> layers_of(const Chat& chat) {
  std::vector<sharpi_layer_info> out(kLayers);
  for (uint32_t i = 0; i < kLayers; ++i) {
    out[i].struct_size = sizeof out[i];
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_layer(chat.get(), i, &out[i], &e), SHARPI_OK) << text_of(e);
  }
  return out;
}
std::vector<uint32_t> counts(const Chat& chat) {
  std::vector<uint32_t> out;
  for (const sharpi_layer_info& l : layers_of(chat)) out.push_back(l.n_slots);
  return out;
}
void expect_within_capacity(const Chat& chat, const std::string& what) {
  for (const sharpi_layer_info& l : layers_of(chat)) EXPECT_LE(l.n_slots, l.capacity) << what;
  EXPECT_LE(chat.info().n_slots_max, chat.info().capacity) << what;
}

Edit plain_session(uint32_t per_layer) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 64;
    p->n_sessions = 2;
    p->deterministic = 1;
    s->n_ctx = 600;
    s->capture_window = 8;
    s->per_layer_budgets = per_layer;
    s->k_dtype = s->v_dtype = SHARPI_KV_F32;
  };
}

/// Reads tokens until a call says that the slots are used up.
void fill(const Chat& chat, const std::vector<int32_t>& tokens) {
  sharpi_status s = SHARPI_OK;
  for (size_t i = 0; s == SHARPI_OK && i < tokens.size(); ++i) {
    sharpi_error e = SHARPI_ERROR_INIT;
    s = sharpi_session_decode(chat.get(), tokens[i], &e);
    if (s != SHARPI_OK) {
      EXPECT_EQ(s, SHARPI_E_KV_FULL) << text_of(e);
    }
  }
  EXPECT_EQ(s, SHARPI_E_KV_FULL) << "more was read than the capacity holds";
}

TEST(UnevenLayers, APlainSessionIsFullWhenItsFullestLayerIs) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const MadeModel file(four_layers(seed));
    for (const sharpi_layer_budget mode :
         {SHARPI_LAYER_BUDGET_PYRAMID, SHARPI_LAYER_BUDGET_ENTROPY}) {
      for (const uint32_t per_layer : {0u, 1u}) {
        const std::string what = "mode " + std::to_string(mode) + ", groups of their own " +
                                 std::to_string(per_layer) + ", seed " + std::to_string(seed);
        const Loaded l = load(file.path(), setup_with(plain_session(per_layer)));
        Chat chat(l.model.get());
        chat.prefill(file.tokens(100));
        sharpi_compact_params p = shares(40, mode);
        p.headroom = 3;
        compact(chat, p);
        const auto before = counts(chat);
        ASSERT_NE(*std::min_element(before.begin(), before.end()),
                  *std::max_element(before.begin(), before.end()))
            << what << ": the test says nothing";
        fill(chat, file.tokens(400, 2));
        expect_within_capacity(chat, what);
        EXPECT_EQ(chat.info().n_tokens, 103u) << what << ": three slots were free";
        saved(chat);
      }
    }
  }
}

TEST(UnevenLayers, GroupsOfTheirOwnChangeNothingThatIsComputed) {
  const MadeModel file(four_layers(1));
  for (const sharpi_layer_budget mode :
       {SHARPI_LAYER_BUDGET_PYRAMID, SHARPI_LAYER_BUDGET_ENTROPY}) {
    std::vector<Logits> seen;
    for (const uint32_t per_layer : {0u, 1u}) {
      const Loaded l = load(file.path(), setup_with(plain_session(per_layer)));
      Chat chat(l.model.get());
      chat.prefill(file.tokens(100));
      sharpi_compact_params p = shares(40, mode);
      p.headroom = 200;
      compact(chat, p);
      chat.prefill(file.tokens(90, 2));
      chat.decode(3);
      seen.push_back(chat.logits());
    }
    EXPECT_TRUE(same_bits(seen[0], seen[1])) << "mode " << mode;
  }
}

Edit bounded_session(uint32_t chunk, uint32_t budget) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = chunk;
    p->n_sessions = 2;
    s->n_ctx = 1000;
    s->kv_budget = budget;
    s->recency = 4;
    s->capture_window = 8;
    s->policy = SHARPI_POLICY_DEFENSIVE;
    s->k_dtype = s->v_dtype = SHARPI_KV_F32;
  };
}

TEST(UnevenLayers, ABoundedSessionStaysInWhatThePlanPriced) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const MadeModel file(four_layers(seed));
    for (const sharpi_layer_budget mode :
         {SHARPI_LAYER_BUDGET_EQUAL, SHARPI_LAYER_BUDGET_PYRAMID, SHARPI_LAYER_BUDGET_ENTROPY}) {
      for (const uint32_t budget : {8u, 16u, 20u}) {
        for (const bool forked : {false, true}) {
          const std::string what = "mode " + std::to_string(mode) + ", budget " +
                                   std::to_string(budget) + ", seed " + std::to_string(seed);
          const Loaded l = load(file.path(), setup_with(bounded_session(8, 16)));
          Chat chat(l.model.get());
          chat.prefill(file.tokens(23));
          compact(chat, shares(budget, mode));
          for (const uint32_t n : counts(chat)) EXPECT_LE(n, 16u) << what;
          expect_within_capacity(chat, what);
          if (forked) {
            sharpi_session* twin = nullptr;
            sharpi_error e = SHARPI_ERROR_INIT;
            ASSERT_EQ(sharpi_session_fork(chat.get(), &twin, &e), SHARPI_OK) << text_of(e);
            chat = Chat(SessionPtr(twin), chat.n_vocab());
          }
          chat.prefill(file.tokens(500, 2));
          expect_within_capacity(chat, what);
          for (int i = 0; i < 20; ++i) {
            chat.decode(i);
            expect_within_capacity(chat, what);
          }
          saved(chat);
        }
      }
    }
  }
}

TEST(UnevenLayers, WhatBudgetMeans) {
  const MadeModel file(four_layers(1));
  const Loaded l = load(file.path(), setup_with(plain_session(0)));
  Chat chat(l.model.get());
  chat.prefill(file.tokens(300));
  compact(chat, shares(100, SHARPI_LAYER_BUDGET_PYRAMID));
  const std::vector<uint32_t> pyramid = counts(chat);
  EXPECT_EQ(pyramid[0] + pyramid[1] + pyramid[2] + pyramid[3], 400u) << "100 a layer in the mean";
  EXPECT_GT(pyramid[0], 100u);
  EXPECT_LT(pyramid[3], 80u) << "the test says nothing";
  compact(chat, shares(80, SHARPI_LAYER_BUDGET_EQUAL));
  for (uint32_t i = 0; i < kLayers; ++i) {
    EXPECT_EQ(counts(chat)[i], std::min(80u, pyramid[i])) << "layer " << i;
  }
  compact(chat, shares(70, SHARPI_LAYER_BUDGET_PYRAMID));  // shares above a layer's rows go on
  const std::vector<uint32_t> again = counts(chat);
  EXPECT_EQ(again[0] + again[1] + again[2] + again[3], 280u);
}

/// A session of the CPU tier, without an engine around it.
class AppendSlot : public ::testing::Test {
 protected:
  void SetUp() override {
    if (on_gpu()) GTEST_SKIP() << "host memory only";
    file_.emplace(four_layers(1));
    auto engine = InnerEngine::open(file_->path(), api::make_backends);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    engine_ = engine.take();
    auto plan = engine_.plan([](sharpi_plan_params* p, sharpi_session_params* s) {
      p->n_gpu_layers = 0;
      p->n_chunk = 8;
      s->n_ctx = kCapacity;
    });
    ASSERT_TRUE(plan.is_ok()) << plan.status().text();
    const std::shared_ptr<const Plan> made = plan.take();
    auto model = engine_.load_tier(*made);
    ASSERT_TRUE(model.is_ok()) << model.status().text();
    model_ = model.take();
    auto session = model_->create_session(made->session);
    ASSERT_TRUE(session.is_ok()) << session.status().text();
    session_ = session.take();
    ledger_ = KvLedger(*engine_.spec, 0, 0);
  }
  static constexpr uint32_t kCapacity = 100;
  std::optional<MadeModel> file_;
  InnerEngine engine_;
  std::unique_ptr<TierModel> model_;
  std::unique_ptr<TierSession> session_;
  KvLedger ledger_;
};

TEST_F(AppendSlot, RefusesWhatWouldPassCommittedMemory) {
  const KvStore& store = session_->store();
  ledger_.commit(90);
  const auto slot = store.append_slot(2, ledger_, 10);
  ASSERT_TRUE(slot.is_ok()) << slot.status().text();
  EXPECT_EQ(slot.value(), 90u);
#ifdef NDEBUG
  const auto past = store.append_slot(2, ledger_, 11);
  ASSERT_FALSE(past.is_ok());
  EXPECT_EQ(past.status().code(), Code::kInternal);
  EXPECT_EQ(past.status().text(), "KV rows 90 to 101 of layer 2 exceed its capacity of 100");
#else
  EXPECT_DEATH({ (void)store.append_slot(2, ledger_, 11).is_ok(); }, "past committed memory");
#endif
}

TEST_F(AppendSlot, MappedMemoryBehindTheCapacityIsPoisoned) {
  if (!kPoisons) GTEST_SKIP() << "built without AddressSanitizer";
  KvStore& store = session_->store();
  const KvView v = store.view(1);
  EXPECT_FALSE(is_poisoned(v.k_row(kCapacity - 1)));
  EXPECT_TRUE(is_poisoned(v.k_row(kCapacity)));
  EXPECT_TRUE(is_poisoned(v.v_row(kCapacity)));
  EXPECT_TRUE(is_poisoned(v.k_row(127)));  // the last of the block; what follows has no memory
  store.shrink(0, 70);
  EXPECT_FALSE(is_poisoned(v.v_row(69)));
  EXPECT_TRUE(is_poisoned(v.v_row(70)));
  ASSERT_TRUE(store.reserve(0, 90).is_ok());
  EXPECT_FALSE(is_poisoned(v.v_row(89)));
  EXPECT_TRUE(is_poisoned(v.v_row(90)));
}

}  // namespace
}  // namespace sharpi::testing
