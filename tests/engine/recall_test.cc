// SPDX-License-Identifier: MIT
// Archives of evicted rows: what a recall brings back has its own position and bits, answers that a
// compaction lost come back, and whatever ends a call otherwise leaves session and archive as they
// were.
#include <algorithm>
#include <functional>
#include <random>
#include <set>

#include "recall_case.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kPrompt = 300;

Edit archived(uint32_t rows, sharpi_kv_dtype kv = SHARPI_KV_F32, bool replay = false) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 64;
    p->arithmetic = SHARPI_ARITHMETIC_EXACT;
    s->k_dtype = s->v_dtype = kv;
    s->n_ctx = 512;
    s->capture_window = 64;
    s->archive_rows = rows;
    s->replay = replay ? 1 : 0;
  };
}

class Recall : public ::testing::TestWithParam<test::ModelRecipe> {};

TEST_P(Recall, RowsComeBackWithTheirPositionsAndBits) {
  const MadeModel file(GetParam());
  const std::vector<int32_t> text = file.tokens(kPrompt), question = file.tokens(12, 5);
  for (const sharpi_kv_dtype kv : stored_dtypes()) {
    for (const bool replay : {false, true}) {
      const Loaded l = load(file.path(), setup_with(archived(512, kv, replay)));
      if (l.model == nullptr) continue;  // heads that this codec does not take
      Chat whole(l.model.get());
      whole.prefill(text);
      const Chat chat = whole.fork();
      compact(chat, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_SNAPKV, 60));
      const sharpi_recall_report r = recall(chat, wanted(question, 24));
      EXPECT_EQ(r.archived, kPrompt - 60);
      EXPECT_LE(r.rows_in, 24u);
      EXPECT_EQ(r.n_blocks, (kPrompt - 60) / 16);
      EXPECT_EQ(chat.info().n_slots_max, 60u);
      EXPECT_EQ(chat.info().n_tokens, kPrompt);
      ASSERT_NO_FATAL_FAILURE(expect_rows_of(file.path(), chat, whole));
      // Again, and after tokens that came meanwhile; what went out can come back.
      Chat on = chat.fork();
      for (Chat* c : {&on, &whole}) c->prefill(slice(text, 0, 40));
      const std::vector<int32_t> other = file.tokens(30, 8);
      recall(on, wanted(other, 50));
      EXPECT_EQ(on.info().n_slots_max, 100u);
      EXPECT_EQ(reachable(on), std::vector<uint32_t>{kPrompt + 40});
      sharpi_error e = SHARPI_ERROR_INIT;
      // Restored sessions are the same but for the archive.
      const std::vector<char> blob = saved(on);
      Chat restored(l.model.get());
      ASSERT_EQ(sharpi_session_restore(restored.get(), blob.data(), blob.size(), &e), SHARPI_OK)
          << text_of(e);
      EXPECT_TRUE(saved(restored) == blob);
      EXPECT_EQ(recall(restored, wanted(question, 24)).n_blocks, 0u);
      EXPECT_TRUE(saved(restored) == blob);
    }
  }
}

/// A fork has an archive of its own, with the same rows in it.
TEST_P(Recall, ForksRecallAlike) {
  const MadeModel file(GetParam());
  const std::vector<int32_t> text = file.tokens(kPrompt), question = file.tokens(12, 5);
  const Loaded l = load(file.path(), setup_with(archived(512)));
  const Chat chat(l.model.get());
  const_cast<Chat&>(chat).prefill(text);
  compact(chat, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_SNAPKV, 60));
  const Chat twin = chat.fork();
  const std::vector<char> before = saved(twin);
  const auto a = recall(chat, wanted(question, 24));
  EXPECT_TRUE(saved(twin) == before);
  const auto b = recall(twin, wanted(question, 24));
  EXPECT_TRUE(saved(twin) == saved(chat));
  EXPECT_EQ(a.total_rows, b.total_rows);
  EXPECT_GT(a.total_rows, 0u);
  // Emptied with the session.
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_truncate(twin.get(), 0, &e), SHARPI_OK) << text_of(e);
  const_cast<Chat&>(twin).prefill(slice(text, 0, 200));
  EXPECT_EQ(recall(twin, wanted(question, 24)).n_blocks, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Engine, Recall,
    ::testing::ValuesIn(test::with_newer_kinds({test::tiny_qwen3(), test::tiny_gemma4kv(),
                                                test::tiny_qwen35(), test::tiny_llama()})),
    [](const ::testing::TestParamInfo<test::ModelRecipe>& info) {
      return "m" + std::to_string(info.index);
    });

