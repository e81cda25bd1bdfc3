// SPDX-License-Identifier: MIT
// Passes that a tier could not finish, or that were stopped where another tier had left work
// behind: nothing of them is read later, and what they cost is said and refused.
#include "engine/draft_model.h"
#include "engine/inner_engine.h"
#include "engine/session_batch.h"
#include "engine/session_blob.h"
#include "support/failing_tier.h"
#include "support/faulty_tier.h"
#include "support/second_tier.h"

namespace sharpi::testing {
namespace {

Result<std::vector<std::unique_ptr<Backend>>> one_tier(const BackendOptions&) {
  std::vector<std::unique_ptr<Backend>> out(1);
  SHARPI_TRY_ASSIGN(out[0], failing_cpu());
  return out;
}
/// Runs of the CPU fail; behind it is a tier that plays the GPU.
Result<std::vector<std::unique_ptr<Backend>>> two_tiers(const BackendOptions& options) {
  SHARPI_TRY_ASSIGN(std::vector<std::unique_ptr<Backend>> out, one_tier(options));
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> other, small_cpu());
  out.push_back(std::make_unique<SecondBackend>(std::move(other)));
  return out;
}

/// A failed pass over so many rows, of a session that has room for some of them.
struct Lost {
  uint32_t rewind, n_draft, rows;
};
std::string text_of(const Lost& l) {
  return std::to_string(l.rewind) + ", " + std::to_string(l.n_draft) + ", " +
         std::to_string(l.rows);
}

class FailedPass : public ::testing::Test {
 protected:
  void SetUp() override { g_run = {}; }
  void TearDown() override { g_run = {}; }
  void open(const test::ModelRecipe& recipe, const Edit& edit,
            BackendFactory backends = &two_tiers) {
    file_.emplace(recipe);
    auto engine = InnerEngine::open(file_->path(), backends);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    engine_ = engine.take();
    std::shared_ptr<const ModelSpec> draft;
    if (draft_file_) draft = InnerEngine::open(draft_file_->path(), backends).value().spec;
    auto plan = engine_.plan(
        [&](sharpi_plan_params* p, sharpi_session_params* s) {
          p->n_gpu_layers = p->n_gpu_ffn = 0;
          p->n_chunk = 32;
          p->deterministic = 1;
          p->n_sessions = 3;
          s->rewind = 8;
          edit(p, s);
        },
        draft);
    ASSERT_TRUE(plan.is_ok()) << plan.status().text();
    auto model = Model::load(engine_.context, plan.value(), nullptr);
    ASSERT_TRUE(model.is_ok()) << model.status().text();
    plan_ = plan.take();
    model_ = model.take();
  }
  /// A model with windows, on the CPU.
  void open_windows(const Lost& l) {
    open(
        test::tiny_gemma3(),
        [&](sharpi_plan_params* p, sharpi_session_params* s) {
          p->n_chunk = 128;
          s->rewind = l.rewind;
          s->n_draft = l.n_draft;
        },
        &one_tier);
  }
  std::unique_ptr<Session> session() { return make_session(model_, plan_->session); }
  Logits logits(const Session& s) { return logits_of(s, *engine_.spec); }
  Status read(Session* s, std::span<const int32_t> tokens, uint32_t* committed) {
    sharpi_prefill_params p;
    sharpi_prefill_params_init(&p, sizeof p);
    return s->prefill(tokens, p, committed);
  }

