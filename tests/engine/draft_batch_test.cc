// SPDX-License-Identifier: MIT
// Drafts of several sessions in one pass, each with a number of its own: every session ends up
// where decoding alone leaves it, bit for bit; what is refused changes none.
#include "api/backends.h"
#include "engine/inner_engine.h"
#include "engine/session_batch.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kSessions = 4, kTokens = 24;

struct Loaded {
  InnerEngine engine;
  std::shared_ptr<Model> model;
};

void load(const std::string& path, uint32_t max_logit_rows, Loaded* out) {
  auto engine = InnerEngine::open(path, &api::make_backends);
  ASSERT_TRUE(engine.is_ok()) << engine.status().text();
  out->engine = engine.take();
  auto plan = out->engine.plan([=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->deterministic = 1;
    p->n_gpu_layers = on_gpu() ? -1 : 0;
    p->n_chunk = 32;
    p->n_sessions = 2 * kSessions;
    p->max_batch = kSessions;
    p->max_logit_rows = max_logit_rows;
    s->n_draft = 6;
    s->rewind = 3;
  });
  ASSERT_TRUE(plan.is_ok()) << plan.status().text();
  auto model = Model::load(out->engine.context, plan.take(), nullptr);
  ASSERT_TRUE(model.is_ok()) << model.status().text();
  out->model = model.take();
}

int32_t drawn(Session* s) {
  int32_t t = -1;
  const Status done = s->sample(default_sample_params(), &t);
  EXPECT_TRUE(done.is_ok()) << done.text();
  return t;
}

/// Two sessions for each text: one decodes alone, one takes part in batches.
struct Pair {
  std::unique_ptr<Session> alone, together;
  std::vector<int32_t> want, got;
};

std::vector<Pair> make_pairs(const Loaded& l, const MadeModel& file) {
  std::vector<Pair> out(kSessions);
  for (uint32_t i = 0; i < kSessions; ++i) {
    for (auto* s : {&out[i].alone, &out[i].together}) {
      *s = make_session(l.model, l.model->plan().session);
      prefill(s->get(), file.tokens(9 + 3 * i, i));
      sharpi_sampler_params p;
      sharpi_sampler_params_init(&p, sizeof p);
      p.seed = 5 + i;
      p.temperature = i % 2 == 0 ? 0.0f : 0.8f;
      EXPECT_TRUE((*s)->set_sampler(p).is_ok());
    }
    for (uint32_t t = 0; t < kTokens; ++t) {
      out[i].want.push_back(drawn(out[i].alone.get()));
      if (t + 1 < kTokens) decode(out[i].alone.get(), out[i].want.back());
    }
  }
  return out;
}

TEST(DraftBatches, LeaveEverySessionWhereDecodingAloneLeavesIt) {
  for (const auto& recipe :
       test::with_newer_kinds({test::tiny_qwen3(), test::tiny_qwen35(), test::tiny_gemma3()})) {
    for (const uint32_t logit_rows : {7u, 32u}) {  // with 7, drafts are left out
      const MadeModel file(recipe);
      Loaded l;
      load(file.path(), logit_rows, &l);
      ASSERT_TRUE(l.model);
      std::vector<Pair> pairs = make_pairs(l, file);
      uint32_t count = 0, tried = 0;
      for (bool more = true; more;) {
        std::vector<BatchRead> reads;
        std::vector<std::vector<int32_t>> tokens(kSessions);
        std::vector<uint32_t> who;
        for (uint32_t i = 0; i < kSessions; ++i) {
          Pair& p = pairs[i];
          if (p.got.size() == kTokens) continue;
          tokens[i] = {drawn(p.together.get())};
          const size_t n = 2 * i % 7;  // drafts of this session: 0, 2, 4, 6
          for (size_t k = p.got.size() + 1; k < kTokens && tokens[i].size() <= n; ++k) {
            tokens[i].push_back(++count % 4 == 0 ? (p.want[k] + 1) % 300 : p.want[k]);
          }
          reads.push_back({p.together.get(), tokens[i], default_sample_params(), 0});
          who.push_back(i);
        }
        more = !reads.empty();
        if (!more) break;
        const Status done = SessionBatch::verify(reads);
        ASSERT_TRUE(done.is_ok()) << done.text();
        uint32_t rows = 0;
        for (size_t r = 0; r < reads.size(); ++r) {
          ASSERT_GE(reads[r].n_read, 1u);
          ASSERT_LE(reads[r].n_read, reads[r].tokens.size());
          rows += static_cast<uint32_t>(reads[r].tokens.size());
          auto& got = pairs[who[r]].got;
          got.insert(got.end(), tokens[who[r]].begin(), tokens[who[r]].begin() + reads[r].n_read);
        }
        ASSERT_LE(rows, std::max(logit_rows, kSessions));
        tried = std::max(tried, rows);
      }
      EXPECT_EQ(tried, logit_rows == 7 ? 7u : 16u);
      for (const Pair& p : pairs) {
        EXPECT_EQ(p.got, p.want);
        decode(p.alone.get(), p.want.back());
        EXPECT_TRUE(
            same_bits(logits_of(*p.together, *l.engine.spec), logits_of(*p.alone, *l.engine.spec)));
      }
    }
  }
}

TEST(DraftBatches, WhatIsRefusedChangesNoSession) {
  const MadeModel file(test::tiny_qwen35());
  Loaded l;
  load(file.path(), 32, &l);
  ASSERT_TRUE(l.model);
  std::vector<Pair> pairs = make_pairs(l, file);
  const std::vector<int32_t> fine = {1, 2}, unknown = {1, 320}, many(8, 1);
  const auto refused = [&](const std::vector<int32_t>& second, const char* text) {
    std::vector<BatchRead> reads = {{pairs[0].together.get(), fine, default_sample_params(), 9},
                                    {pairs[1].together.get(), second, default_sample_params(), 9}};
    const Logits before = logits_of(*pairs[0].together, *l.engine.spec);
    const Status done = SessionBatch::verify(reads);
    EXPECT_EQ(done.code(), Code::kInvalidArgument);
    EXPECT_NE(std::string(done.text()).find(text), std::string::npos) << done.text();
    for (const BatchRead& r : reads) EXPECT_EQ(r.n_read, 0u);
    EXPECT_TRUE(same_bits(before, logits_of(*pairs[0].together, *l.engine.spec)));
  };
  refused(unknown, "token 1 is 320");
  refused(many, "7 drafts behind the first token, but the session was made for n_draft 6");
  refused({}, "session 1 reads no token");
  std::vector<BatchRead> reads;
  for (uint32_t i = 0; i <= kSessions; ++i) {
    reads.push_back({pairs[i % kSessions].together.get(), fine, default_sample_params(), 0});
  }
  const Status done = SessionBatch::verify(reads);
  EXPECT_NE(
      std::string(done.text()).find("the batch has 5 sessions, but the plan's max_batch is 4"),
      std::string::npos)
      << done.text();
}

}  // namespace
}  // namespace sharpi::testing
