// SPDX-License-Identifier: MIT
// Adapters beside everything else that a session may have: drafts, budgets, weights in the mapped
// file, saved sessions that somebody has forged, the host's log.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/hash.h"
#include "engine/adapter_case.h"
#include "engine/session_blob.h"
#include "support/golden.h"

namespace sharpi::testing {
namespace {

/// Drafts are made without the adapter and verified with it, so they change nothing but the pace;
/// rows of recurrent layers that turn out right are applied later, with what the adapter added.
TEST(AdapterWays, DraftsChangeNothing) {
  const auto fixture = find_fixture("tiny-qwen35");
  ASSERT_TRUE(fixture);
  const auto golden = load_golden(fixture->golden_path);
  ASSERT_TRUE(golden.is_ok());
  const MadeAdapter made(*mapped_spec(fixture->gguf_path), 4, 100, 0.1);
  const Loaded l =
      load(fixture->gguf_path, setup_with([](sharpi_plan_params* p, sharpi_session_params* s) {
             with_rank(4, SHARPI_ARITHMETIC_FAST)(p, s);
             p->n_sessions = 2;
             s->n_ctx = 512;
             s->n_draft = 4;
             s->drafters = SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MTP;
           }));
  ASSERT_TRUE(l.model);
  const AdapterPtr a = load_adapter(l.model.get(), made.path());
  sharpi_session_params p;
  sharpi_session_params_init(&p, sizeof p);
  p.n_ctx = 512;
  p.k_dtype = p.v_dtype = SHARPI_KV_F32;
  Chat plain(l.model.get(), &p), drafting(l.model.get()), without(l.model.get(), &p);
  choose(plain, {{a.get(), 1.0f, 0}});
  choose(drafting, {{a.get(), 1.0f, 0}});
  const std::vector<int32_t>& prompt = golden.value().cases.at(0).tokens;
  for (Chat* c : {&plain, &drafting, &without}) c->prefill(prompt);
  const std::vector<int32_t> want = plain.greedy(48);
  EXPECT_NE(want, without.greedy(48)) << "the adapter would not be noticed";
  sharpi_sampler_params greedy;
  sharpi_sampler_params_init(&greedy, sizeof greedy);
  greedy.temperature = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_set_sampler(drafting.get(), &greedy, &e), SHARPI_OK) << text_of(e);
  std::vector<int32_t> got;
  while (got.size() < want.size()) {
    int32_t some[8];
    uint32_t n = 0;
    ASSERT_EQ(sharpi_session_step(drafting.get(), nullptr, some, 8, &n, &e), SHARPI_OK)
        << text_of(e);
    got.insert(got.end(), some, some + n);
  }
  got.resize(want.size());
  EXPECT_EQ(got, want);
  sharpi_draft_stats stats{};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(sharpi_session_drafts(drafting.get(), &stats, &e), SHARPI_OK) << text_of(e);
  EXPECT_GT(stats.n_drafted, 0u);
}

/// A bounded session looks ahead with its adapters, too: it keeps what one over merged weights
/// keeps, and forgets with the beginning of its context who has read it.
TEST(AdapterWays, BoundedSessionsKeepWhatMergedOnesKeep) {
  const test::ModelRecipe recipe = for_tier(test::tiny_qwen3());
  const MadeModel base(recipe);
  const auto spec = mapped_spec(base.path());
  const MadeAdapter made(*spec, 4, 100);
  test::ModelFile merged_file(recipe);
  merge(&merged_file, *spec, made.path(), 1.0);
  const test::TempFile merged_path;
  ASSERT_TRUE(merged_file.write(merged_path.path()));
  const auto bounded = [](uint32_t rank) {
    return setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
      with_rank(rank)(p, s);
      p->n_sessions = 2;
      s->n_ctx = 128;
      s->kv_budget = 48;
      s->recency = 8;
      s->capture_window = 16;
    });
  };
  const Loaded one = load(base.path(), bounded(4)), two = load(merged_path.path(), bounded(0));
  ASSERT_TRUE(one.model && two.model);
  const AdapterPtr a = load_adapter(one.model.get(), made.path());
  Chat adapted(one.model.get()), merged(two.model.get()), plain(one.model.get());
  choose(adapted, {{a.get(), 1.0f, 0}});
  const auto prompt = base.tokens(120);
  for (Chat* c : {&adapted, &merged, &plain}) c->prefill(prompt);
  const auto kept = [&](const Chat& c) {
    std::vector<uint32_t> all;
    for (uint32_t layer = 0; layer < recipe.n_layers; ++layer) {
      for (uint32_t head = 0; head < recipe.n_kv_heads; ++head) {
        std::vector<uint32_t> rows(128);
        uint32_t n = 0;
        sharpi_error e = SHARPI_ERROR_INIT;
        EXPECT_EQ(sharpi_session_kept(c.get(), layer, head, rows.data(), 128, &n, &e), SHARPI_OK);
        all.insert(all.end(), rows.begin(), rows.begin() + n);
      }
    }
    return all;
  };
  EXPECT_EQ(kept(adapted), kept(merged));
  EXPECT_NE(kept(adapted), kept(plain)) << "other rows without the adapter";
  EXPECT_LE(distance(adapted.logits(), merged.logits()), 1e-3);
  choose(adapted, {});
  EXPECT_EQ(adapted.info().n_other_tokens, 120u);
  uint32_t before = 120;
  for (int32_t t = 0; t < 80; ++t) {
    adapted.decode(t);
    const sharpi_session_summary s = adapted.info();
    EXPECT_LE(s.n_other_tokens, std::min(before, s.n_tokens));
    before = s.n_other_tokens;
  }
  EXPECT_LT(before, 120u) << "the context has moved on";
}