  std::optional<MadeModel> file_, draft_file_;
  InnerEngine engine_;
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<Model> model_;
};

void first_two_layers(sharpi_plan_params* p, sharpi_session_params*) {
  p->n_gpu_layers = p->n_gpu_ffn = 2;
}

constexpr const char* kWrittenOver =
    "a call that failed has written over rows that the sliding window still needs; truncate the "
    "session to 0, or restore a saved one";

/// The third chunk fails in the tail, when the trunk has put its rows into its rings: a chunk is
/// longer than the rewind. Before, the next call computed with those rows.
TEST_F(FailedPass, RingsThatItWroteAreNotReadAgain) {
  for (const test::ModelRecipe& recipe : {test::tiny_gemma3(), test::tiny_gemma4()}) {
    SCOPED_TRACE(recipe.arch);
    open(recipe, first_two_layers);
    const std::vector<int32_t> tokens = file_->tokens(96);
    const auto whole = session(), s = session();
    prefill(whole.get(), tokens);
    g_run.fail_at = 3;
    g_run.least_rows = 2;
    uint32_t committed = 0;
    EXPECT_EQ(read(s.get(), tokens, &committed).text(), "injected failure of a pass");
    EXPECT_EQ(committed, 64u);
    const std::span<const int32_t> rest = std::span(tokens).subspan(64);
    sharpi_compact_params compact;
    sharpi_compact_params_init(&compact, sizeof compact);
    compact.budget = 40;
    compact.n_probe = 12;
    compact.probe = tokens.data();
    for (const Status& refused :
         {read(s.get(), rest, &committed), s->decode(5), s->save_bytes().status(),
          s->compact(compact, nullptr), s->fork().value()->decode(5)}) {
      EXPECT_EQ(refused.code(), Code::kState);
      EXPECT_EQ(refused.text(), kWrittenOver);
    }
    EXPECT_EQ(s->tokens().size(), 64u);
    ASSERT_TRUE(s->truncate(0).is_ok());
    prefill(s.get(), tokens);
    EXPECT_TRUE(same_bits(logits(*s), logits(*whole)));
  }
}

/// As many rows as the rewind take the place of rows that no token sees any more.
TEST_F(FailedPass, AsFewRowsAsTheRewindCostNothing) {
  open(test::tiny_gemma4(), first_two_layers);
  const std::vector<int32_t> tokens = file_->tokens(72);
  const auto whole = session(), s = session();
  prefill(whole.get(), {tokens.begin(), tokens.begin() + 64});
  prefill(whole.get(), {tokens.begin() + 64, tokens.end()});
  prefill(s.get(), {tokens.begin(), tokens.begin() + 64});
  for (const uint32_t n : {1u, 8u}) {
    g_run.fail_at = 1;
    uint32_t committed = 0;
    EXPECT_EQ(read(s.get(), std::span(tokens).subspan(64, n), &committed).text(),
              "injected failure of a pass");
    EXPECT_EQ(committed, 0u);
  }
  prefill(s.get(), {tokens.begin() + 64, tokens.end()});
  EXPECT_TRUE(same_bits(logits(*s), logits(*whole)));
}

/// A session that goes on behind a failed pass can be saved, too. As many rows as drafts and one
/// take the place of none that is ever seen again.
TEST_F(FailedPass, WhatGoesOnIsSavedAndRestored) {
  for (const Lost& c : {Lost{0, 0, 1}, {5, 0, 6}, {64, 0, 65}, {0, 4, 5}, {2, 4, 5}, {8, 0, 9}}) {
    SCOPED_TRACE(text_of(c));
    open_windows(c);
    const std::vector<int32_t> tokens = file_->tokens(200);
    const auto whole = session(), s = session(), back = session();
    for (Session* one : {whole.get(), s.get()})
      prefill(one, {tokens.begin(), tokens.begin() + 100});
    const std::vector<uint32_t> reachable = s->reachable();
    g_run.behind = true;
    g_run.fail_at = 1;
    uint32_t committed = 0;
    EXPECT_EQ(read(s.get(), std::span(tokens).subspan(100, c.rows), &committed).text(),
              "injected failure of a pass");
    if (c.rows <= c.n_draft + 1) {
      EXPECT_EQ(s->reachable(), reachable);
    }
    std::vector<std::byte> blob(s->save_bytes().value());
    MemorySink sink(blob.data());
    ASSERT_TRUE(s->save(&sink, blob.size()).is_ok());
    MemorySource source(blob.data(), blob.size());
    const Status restored = back->restore(&source, blob.size());
    ASSERT_TRUE(restored.is_ok()) << restored.text();
    for (const int32_t token : {7, 8, 9}) {
      for (Session* one : {whole.get(), s.get(), back.get()}) decode(one, token);
      EXPECT_TRUE(same_bits(logits(*s), logits(*whole)));
      EXPECT_TRUE(same_bits(logits(*back), logits(*whole)));
    }
  }
}

/// One row more than those takes the place of one that the next token sees.
TEST_F(FailedPass, OneRowMoreThanMayBeLostIsRefused) {
  for (const Lost& c : {Lost{0, 0, 2}, {5, 0, 7}, {64, 0, 66}, {0, 4, 6}, {2, 4, 8}}) {
    SCOPED_TRACE(text_of(c));
    open_windows(c);
    const std::vector<int32_t> tokens = file_->tokens(200);
    const auto s = session();
    prefill(s.get(), {tokens.begin(), tokens.begin() + 100});
    std::vector<std::byte> blob(s->save_bytes().value());
    g_run.behind = true;
    g_run.fail_at = 1;
    uint32_t committed = 0;
    EXPECT_EQ(read(s.get(), std::span(tokens).subspan(100, c.rows), &committed).text(),
              "injected failure of a pass");
    MemorySink sink(blob.data());
    EXPECT_EQ(s->save(&sink, blob.size()).text(), kWrittenOver);
    EXPECT_EQ(s->decode(7).text(), kWrittenOver);
  }
}

/// The rows of all its sessions are of tokens that none of them has read.
TEST_F(FailedPass, OfABatchLeavesNoLogits) {
  open(
      test::tiny_gemma4(), [](sharpi_plan_params*, sharpi_session_params* s) { s->n_draft = 4; },
      &one_tier);
  const auto a = session(), b = session(), plain = session();
  std::array<Session*, 2> both = {a.get(), b.get()};
  for (Session* s : {a.get(), b.get(), plain.get()}) prefill(s, file_->tokens(80));
  const std::vector<int32_t> reads = {5, 6, 7};
  std::array<BatchRead, 2> batch;
  g_run.behind = true;
  Logits out(engine_.spec->n_vocab);
  for (const bool drafts : {false, true}) {
    SCOPED_TRACE(drafts);
    for (size_t i = 0; i < both.size(); ++i) batch[i] = {both[i], reads, {}, 0};
    g_run.fail_at = 1;
    const Status failed = drafts ? SessionBatch::verify(batch)
                                 : SessionBatch::decode(both, std::span(reads).first(2));
    EXPECT_EQ(failed.text(), "injected failure of a pass");
    decode(plain.get(), 9);
    for (Session* s : both) {
      EXPECT_EQ(s->logits(0, out.data()).code(), Code::kState);
      decode(s, 9);
      EXPECT_TRUE(same_bits(logits(*s), logits(*plain)));
    }
  }
}

/// Whatever the length, where no ring was reached, or there is none.
TEST_F(FailedPass, APassThatReachedNoRingIsReadAgain) {
  test::ModelRecipe deep = test::tiny_qwen3();
  deep.n_layers = 4;
  for (const test::ModelRecipe& recipe : {deep, test::tiny_gemma3()}) {
    SCOPED_TRACE(recipe.arch);
    const bool windows = recipe.arch != deep.arch;
    open(recipe, [&](sharpi_plan_params* p, sharpi_session_params* s) {
      if (!windows) first_two_layers(p, s);
    });
    const std::vector<int32_t> tokens = file_->tokens(96);
    const auto whole = session(), s = session();
    prefill(whole.get(), tokens);
    g_run.fail_at = 3;
    uint32_t committed = 0;
    EXPECT_EQ(read(s.get(), tokens, &committed).text(), "injected failure of a pass");
    EXPECT_EQ(committed, 64u);
    prefill(s.get(), {tokens.begin() + 64, tokens.end()});
    EXPECT_TRUE(same_bits(logits(*s), logits(*whole)));
  }
}

/// A probe is stopped in a segment of the CPU, while rows of the layer in front wait in the other
/// tier's workspace for their ring. Before, the next call of any session put them into its own.
TEST_F(FailedPass, RowsThatACancelledProbeLeftReachNobodysRing) {
  for (const test::ModelRecipe& recipe : {test::tiny_gemma3(), test::tiny_gemma4()}) {
    SCOPED_TRACE(recipe.arch);
    open(recipe, [&](sharpi_plan_params* p, sharpi_session_params*) {
      p->n_gpu_layers = static_cast<int32_t>(engine_.spec->n_layers());
      p->n_gpu_ffn = 1;
    });
    const std::vector<int32_t> tokens = file_->tokens(96);
    const std::vector<int32_t> begin(tokens.begin(), tokens.begin() + 64),
        end(tokens.begin() + 64, tokens.end());
    const auto whole = session();
    prefill(whole.get(), tokens);
    int n_cancelled = 0;
    for (int at = 1; at <= 4; ++at) {
      const auto s = session(), other = session();
      prefill(s.get(), begin);
      prefill(other.get(), begin);
      sharpi_compact_params q;
      sharpi_compact_params_init(&q, sizeof q);
      q.policy = SHARPI_POLICY_SNAPKV;
      q.budget = 40;
      q.recency = 8;
      q.probe = tokens.data();
      q.n_probe = 12;
      int left = at;
      g_run.at_transient = [&] {
        if (--left == 0) s->cancel();
      };
      const Status stopped = s->compact(q, nullptr);
      g_run.at_transient = {};
      if (stopped.is_ok()) continue;
      ASSERT_EQ(stopped.code(), Code::kCancelled) << stopped.text();
      ++n_cancelled;
      prefill(other.get(), end);
      prefill(s.get(), end);
      EXPECT_TRUE(same_bits(logits(*other), logits(*whole))) << "cancelled in run " << at;
      EXPECT_TRUE(same_bits(logits(*s), logits(*whole))) << "cancelled in run " << at;
    }
    EXPECT_GT(n_cancelled, 1);
  }
}

/// Before, the workspace was lost with the exception, and the next draft waited for it for ever.
TEST_F(FailedPass, ADraftThatThrowsGivesItsWorkspaceBack) {
  open(
      test::tiny_qwen35(),
      [](sharpi_plan_params*, sharpi_session_params* s) {
        s->n_draft = 4;
        s->drafters = SHARPI_DRAFT_MTP;
      },
      &one_tier);
  const auto s = session();
  prefill(s.get(), file_->tokens(40));
  g_run.throws = true;
  g_run.n_layers = 1;  // the block
  g_run.fail_at = 1;
  std::array<int32_t, 8> out{};
  uint32_t n = 0, n_thrown = 0;
  for (int i = 0; i < 20; ++i) {
    const Status stepped = s->step(default_sample_params(), {out.data(), 8}, &n);
    n_thrown += stepped.code() == Code::kOutOfMemory ? 1 : 0;
    EXPECT_TRUE(stepped.is_ok() || stepped.code() == Code::kOutOfMemory) << stepped.text();
  }
  EXPECT_EQ(n_thrown, 1u);
  EXPECT_GT(s->tokens().size(), 50u);
}

/// The smaller model reads the prompt and fails behind its rings. Its next draft begins anew.
TEST_F(FailedPass, ADraftModelThatLostRowsReadsTheTextAgain) {
  test::ModelRecipe small = test::tiny_gemma3();
  small.n_layers = 3;
  small.seed = 5;
  draft_file_.emplace(small);
  open(
      test::tiny_gemma3(),
      [&](sharpi_plan_params* p, sharpi_session_params* s) {
        p->draft_path = draft_file_->path().c_str();
        p->n_chunk = 128;
        s->n_draft = 4;
        s->drafters = SHARPI_DRAFT_MODEL;
      },
      &one_tier);
  const auto s = session(), other = session();
  const auto drafts = [](Session& of, std::vector<int32_t>* out) {
    out->assign(4, -1);
    Drafted drafted;
    const Status done =
        of.draft_model()->propose(of.tokens(), of.first_position(), 7, 4, out->data(), &drafted);
    out->resize(drafted.n);
    return done;
  };
  std::vector<int32_t> got, want;
  prefill(s.get(), file_->tokens(64));
  ASSERT_TRUE(drafts(*s, &got).is_ok());
  ASSERT_GT(s->draft_model()->n_tokens(), 60u);
  prefill(s.get(), file_->tokens(90));
  g_run.n_layers = small.n_layers;
  g_run.least_rows = 65;  // more than the rewind of a drafter
  g_run.behind = true;
  g_run.fail_at = 1;
  EXPECT_EQ(drafts(*s, &got).text(), "injected failure of a pass");
  ASSERT_TRUE(drafts(*s, &got).is_ok());
  prefill(other.get(), {s->tokens().begin(), s->tokens().end()});
  ASSERT_TRUE(drafts(*other, &want).is_ok());
  EXPECT_EQ(got.size(), 4u);
  EXPECT_EQ(got, want);
}

Faults g_faults;
Result<std::vector<std::unique_ptr<Backend>>> faulty_tier(const BackendOptions&) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> inner, small_cpu());
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::make_unique<FaultyBackend>(std::move(inner), &g_faults));
  return out;
}