/// Heads with counts of their own, before and behind.
TEST(RecallByHead, EveryHeadKeepsItsCount) {
  const MadeModel file(test::tiny_qwen3());
  const std::vector<int32_t> text = file.tokens(kPrompt), question = file.tokens(12, 5);
  const Loaded l = load(file.path(), setup_with(archived(512, SHARPI_KV_Q8_0, true)));
  Chat chat(l.model.get());
  chat.prefill(text);
  compact(chat, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_REPLAY, 60));
  const std::vector<uint32_t> before = counts(chat);
  ASSERT_TRUE(std::adjacent_find(before.begin(), before.end(), std::not_equal_to<>()) !=
              before.end());
  const auto r = recall(chat, wanted(question, 24));
  EXPECT_GT(r.total_rows, 0u);
  EXPECT_EQ(counts(chat), before);
  Chat twin = chat.fork();
  for (Chat* c : {&chat, &twin}) c->prefill(slice(text, 0, 20));
  EXPECT_TRUE(same_bits(chat.logits(), twin.logits()));
  for (uint32_t h = 0; h < 2; ++h) {
    const auto rows = kept(chat, 1, h);
    EXPECT_EQ(std::set<uint32_t>(rows.begin(), rows.end()).size(), rows.size());
  }
}

/// A bounded session fills its archive while it reads and decodes, and when its context moves on.
TEST(RecallBounded, SessionsGoOn) {
  const MadeModel file(test::tiny_qwen3());
  const std::vector<int32_t> text = file.tokens(900), question = file.tokens(12, 5);
  const Loaded l =
      load(file.path(), setup_with([](sharpi_plan_params* p, sharpi_session_params* s) {
             archived(128)(p, s);
             s->kv_budget = 100;
           }));
  Chat chat(l.model.get());
  for (size_t at = 0; at < 900; at += 90) {
    chat.prefill(slice(text, at, at + 90));
    for (int32_t t = 0; t < 4; ++t) chat.decode(t);
    const uint32_t n = chat.info().n_slots_max;
    const auto r = recall(chat, wanted(question, 16));
    EXPECT_EQ(chat.info().n_slots_max, n);
    EXPECT_LE(r.archived, 128u);
    for (uint32_t h = 0; h < 2; ++h) {
      const std::vector<uint32_t> rows = kept(chat, 1, h);
      EXPECT_TRUE(std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) ==
                  rows.end());
    }
    EXPECT_EQ(r.archived > 0, at >= 90) << at;
  }
}

/// Prompts, compactions, recalls and truncations; a twin that is a fork at every second step goes
/// the same way. No row is ever there twice, and no count changes by a recall.
TEST(RecallSequences, TwinsSaveTheSame) {
  for (const test::ModelRecipe& recipe : {test::tiny_qwen3(), test::tiny_gemma4kv()}) {
    const MadeModel file(recipe);
    const std::vector<int32_t> text = file.tokens(900);
    const Loaded l = load(file.path(), setup_with(archived(192, SHARPI_KV_Q8_0, true)));
    uint64_t came = 0;
    for (uint32_t seed = 1; seed <= 4; ++seed) {
      std::mt19937 source(seed);
      const auto below = [&](uint32_t n) { return static_cast<uint32_t>(source()) % n; };
      Chat a(l.model.get()), b(l.model.get());
      for (Chat* chat : {&a, &b}) chat->prefill(slice(text, 0, 200));
      for (int32_t step = 0; step < 14; ++step) {
        const std::string what = "seed " + std::to_string(seed) + ", step " + std::to_string(step);
        const uint32_t kind = below(4), at = below(800), n = 1 + below(30), budget = 1 + below(60);
        const bool shares = seed % 2 == 0 && below(2) == 0;
        const std::vector<int32_t> piece = slice(text, at, at + n);
        for (Chat* chat : {&a, &b}) {
          sharpi_error e = SHARPI_ERROR_INIT;
          const uint32_t more = std::min(chat->info().n_slots_max + 40, 512u);
          ASSERT_EQ(sharpi_session_reserve(chat->get(), more, &e), SHARPI_OK) << text_of(e);
          if (kind == 0) {
            compact(*chat, params(shares ? SHARPI_LAYER_BUDGET_SHARED : SHARPI_LAYER_BUDGET_EQUAL,
                                  SHARPI_POLICY_SNAPKV, 50 + budget));
          } else if (kind == 1) {
            const std::vector<uint32_t> before = counts(*chat);
            came += recall(*chat, wanted(piece, budget)).total_rows;
            EXPECT_EQ(counts(*chat), before) << what;
          } else if (kind == 2 && chat->info().n_tokens + n < 500) {
            chat->prefill(piece);
          } else {
            const std::vector<uint32_t> to = reachable(*chat);
            ASSERT_EQ(sharpi_session_truncate(chat->get(), to[to.size() / 2], &e), SHARPI_OK)
                << text_of(e);
          }
        }
        ASSERT_TRUE(saved(a) == saved(b)) << what;
        if (step % 2 == 0) b = a.fork();
        for (uint32_t h = 0; h < 2; ++h) {
          const std::vector<uint32_t> rows = kept(a, 1, h);
          EXPECT_TRUE(std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) ==
                      rows.end())
              << what;
        }
      }
    }
    EXPECT_GT(came, 0u);
  }
}