TEST(AdapterWays, MappedWeightsAreTheSame) {
  const MadeModel base(test::tiny_qwen35moe());
  const MadeAdapter made(*mapped_spec(base.path()), 4, 100);
  std::vector<std::vector<Logits>> got;
  for (const sharpi_load_mode mode : {SHARPI_LOAD_COPY, SHARPI_LOAD_MAP}) {
    const Loaded l =
        load(base.path(), setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
               with_rank(4)(p, s);
               p->load_mode = mode;
             }));
    const AdapterPtr a = load_adapter(l.model.get(), made.path());
    Chat chat(l.model.get());
    choose(chat, {{a.get(), 1.0f, 0}});
    got.push_back(chat.all_logits(base.tokens(20), 32));
  }
  expect_same_rows(got[1], got[0], "mapped");
}

TEST(AdapterWays, ForgedBlobsAreRefused) {
  const MadeModel base(test::tiny_qwen3());
  const MadeAdapter made(*mapped_spec(base.path()), 4, 100);
  const Loaded l = load(base.path(), setup_with(with_rank(4)));
  const AdapterPtr a = load_adapter(l.model.get(), made.path());
  Chat chat(l.model.get());
  chat.prefill(base.tokens(8));
  choose(chat, {{a.get(), 1.0f, 0}});
  const std::vector<char> good = saved(chat);
  const auto refused = [&](uint64_t id, uint32_t n_other, uint32_t reserved) {
    std::vector<char> blob = good;
    const BlobAdapters forged{id, n_other, reserved};
    std::memcpy(blob.data() + sizeof(BlobHeader), &forged, sizeof forged);
    const size_t end = blob.size() - kBlobSumBytes;
    const uint64_t sum = striped_hash64(blob.data(), end);
    std::memcpy(blob.data() + end, &sum, sizeof sum);
    sharpi_error e = SHARPI_ERROR_INIT;
    return sharpi_session_restore(chat.get(), blob.data(), blob.size(), &e);
  };
  const uint64_t id = chat.info().adapters_id;
  EXPECT_EQ(refused(id, 8, 0), SHARPI_OK) << "as it was";
  EXPECT_EQ(refused(id, 9, 0), SHARPI_E_FORMAT) << "more than there are tokens";
  EXPECT_EQ(refused(id, 8, 1), SHARPI_E_FORMAT);
  EXPECT_EQ(refused(0, 0, 0), SHARPI_E_FORMAT) << "the flag says that there is something";
  EXPECT_EQ(refused(id + 1, 8, 0), SHARPI_E_MISMATCH);
  EXPECT_EQ(refused(0, 8, 0), SHARPI_E_MISMATCH);
  EXPECT_EQ(chat.info().n_other_tokens, 8u);
}

TEST(AdapterWays, TheLogSaysWhatWasLoaded) {
  std::vector<std::string> lines;
  const MadeModel base(test::tiny_qwen3());
  const MadeAdapter made(*mapped_spec(base.path()), 4, 100);
  ModelSetup setup = setup_with(with_rank(4));
  setup.edit_context = [&](sharpi_context_params* p) {
    p->log_level = SHARPI_LOG_INFO;
    p->log_user_data = &lines;
    p->log = [](void* to, sharpi_log_level, const char* text, size_t n) {
      static_cast<std::vector<std::string>*>(to)->emplace_back(text, n);
    };
  };
  const Loaded l = load(base.path(), setup);
  lines.clear();
  const AdapterPtr a = load_adapter(l.model.get(), made.path());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].rfind("loaded the adapter " + made.path() + ": 14 weights, rank 4, ", 0), 0u)
      << lines[0];
}

}  // namespace
}  // namespace sharpi::testing