/// The pass is over, and the device fails while its first draws are made: no session has read, and
/// the rows that the pass wrote over are nobody's logits.
TEST_F(FailedPass, DrawsThatFailBehindItLeaveNoLogitsOfRowsThatWereNotRead) {
  g_faults = {};
  open(
      test::tiny_qwen3(), [](sharpi_plan_params*, sharpi_session_params* s) { s->n_draft = 4; },
      &faulty_tier);
  const auto a = session(), b = session(), plain = session();
  const std::vector<int32_t> tokens = file_->tokens(40), reads = {5, 6, 7};
  for (Session* s : {a.get(), b.get(), plain.get()}) prefill(s, tokens);
  std::array<BatchRead, 2> batch;
  batch[0].session = a.get(), batch[1].session = b.get();
  batch[0].tokens = batch[1].tokens = reads;
  g_faults.fail_read = 1;
  EXPECT_EQ(SessionBatch::verify(batch).text(), "injected failure of reading logits");
  Logits out(engine_.spec->n_vocab);
  decode(plain.get(), 9);
  for (Session* s : {a.get(), b.get()}) {
    EXPECT_EQ(s->tokens().size(), 40u);
    EXPECT_EQ(s->logits(0, out.data()).code(), Code::kState);
    decode(s, 9);
    EXPECT_TRUE(same_bits(logits(*s), logits(*plain)));
  }
  EXPECT_EQ(batch[0].n_read + batch[1].n_read, 0u);
}