TEST(RecallPlan, TheArchiveIsPricedToTheByte) {
  const MadeModel file(test::tiny_gemma4kv());
  const auto bytes = [](const MemoryRows& rows) {
    uint64_t sum = 0;
    for (const sharpi_memory_row& r : rows)
      sum += std::string(r.label) == "archive of evicted rows" ? r.held_bytes : 0;
    return sum;
  };
  const auto all = [](const MemoryRows& rows) {
    uint64_t sum = 0;
    for (const sharpi_memory_row& r : rows)
      sum += r.per_session != 0 && r.transient == 0 ? r.held_bytes : 0;
    return sum;
  };
  uint64_t last = 0;
  for (const uint32_t n : {0u, 1u, 16u, 17u, 512u}) {
    const Loaded l = load(file.path(), setup_with(archived(n, SHARPI_KV_Q8_0)));
    Chat chat(l.model.get());
    const MemoryRows planned = rows_of_handle(sharpi_plan_rows, l.plan.get()),
                     taken = rows_of_handle(sharpi_session_memory, chat.get());
    EXPECT_EQ(bytes(planned), bytes(taken)) << n;
    EXPECT_EQ(all(planned), all(taken)) << n;
    if (n != 0) {
      EXPECT_EQ(bytes(planned) == last, n == 16) << n;  // one block holds 1 row or 16
    }
    last = bytes(planned);
    if (n == 0) continue;
    chat.prefill(file.tokens(kPrompt));
    compact(chat, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_SNAPKV, 60));
    recall(chat, wanted(file.tokens(12, 5), 24));
    EXPECT_EQ(bytes(rows_of_handle(sharpi_session_memory, chat.get())), last) << n;
  }
  // A budget without room for it.
  const Loaded free = load(file.path(), setup_with(archived(0)));
  PlanPtr none;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(try_plan(free.context.get(), file.path(),
                     setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
                       archived(512)(p, s);
                       p->host_budget = free.plan_info.host_held_bytes;
                     }),
                     &none, &e),
            SHARPI_E_DOES_NOT_FIT)
      << text_of(e);
}

