// SPDX-License-Identifier: MIT
#include "group/rank_case.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <utility>

#include "base/hash.h"

namespace sharpi::testing {

void Rank::say(const std::string& line) {
  std::fprintf(out_, "%s\n", line.c_str());
  std::fflush(out_);
}

void Rank::say(const std::string& what, sharpi_status status, const sharpi_error& e) {
  say(what + ": " + std::to_string(status) + " " + e.text);
}

sharpi_group_params Rank::group_params(const GroupSetup& setup) {
  sharpi_group_params p;
  sharpi_group_params_init(&p, sizeof p);
  p.n_ranks = n_;
  p.rank = rank_;
  p.timeout_ms = setup.timeout_ms;
  p.load_timeout_ms = setup.load_timeout_ms;
  p.batch_parts = setup.batch_parts;
  p.send = &Loopback::send_fn;
  p.receive = &Loopback::receive_fn;
  p.abandon = &Loopback::abandon_fn;
  p.user_data = &link_;
  return p;
}

bool Rank::make_group(const sharpi_group_params& params) {
  sharpi_group* g = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status made = sharpi_group_create(&params, &g, &e);
  group_.reset(g);
  if (made != SHARPI_OK) say("make", made, e);
  return made == SHARPI_OK;
}

bool Rank::open(const std::string& path, const GroupSetup& setup) {
  if (n_ > 1 && !make_group(group_params(setup))) return false;
  const ModelSetup model = setup_with(
      [&](sharpi_plan_params* p, sharpi_session_params* s) {
        p->n_gpu_layers = 0;
        p->n_chunk = 32;
        s->n_ctx = 512;
        if (setup.edit) setup.edit(p, s);
        if (n_ == 1) return;
        p->group = group_.get();
        if (!setup.layers.empty()) p->rank_layers = setup.layers.data();
      },
      1);
  sharpi_error e = SHARPI_ERROR_INIT;
  if (!setup.context) loaded_.context = make_context(model);
  sharpi_context* context = setup.context ? setup.context() : loaded_.context.get();
  const sharpi_status planned = try_plan(context, path, model, &loaded_.plan, &e);
  if (planned != SHARPI_OK) {
    say("plan", planned, e);
    return false;
  }
  sharpi_model* m = nullptr;
  const sharpi_status loaded = sharpi_model_load(loaded_.plan.get(), nullptr, nullptr, &m, &e);
  loaded_.model.reset(m);
  if (loaded != SHARPI_OK) say("load", loaded, e);
  return loaded == SHARPI_OK;
}

SessionPtr Rank::session() {
  sharpi_session* s = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status made = sharpi_session_create(model(), nullptr, &s, &e);
  if (made != SHARPI_OK) say("create", made, e);
  return SessionPtr(s);
}

bool Rank::prefill(sharpi_session* s, const std::vector<int32_t>& tokens, uint32_t n_logit_rows,
                   sharpi_progress_fn progress, void* user_data) {
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  p.n_logit_rows = n_logit_rows;
  p.progress = progress;
  p.user_data = user_data;
  uint32_t committed = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status read = sharpi_session_prefill(
      s, tokens.data(), static_cast<uint32_t>(tokens.size()), &p, &committed, &e);
  if (read != SHARPI_OK) say("prefill " + std::to_string(committed), read, e);
  return read == SHARPI_OK;
}

bool Rank::decode(sharpi_session* s, int32_t token) {
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status read = sharpi_session_decode(s, token, &e);
  if (read != SHARPI_OK) say("decode", read, e);
  return read == SHARPI_OK;
}

bool Rank::truncate(sharpi_session* s, uint32_t n) {
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status done = sharpi_session_truncate(s, n, &e);
  if (done != SHARPI_OK) say("truncate", done, e);
  return done == SHARPI_OK;
}

bool Rank::seed(sharpi_session* s, uint64_t seed, float temperature) {
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  p.seed = seed;
  p.temperature = temperature;
  sharpi_error e = SHARPI_ERROR_INIT;
  return sharpi_session_set_sampler(s, &p, &e) == SHARPI_OK;
}

int32_t Rank::step(sharpi_session* s) {
  int32_t token = -1;
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status stepped = sharpi_session_step(s, nullptr, &token, 1, &n, &e);
  if (stepped != SHARPI_OK) {
    say("step", stepped, e);
    return -1;
  }
  say("token " + std::to_string(token));
  return token;
}

void Rank::say_logits(sharpi_session* s, uint32_t row) {
  if (!is_last()) return;
  std::vector<float> out(loaded_.info.n_vocab != 0 ? loaded_.info.n_vocab : 1u << 20);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  const auto cap = static_cast<uint32_t>(out.size());
  const sharpi_status read = sharpi_session_logits(s, row, out.data(), cap, &n, &e);
  if (read != SHARPI_OK) return say("logits", read, e);
  say("logits " + std::to_string(row) + " " +
      std::to_string(hash64(out.data(), n * sizeof(float))));
}

uint32_t Rank::n_tokens(sharpi_session* s) {
  sharpi_session_summary info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(sharpi_session_info(s, &info, nullptr), SHARPI_OK);
  return info.n_tokens;
}

namespace {

[[noreturn]] void be_rank(uint32_t r, const std::vector<std::vector<int>>& sockets, std::FILE* out,
                          const std::function<void(Rank&)>& body) {
  alarm(300);
  const auto n = static_cast<uint32_t>(sockets.size());
  for (uint32_t other = 0; other < n; ++other)
    if (other != r) close_sockets(sockets[other]);
  {
    Rank rank(r, n, sockets[r], out);
    body(rank);
  }
  std::fflush(nullptr);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

std::vector<std::string> lines_of(std::FILE* file) {
  std::rewind(file);
  std::vector<std::string> out;
  std::array<char, 4096> line;
  while (std::fgets(line.data(), line.size(), file) != nullptr) {
    std::string text(line.data());
    if (!text.empty() && text.back() == '\n') text.pop_back();
    out.push_back(std::move(text));
  }
  std::fclose(file);
  return out;
}

}  // namespace

std::vector<RankEnd> run_ranks(uint32_t n, const std::function<void(Rank&)>& body) {
  const std::vector<std::vector<int>> sockets = connect_ranks(n);
  std::vector<std::FILE*> files;
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (uint32_t r = 0; r < n; ++r) files.push_back(std::tmpfile());
  for (uint32_t r = 0; r < n; ++r) {
    children.push_back(fork());
    if (children.back() == 0) be_rank(r, sockets, files[r], body);
  }
  for (const std::vector<int>& s : sockets) close_sockets(s);
  std::vector<RankEnd> ends(n);
  std::vector<bool> stopped(n, false);
  for (uint32_t quiet = 0; quiet < n;) {
    int status = 0;
    const pid_t child = waitpid(-1, &status, WUNTRACED);
    for (uint32_t r = 0; r < n; ++r) {
      if (children[r] != child) continue;
      if (WIFSTOPPED(status)) stopped[r] = true;
      if (WIFEXITED(status)) ends[r].exit_code = WEXITSTATUS(status);
      if (WIFSIGNALED(status)) ends[r].signal = WTERMSIG(status);
      ++quiet;
    }
  }
  for (uint32_t r = 0; r < n; ++r) {
    if (stopped[r]) {
      kill(children[r], SIGKILL);
      waitpid(children[r], nullptr, 0);
      ends[r].signal = SIGSTOP;
    }
    ends[r].lines = lines_of(files[r]);
    EXPECT_TRUE(ends[r].exit_code == 0 || ends[r].signal != 0) << "rank " << r << " failed";
    EXPECT_NE(ends[r].signal, SIGALRM) << "rank " << r << " hangs";
    EXPECT_NE(ends[r].signal, SIGSEGV) << "rank " << r;
  }
  return ends;
}

std::string line_of(const RankEnd& rank, const std::string& word) {
  std::string found;
  for (const std::string& line : rank.lines)
    if (line.compare(0, word.size(), word) == 0) found = line;
  return found;
}

}  // namespace sharpi::testing
