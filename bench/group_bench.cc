// SPDX-License-Identifier: MIT
// Steps of a batch over a group of processes on this host, whole and in parts: milliseconds a step
// (median, least) for each number of parts. Ranks are children with connections over the loopback.
// Settings: SHARPI_BENCH_MODEL (a GGUF file), _RANKS (2), _SESSIONS (8), _CONTEXT (tokens that each
// has read, 1024), _TOKENS (steps, 24), _THREADS (of a rank, 1).
// Thread rule: one thread a process.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "env_count.h"
#include "group/loopback.h"
#include "handles.h"
#include "median.h"

using namespace sharpi::bench;
using sharpi::testing::Loopback;

namespace {

struct Settings {
  const char* model = std::getenv("SHARPI_BENCH_MODEL");
  uint32_t n_ranks = env_count("SHARPI_BENCH_RANKS", 2);
  uint32_t n_sessions = env_count("SHARPI_BENCH_SESSIONS", 8);
  uint32_t n_read = env_count("SHARPI_BENCH_CONTEXT", 1024);
  uint32_t n_steps = env_count("SHARPI_BENCH_TOKENS", 24);
  uint32_t n_threads = env_count("SHARPI_BENCH_THREADS", 1);
};

sharpi_group* make_group(const Settings& s, uint32_t rank, uint32_t n_parts, Loopback* link) {
  sharpi_error e = SHARPI_ERROR_INIT;
  sharpi_group_params p;
  sharpi_group_params_init(&p, sizeof p);
  p.n_ranks = s.n_ranks;
  p.rank = rank;
  p.batch_parts = n_parts;
  p.send = &Loopback::send_fn;
  p.receive = &Loopback::receive_fn;
  p.abandon = &Loopback::abandon_fn;
  p.user_data = link;
  sharpi_group* out = nullptr;
  must(sharpi_group_create(&p, &out, &e), e, "group");
  return out;
}

PlanPtr make_plan(const Settings& s, sharpi_context* context, sharpi_group* group) {
  sharpi_error e = SHARPI_ERROR_INIT;
  sharpi_session_params session;
  sharpi_session_params_init(&session, sizeof session);
  session.n_ctx = s.n_read + s.n_steps + 8;
  sharpi_plan_params p;
  sharpi_plan_params_init(&p, sizeof p);
  p.n_gpu_layers = 0;
  p.max_batch = p.n_sessions = s.n_sessions;
  p.session = &session;
  p.group = group;
  sharpi_plan* out = nullptr;
  must(sharpi_plan_create(context, s.model, &p, &out, &e), e, "plan");
  return PlanPtr(out);
}

/// Milliseconds of each step.
std::vector<double> time_steps(const Settings& s, const std::vector<SessionPtr>& sessions) {
  sharpi_error e = SHARPI_ERROR_INIT;
  std::vector<double> out;
  std::vector<sharpi_session*> all;
  for (const SessionPtr& one : sessions) all.push_back(one.get());
  for (uint32_t i = 0; i < s.n_steps; ++i) {
    const std::vector<int32_t> tokens(all.size(), static_cast<int32_t>(i + 5));
    const auto start = std::chrono::steady_clock::now();
    must(sharpi_decode_batch(all.data(), tokens.data(), s.n_sessions, &e), e, "decode");
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    out.push_back(took.count());
  }
  return out;
}

void be_rank(const Settings& s, uint32_t rank, uint32_t n_parts, Loopback* link) {
  sharpi_error e = SHARPI_ERROR_INIT;
  sharpi_context_params c;
  sharpi_context_params_init(&c, sizeof c);
  c.n_threads = s.n_threads;
  sharpi_context* made = nullptr;
  must(sharpi_context_create(&c, &made, &e), e, "context");
  const ContextPtr context(made);
  sharpi_group* group = make_group(s, rank, n_parts, link);
  const PlanPtr plan = make_plan(s, context.get(), group);
  sharpi_model* loaded = nullptr;
  must(sharpi_model_load(plan.get(), nullptr, nullptr, &loaded, &e), e, "load");
  const ModelPtr model(loaded);
  std::vector<int32_t> prompt;
  for (uint32_t i = 0; i < s.n_read; ++i) prompt.push_back(static_cast<int32_t>(i * 37 % 500));
  std::vector<SessionPtr> sessions;
  for (uint32_t i = 0; i < s.n_sessions; ++i) {
    sharpi_session* one = nullptr;
    must(sharpi_session_create(model.get(), nullptr, &one, &e), e, "session");
    sessions.emplace_back(one);
    must(sharpi_session_prefill(one, prompt.data(), s.n_read, nullptr, nullptr, &e), e, "prefill");
  }
  const std::vector<double> ms = time_steps(s, sessions);
  if (rank == 0) {
    std::printf(
        "%u ranks, %u sessions behind %u tokens, batch_parts %u: %.2f ms a step, %.2f at least\n",
        s.n_ranks, s.n_sessions, s.n_read, n_parts, median(ms),
        *std::min_element(ms.begin(), ms.end()));
  }
  sessions.clear();
  sharpi_group_destroy(group);
}

}  // namespace

int main() {
  const Settings s;
  if (s.model == nullptr) die("SHARPI_BENCH_MODEL names a GGUF file");
  if (s.n_sessions == 0 || s.n_sessions > 64) die("SHARPI_BENCH_SESSIONS is 1 to 64");
  for (uint32_t n_parts : {1u, 2u, 4u, 8u, 0u}) {
    if (n_parts > s.n_sessions) continue;
    const auto sockets = sharpi::testing::connect_ranks(s.n_ranks);
    for (uint32_t r = 0; r < s.n_ranks; ++r) {
      if (fork() != 0) continue;
      Loopback link(sockets[r]);
      be_rank(s, r, n_parts, &link);
      std::fflush(stdout);
      _exit(0);
    }
    for (const auto& one : sockets) sharpi::testing::close_sockets(one);
    int status = 0;
    for (uint32_t r = 0; r < s.n_ranks; ++r) {
      wait(&status);
      if (status != 0) die("a rank has failed");
    }
  }
  return 0;
}