TEST(RecallRefusals, EveryOneHasItsSentence) {
  const MadeModel file(test::tiny_qwen3());
  const std::vector<int32_t> question = file.tokens(12, 5), wrong{1, -1}, many = file.tokens(300);
  const Loaded with = load(file.path(), setup_with(archived(512)));
  const Loaded without = load(file.path(), setup_with(archived(0)));
  Chat chat(with.model.get()), bare(without.model.get());
  const Chat empty(with.model.get());
  for (Chat* c : {&chat, &bare}) c->prefill(file.tokens(kPrompt));
  compact(chat, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_SNAPKV, 60, 40));
  const std::vector<char> before = saved(chat);
  const Chat twin = chat.fork();
  const auto expect = [&](const Chat& c, const std::function<void(sharpi_recall_params*)>& edit,
                          sharpi_status status, const char* says) {
    sharpi_recall_params p = wanted(question, 24);
    edit(&p);
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(try_recall(c, p, &e), status) << says << ": " << e.text;
    EXPECT_NE(std::string(e.text).find(says), std::string::npos) << e.text;
  };
  using P = sharpi_recall_params*;
  const auto as_it_is = [](P) {};
  expect(bare, as_it_is, SHARPI_E_UNSUPPORTED, "no archive to recall rows from: archive_rows is 0");
  expect(empty, as_it_is, SHARPI_E_STATE, "the session is empty");
  const sharpi_status invalid = SHARPI_E_INVALID_ARGUMENT;
  expect(
      chat, [](P p) { p->budget = 0; }, invalid, "budget 0 is out of range");
  expect(
      chat, [](P p) { p->budget = SHARPI_UNSET; }, invalid, "budget is unset");
  expect(
      chat, [](P p) { p->recency = 56; }, invalid, "leave none of 60 rows");
  expect(
      chat, [](P p) { p->sinks = 60; }, invalid, "leave none of 60 rows");
  expect(
      chat, [](P p) { p->window = 4; }, invalid, "the queries of a probe are all used");
  expect(
      chat, [](P p) { p->probe = nullptr; }, invalid, "probe");
  expect(
      chat, [&](P p) { p->probe = wrong.data(), p->n_probe = 2; }, invalid, "token 1 is -1");
  expect(
      chat, [&](P p) { p->probe = many.data(), p->n_probe = 300; }, SHARPI_E_STATE,
      "300 tokens cannot be observed");
  expect(
      chat, [](P p) { p->n_probe = 0, p->probe = nullptr, p->window = 65; }, invalid,
      "captures 64 queries");
  expect(
      chat, [](P p) { p->progress = [](void*, uint32_t, uint64_t, uint64_t) { return 1; }; },
      SHARPI_E_CANCELLED, "the recall was cancelled; nothing changed");
  EXPECT_TRUE(saved(chat) == before);
  // Neither did its archive change; and captured queries ask as well.
  recall(chat, wanted(question, 24));
  recall(twin, wanted(question, 24));
  EXPECT_TRUE(saved(chat) == saved(twin));
  sharpi_recall_params p = wanted({}, 24);
  EXPECT_GT(recall(chat, p).n_blocks, 0u);
}

/// Facts of a text that was compacted before anybody asked.
TEST(RecallNeedles, AnswersThatWereLostComeBack) {
  const auto fixture = find_fixture("tiny-qwen3");
  if (!fixture) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
  auto golden = load_golden(fixture->golden_path);
  ASSERT_TRUE(golden.is_ok()) << golden.status().text();
  const std::vector<GoldenNeedle> needles = golden.take().needles;
  const Loaded l =
      load(fixture->gguf_path, setup_with(
                                   [](sharpi_plan_params* p, sharpi_session_params* s) {
                                     p->n_chunk = 512;
                                     s->k_dtype = s->v_dtype = SHARPI_KV_Q8_0;
                                     s->capture_window = 64;
                                     s->archive_rows = 2048;
                                   },
                                   kThreadsOfNeedles));
  constexpr uint32_t kQuestion = 24;
  uint32_t whole = 0, lost = 0, back = 0;
  for (size_t i = 0; i < needles.size(); i += 4) {
    const GoldenNeedle& needle = needles[i];
    const size_t text = needle.prompt.size() - kQuestion;
    const std::vector<int32_t> question = slice(needle.prompt, text, needle.prompt.size());
    Chat told(l.model.get());
    told.prefill(slice(needle.prompt, 0, text));
    Chat all = told.fork();
    compact(told, compact_params(SHARPI_POLICY_RETRIEVAL, 128));
    Chat blind = told.fork();
    sharpi_recall_params p = wanted(question, 64);
    p.recency = 32;
    recall(told, p);
    for (Chat* c : {&all, &blind, &told}) c->prefill(question);
    whole += answers(l.model.get(), all, needle) ? 1 : 0;
    lost += answers(l.model.get(), blind, needle) ? 0 : 1;
    back += answers(l.model.get(), told, needle) ? 1 : 0;
  }
  RecordProperty("lost", static_cast<int>(lost));
  RecordProperty("back", static_cast<int>(back));
  EXPECT_GE(lost, 4u) << "of " << whole;
  EXPECT_GE(back + 1, whole);
}

}  // namespace
}  // namespace sharpi::testing