/// So for a single session, and the pass wrote over captured queries, too.
TEST_F(FailedPass, DrawsThatFailBehindItLeaveNoQueriesThatItWroteOver) {
  g_faults = {};
  open(
      test::tiny_qwen3(),
      [](sharpi_plan_params*, sharpi_session_params* s) { s->n_draft = 4, s->capture_window = 8; },
      &faulty_tier);
  const auto s = session(), plain = session();
  const std::vector<int32_t> tokens = file_->tokens(40), reads = {5, 6, 7};
  for (Session* one : {s.get(), plain.get()}) prefill(one, tokens);
  sharpi_sample_params p;
  sharpi_sample_params_init(&p, sizeof p);
  uint32_t n_read = 0;
  g_faults.fail_read = 1;
  EXPECT_EQ(s->verify(reads, p, &n_read).text(), "injected failure of reading logits");
  EXPECT_EQ(s->tokens().size(), 40u);
  Logits out(engine_.spec->n_vocab);
  EXPECT_EQ(s->logits(0, out.data()).code(), Code::kState);
  decode(plain.get(), 9), decode(s.get(), 9);
  EXPECT_TRUE(same_bits(logits(*s), logits(*plain)));
  EXPECT_LT(s->save_bytes().value(), plain->save_bytes().value());
}

}  // namespace
}  // namespace sharpi::testing
