// SPDX-License-Identifier: MIT
// Ranks that die, that hang, that are told to stop and whose passes fail: all others hear it in
// time, nothing hangs, and what is not the group's goes on.
#include <chrono>
#include <csignal>

#include "base/hash.h"
#include "engine/session_batch.h"
#include "group/rank_case.h"
#include "plan/part_plan.h"
#include "support/failing_tier.h"

namespace sharpi::testing {
namespace {

using Clock = std::chrono::steady_clock;

test::ModelRecipe small() {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_layers = 4;
  return recipe;
}

std::vector<int32_t> tokens_for(uint32_t n) {
  std::vector<int32_t> out;
  for (uint32_t i = 0; i < n; ++i) out.push_back(static_cast<int32_t>((i * 37 + 11) % 300));
  return out;
}

int64_t ms_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

/// The group is lost, says so at once, and leaves other models alone.
void expect_lost(Rank& r, sharpi_session* s, const std::string& path) {
  sharpi_group_summary info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(sharpi_group_info(r.group(), &info, nullptr), SHARPI_OK);
  EXPECT_EQ(info.is_lost, 1u);
  const auto start = Clock::now();
  EXPECT_FALSE(r.decode(s, 1));
  EXPECT_FALSE(r.prefill(s, {1, 2}));
  EXPECT_FALSE(r.truncate(s, 0));
  EXPECT_EQ(r.session(), nullptr);
  EXPECT_LT(ms_since(start), 200);
  (void)r.n_tokens(s);
  const Loaded other = load(path, setup_with(
                                      [](sharpi_plan_params* p, sharpi_session_params* o) {
                                        p->n_gpu_layers = 0;
                                        o->n_ctx = 64;
                                      },
                                      1));
  Chat chat(other.model.get());
  chat.prefill({1, 2, 3});
  EXPECT_GE(chat.argmax(), 0);
}

constexpr uint32_t kTimeout = 900;

enum class In { kPrefill, kStep, kBatch };

struct Fall {
  uint32_t rank, message;
  int signal;
  In call;
};

/// Of three sessions, in three parts.
void step_all(Rank& r, const std::vector<SessionPtr>& sessions) {
  std::vector<int32_t> tokens(sessions.size());
  std::vector<sharpi_batch_step> steps;
  for (size_t i = 0; i < sessions.size(); ++i)
    steps.push_back({sessions[i].get(), nullptr, &tokens[i], 1, 0});
  sharpi_error e = SHARPI_ERROR_INIT;
  const auto n = static_cast<uint32_t>(steps.size());
  const sharpi_status done = sharpi_step_batch(steps.data(), sizeof steps[0], n, &e);
  if (done != SHARPI_OK) r.say("step", done, e);
}

/// One rank falls at one of its messages of a call; returns how many it would have had.
uint64_t fall(const MadeModel& file, const Fall& f) {
  GroupSetup setup;
  setup.timeout_ms = kTimeout;
  setup.batch_parts = 3;
  const auto ranks = run_ranks(3, [&](Rank& r) {
    ASSERT_TRUE(r.open(file.path(), setup));
    const SessionPtr s = r.session();
    ASSERT_TRUE(r.seed(s.get(), 1, 0) && r.prefill(s.get(), tokens_for(40)));
    std::vector<SessionPtr> three;
    for (uint32_t i = 1; f.call == In::kBatch && i < 4; ++i) {
      three.push_back(r.session());
      ASSERT_TRUE(r.seed(three.back().get(), 1, 0));  // it ends no generation
      ASSERT_TRUE(r.prefill(three.back().get(), tokens_for(i)));
    }
    const uint64_t before = r.link().n_messages();
    if (r.rank() == f.rank && f.message != 0) r.link().fall_at(f.message, f.signal);
    const auto start = Clock::now();
    if (f.call == In::kPrefill) r.prefill(s.get(), tokens_for(100));
    if (f.call == In::kStep) r.step(s.get());
    if (f.call == In::kBatch) step_all(r, three);
    const int64_t ms = ms_since(start);
    if (f.message == 0) return r.say("messages " + std::to_string(r.link().n_messages() - before));
    EXPECT_LT(ms, f.signal == SIGKILL ? kTimeout : 2 * kTimeout) << "rank " << r.rank();
    for (uint32_t i = 0; i < three.size(); ++i) EXPECT_EQ(r.n_tokens(three[i].get()), i + 1);
    expect_lost(r, s.get(), file.path());
  });
  for (uint32_t r = 0; r < 3 && f.message != 0; ++r) {
    if (r == f.rank) {
      EXPECT_EQ(ranks[r].signal, f.signal);
      continue;
    }
    const std::string said = line_of(ranks[r], f.call == In::kPrefill ? "prefill" : "step");
    EXPECT_NE(said.find(" -15 the group is lost, because rank "), std::string::npos)
        << "rank " << r << " where rank " << f.rank << " falls at " << f.message << ": " << said;
  }
  const std::string n = line_of(ranks[f.rank], "messages ");
  return n.empty() ? 0 : std::stoull(n.substr(9));
}

class FallingRanks : public ::testing::TestWithParam<In> {};

TEST_P(FallingRanks, AreHeardOfByAllOthers) {
  const MadeModel file(small());
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const auto n = static_cast<uint32_t>(fall(file, {rank, 0, 0, GetParam()}));
    ASSERT_GT(n, 4u);
    // The last message of a rank that tells all others the outcome comes too late for some.
    const uint32_t last = rank == 0 ? n - 2 : n - 1;
    for (uint32_t m = 1; m <= last; m += GetParam() == In::kPrefill ? 2 : 1)
      fall(file, {rank, m, SIGKILL, GetParam()});
    fall(file, {rank, n / 2, SIGSTOP, GetParam()});
  }
}

std::string name_of(const ::testing::TestParamInfo<In>& info) {
  constexpr const char* kNames[] = {"Prefill", "Step", "Batch"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Calls, FallingRanks,
                         ::testing::Values(In::kPrefill, In::kStep, In::kBatch), name_of);

int32_t stop_at(void* at, uint32_t, uint64_t done, uint64_t) {
  return done >= *static_cast<uint64_t*>(at) ? 1 : 0;
}

TEST(RanksThatAreStopped, KeepTheSameChunks) {
  const MadeModel file(small());
  const auto ranks = run_ranks(3, [&](Rank& r) {
    ASSERT_TRUE(r.open(file.path(), {}));
    const SessionPtr s = r.session();
    uint64_t at = 64;
    EXPECT_FALSE(r.prefill(s.get(), tokens_for(200), 1, r.rank() == 0 ? stop_at : nullptr, &at));
    EXPECT_EQ(r.n_tokens(s.get()), 64u);
    EXPECT_TRUE(r.prefill(s.get(), {5, 6}));
    r.say_logits(s.get());
    // Where nobody can stop, the next call answers.
    EXPECT_TRUE(r.prefill(s.get(), tokens_for(70), 1, r.rank() == 1 ? stop_at : nullptr, &at));
    EXPECT_FALSE(r.decode(s.get(), 1));
    if (r.rank() == 2) sharpi_session_cancel(s.get());
    EXPECT_EQ(r.step(s.get()), -1);
    EXPECT_EQ(r.n_tokens(s.get()), 136u);
    EXPECT_TRUE(r.decode(s.get(), 1));
  });
  const auto alone = run_ranks(1, [&](Rank& r) {
    ASSERT_TRUE(r.open(file.path(), {}));
    const SessionPtr s = r.session();
    std::vector<int32_t> tokens = tokens_for(64);
    ASSERT_TRUE(r.prefill(s.get(), tokens));
    ASSERT_TRUE(r.prefill(s.get(), {5, 6}));
    r.say_logits(s.get());
  });
  EXPECT_EQ(line_of(ranks[2], "logits"), line_of(alone[0], "logits"));
  for (const RankEnd& r : ranks) {
    EXPECT_NE(line_of(r, "prefill").find("prefill 64: -8 rank 0"), std::string::npos);
    EXPECT_NE(line_of(r, "decode").find("-8 rank 1"), std::string::npos);
    EXPECT_NE(line_of(r, "step").find("-8 rank 2"), std::string::npos);
  }
}

/// A step of both, in two parts, of which one rank fails the first, and then the second.
void fail_part(Rank& r, const std::vector<Session*>& both, uint32_t failing) {
  const std::vector<int32_t> tokens{3, 4};
  const size_t before = both[1]->tokens().size();
  for (const int part : {1, 2}) {
    g_run.fail_at = r.rank() == failing ? part : 0;
    const Status failed = SessionBatch::decode(both, tokens);
    EXPECT_EQ(failed.text(), "rank " + std::to_string(failing) + ": injected failure of a pass");
    EXPECT_EQ(failed.code(), Code::kOutOfMemory);
    EXPECT_EQ(both[1]->tokens().size(), before);
  }
  // The first part was computed over them.
  std::vector<float> logits(both[0]->model().spec().n_vocab);
  EXPECT_EQ(both[0]->logits(0, logits.data()).code(),
            r.is_last() ? Code::kState : Code::kUnsupported);
  g_run.fail_at = 0;
  const Status read = SessionBatch::decode(std::span(both).last(1), std::span(tokens).last(1));
  EXPECT_TRUE(read.is_ok()) << read.text();
}

/// The engine over a backend whose passes fail when they are told to.
void fail_inside(Rank& r, const std::string& path, uint32_t failing, bool hybrid) {
  auto group = Group::create(std::make_unique<LoopbackTransport>(r.link().sockets()),
                             {r.rank(), 3, 20000, 20000, 3});
  ASSERT_TRUE(group.is_ok()) << group.status().text();
  auto engine = InnerEngine::open(path, [](const BackendOptions&) {
    Result<std::vector<std::unique_ptr<Backend>>> out{std::vector<std::unique_ptr<Backend>>()};
    out.value().push_back(failing_cpu().take());
    return out;
  });
  ASSERT_TRUE(engine.is_ok());
  ModelPart part;
  part.rank = r.rank();
  part.n_ranks = 3;
  auto spec = make_part(*engine.value().spec, part, {});
  ASSERT_TRUE(spec.is_ok()) << spec.status().text();
  const InnerEngine own{engine.value().context, spec.value()};
  auto plan = own.plan([](sharpi_plan_params* p, sharpi_session_params*) {
    p->n_gpu_layers = 0;
    p->n_chunk = 32;
  });
  ASSERT_TRUE(plan.is_ok()) << plan.status().text();
  auto model = Model::load_part(own.context, plan.value(), {}, group.value());
  ASSERT_TRUE(model.is_ok()) << model.status().text();
  const auto s = make_session(model.value(), plan.value()->session);
  const auto other = make_session(model.value(), plan.value()->session);
  ASSERT_TRUE(s != nullptr && other != nullptr);
  prefill(other.get(), tokens_for(9));
  prefill(s.get(), tokens_for(32));
  g_run.fail_at = r.rank() == failing ? 2 : 0;
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  uint32_t committed = 9;
  const Status failed = s->prefill(tokens_for(160), p, &committed);
  EXPECT_EQ(failed.text(), "rank " + std::to_string(failing) + ": injected failure of a pass");
  EXPECT_EQ(failed.code(), Code::kOutOfMemory);
  EXPECT_EQ(committed, 32u);
  if (hybrid) {
    // Where recurrent layers have gone on, the session has to be begun again, and all say so.
    EXPECT_EQ(s->decode(3).code(), failing == 0 ? Code::kOk : Code::kState);
    ASSERT_TRUE(s->truncate(0).is_ok());
    prefill(s.get(), tokens_for(32));
    prefill(s.get(), tokens_for(32));
  } else {
    EXPECT_EQ(s->tokens().size(), 64u);
  }
  fail_part(r, {s.get(), other.get()}, failing);
  EXPECT_EQ(s->tokens().size(), 64u);
  const Status read = s->decode(3);
  ASSERT_TRUE(read.is_ok()) << read.text();
  EXPECT_EQ(s->tokens().size(), 65u);
  if (r.is_last()) {
    const Logits l = logits_of(*s, *spec.value());
    r.say("logits " + std::to_string(hash64(l.data(), l.size() * sizeof(float))));
  }
}

TEST(RanksWhosePassesFail, GoBackToWhatAllHave) {
  const MadeModel file(small());
  test::ModelRecipe recurrent = test::tiny_qwen35();
  recurrent.n_layers = 6;
  recurrent.n_mtp = 0;
  const MadeModel hybrid(recurrent);
  std::string want;
  for (uint32_t failing = 0; failing < 3; ++failing) {
    const auto ranks = run_ranks(3, [&](Rank& r) { fail_inside(r, file.path(), failing, false); });
    const std::string got = line_of(ranks[2], "logits");
    if (failing == 0) want = got;
    EXPECT_FALSE(got.empty());
    EXPECT_EQ(got, want);
    run_ranks(3, [&](Rank& r) { fail_inside(r, hybrid.path(), failing, true); });
  }
}

}  // namespace
}  // namespace sharpi::testing
