// SPDX-License-Identifier: MIT
// What drafts bring: the time of a pass over a token and n drafts, and tokens a second when drafts
// are right with given probabilities by place. Nothing drafts in these passes: right drafts are the
// tokens that the model was seen to draw before, wrong ones are others, so models of made-up
// weights serve, and the passes, draws and taking back are the real ones.
//   draft_bench MODEL.gguf [--threads 0] [--gpu-layers -1] [--kv auto|f32|bf16|q8_0] [--depth 64]
//               [--accept .76,.62,.46,.40] [--drafts 1,2,3,4,8,16,32] [--rounds 24]
//               [--drafter mtp|DRAFTER.gguf] [--draft-vocab N]
//               [--batch 1,2,4,8] [--taking-back] [--csv FILE] [--name NAME]
// --accept: read in both ways in which such figures are given (draft_table.h), which differ much.
// --drafter: also what the file's own block, or a smaller model, takes for a draft, and tokens a
// second with that (drafter_time.h). What a pass takes longer for handing the block its hidden rows
// is in neither.
// --draft-vocab: the block drafts only tokens with ids below N, with that share of the head.
// --batch: also steps of so many sessions that decode together, one row each, of different texts.
// --taking-back: what the step behind a pass takes longer because drafts were wrong, or had to be
// applied to recurrent state, than behind the same tokens read one by one; as a share of the pass.
// --csv: appends "name,drafts,ms" for docs/plot_drafts.py, which draws speed against acceptance.
// Passes of every size take turns, because such machines are noisy; medians are given.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "draft_settings.h"
#include "draft_table.h"
#include "drafter_time.h"
#include "sharpi.h"

namespace {

using namespace sharpi::bench;
using Clock = std::chrono::steady_clock;

/// One session that is always at the same length when a pass begins.
class Passes {
 public:
  explicit Passes(const Settings& s) : s_(s) {
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    c.n_threads = s.n_threads;
    must(sharpi_context_create(&c, &context_, &e), e, "context");
    sharpi_session_params session;
    sharpi_session_params_init(&session, sizeof session);
    session.n_ctx = s.depth + 64;
    session.k_dtype = session.v_dtype = kv_dtype(s.kv);
    session.n_draft = 32;
    session.n_checkpoints = 1;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.n_gpu_layers = s.gpu_layers;
    p.session = &session;
    uint32_t together = 1;
    for (const double n : s.batches) together = std::max(together, static_cast<uint32_t>(n));
    p.n_sessions = p.max_batch = together;
    must(sharpi_plan_create(context_, s.model.c_str(), &p, &plan_, &e), e, "plan");
    must(sharpi_model_load(plan_, nullptr, nullptr, &model_, &e), e, "load");
    sessions_.resize(together);
    for (sharpi_session*& one : sessions_) {
      must(sharpi_session_create(model_, nullptr, &one, &e), e, "session");
    }
    session_ = sessions_[0];
    sharpi_model_summary info{};
    info.struct_size = sizeof info;
    must(sharpi_model_info(model_, &info, &e), e, "model");
    words_ = (info.n_vocab + 31) / 32;
    std::vector<int32_t> prompt(s.depth);
    for (uint32_t n = 0; n < together; ++n) {
      sharpi_session* const one = sessions_[n];
      for (uint32_t i = 0; i < s.depth; ++i) prompt[i] = token(text(n) + i);
      must(sharpi_session_prefill(one, prompt.data(), s.depth, nullptr, nullptr, &e), e, "prompt");
      if (info.is_hybrid != 0) must(sharpi_session_checkpoint(one, 1, &e), e, "checkpoint");
    }
    sharpi_sampler_params sampler;
    sharpi_sampler_params_init(&sampler, sizeof sampler);
    sampler.temperature = 0;
    must(sharpi_session_set_sampler(session_, &sampler, &e), e, "sampler");
    see_draws();
  }
  ~Passes() {
    for (sharpi_session* one : sessions_) sharpi_session_destroy(one);
    sharpi_model_destroy(model_);
    sharpi_plan_destroy(plan_);
    sharpi_context_destroy(context_);
  }
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;

  /// Seconds of one pass over a token and n drafts of which the first n_right are right. The pass
  /// before it left rows to take back, as in a run of them.
  double run(uint32_t n, uint32_t n_right) {
    truncate();
    pass(n, 0, 0);
    const auto start = Clock::now();
    pass(n, n_right, 1);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  /// Seconds of a step of one row behind a pass over n drafts of which n_right were right, or
  /// behind the same tokens, read one by one.
  double step_behind(uint32_t n, uint32_t n_right, bool one_by_one) {
    truncate();
    if (one_by_one) {
      read_one(kFirst);
      for (uint32_t i = 0; i < n_right; ++i) read_one(drawn_[0][i]);
    } else {
      pass(n, n_right, 0, true);
    }
    const auto start = Clock::now();
    read_one(kFirst);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  void print_reads() const {
    std::printf("%u of %u passes read another number of tokens than were right\n", n_other_,
                n_passes_);
  }

  /// Seconds of a step of the first n sessions, behind one that is not timed.
  double step_together(uint32_t n) {
    sharpi_error e = SHARPI_ERROR_INIT;
    std::vector<int32_t> tokens(n);
    for (uint32_t i = 0; i < n; ++i) tokens[i] = token(text(i) + 5);
    double seconds = 0;
    for (uint32_t i = 0; i < n; ++i) {
      must(sharpi_session_truncate(sessions_[i], s_.depth, &e), e, "truncate");
    }
    for (int i = 0; i < 2; ++i) {
      const auto start = Clock::now();
      must(sharpi_decode_batch(sessions_.data(), tokens.data(), n, &e), e, "decode_batch");
      seconds = std::chrono::duration<double>(Clock::now() - start).count();
    }
    return seconds;
  }

 private:
  static int32_t token(uint32_t i) { return static_cast<int32_t>(7 + i * 31 % 190); }
  /// Where a session's text begins: one text would have the same experts in every session.
  static uint32_t text(uint32_t session) { return 11 * session; }
  void truncate() {
    sharpi_error e = SHARPI_ERROR_INIT;
    must(sharpi_session_truncate(session_, s_.depth, &e), e, "truncate");
  }
  void read_one(int32_t token) {
    sharpi_error e = SHARPI_ERROR_INIT;
    uint32_t read = 0;
    must(sharpi_session_verify(session_, &token, 1, nullptr, &read, &e), e, "verify");
  }
  /// What is drawn behind the prompt and kFirst, and behind the prompt and kFirst twice.
  void see_draws() {
    sharpi_error e = SHARPI_ERROR_INIT;
    for (uint32_t before = 0; before < 2; ++before) {
      truncate();
      for (uint32_t i = 0; i <= before; ++i) read_one(kFirst);
      for (int32_t& drawn : drawn_[before]) {
        must(sharpi_session_sample(session_, nullptr, &drawn, &e), e, "sample");
        read_one(drawn);
      }
    }
  }
  /// `before`: passes before it since the prompt. `forced`: by masks, so that as many are read as
  /// are right.
  void pass(uint32_t n, uint32_t n_right, uint32_t before, bool forced = false) {
    sharpi_error e = SHARPI_ERROR_INIT;
    std::vector<int32_t> tokens(n + 1, kFirst);
    std::vector<uint32_t> masks(forced ? size_t{n} * words_ : 0);
    for (uint32_t i = 0; i < n; ++i) {
      const int32_t drawn = drawn_[before][i], other = token(i + 3);
      const int32_t wrong = other + (other == drawn ? 1 : 0);
      tokens[i + 1] = i < n_right ? drawn : wrong;
      if (forced)
        masks[size_t{i} * words_ + static_cast<uint32_t>(drawn) / 32] |= 1u << (drawn % 32);
    }
    sharpi_sample_params p;
    sharpi_sample_params_init(&p, sizeof p);
    if (!masks.empty()) p.allowed_mask = masks.data(), p.mask_words = words_;
    uint32_t read = 0;
    must(sharpi_session_verify(session_, tokens.data(), n + 1, &p, &read, &e), e, "verify");
    if (forced && read != n_right + 1) die("the masks did not decide what is read");
    ++n_passes_;
    if (read != n_right + 1) ++n_other_;
  }

  static constexpr int32_t kFirst = 7;
  const Settings& s_;
  sharpi_context* context_ = nullptr;
  sharpi_plan* plan_ = nullptr;
  sharpi_model* model_ = nullptr;
  sharpi_session* session_ = nullptr;  // the first of sessions_
  std::vector<sharpi_session*> sessions_;
  std::array<std::array<int32_t, 32>, 2> drawn_ = {};
  uint32_t words_ = 0, n_passes_ = 0, n_other_ = 0;
};

void print_batches(const Settings& s, Passes* passes) {
  std::vector<std::vector<double>> seconds(s.batches.size());
  for (uint32_t round = 0; round <= s.rounds; ++round) {
    for (size_t i = 0; i < seconds.size(); ++i) {
      const double t = passes->step_together(static_cast<uint32_t>(s.batches[i]));
      if (round != 0) seconds[i].push_back(t);
    }
  }
  std::printf("sessions  ms a step  of the first's  t/s together\n");
  for (size_t i = 0; i < seconds.size(); ++i) {
    const double t = median(seconds[i]);
    std::printf("%8.0f  %9.3f  %14.2f  %12.1f\n", s.batches[i], 1e3 * t, t / median(seconds[0]),
                s.batches[i] / t);
  }
}

/// `pass_seconds`: of passes over so many drafts.
void print_taking_back(const Settings& s, Passes* passes, const std::vector<uint32_t>& sizes,
                       const std::vector<double>& pass_seconds) {
  std::printf("drafts  ms a pass  step behind it longer, ms: all wrong  all right  of the pass\n");
  for (size_t i = 1; i < sizes.size(); ++i) {
    std::vector<double> more[2];
    for (uint32_t round = 0; round <= s.rounds; ++round) {
      for (const bool right : {false, true}) {
        const uint32_t n_right = right ? sizes[i] : 0;
        const double plain = passes->step_behind(sizes[i], n_right, true);
        const double behind = passes->step_behind(sizes[i], n_right, false);
        if (round != 0) more[right ? 1 : 0].push_back(behind - plain);
      }
    }
    const double wrong = median(more[0]), right = median(more[1]);
    std::printf("%6u  %9.3f  %36.4f  %9.4f  %9.2f%%\n", sizes[i], 1e3 * pass_seconds[i],
                1e3 * wrong, 1e3 * right, 100 * std::max(wrong, right) / pass_seconds[i]);
  }
}

void write_csv(const Settings& s, const std::vector<uint32_t>& sizes,
               const std::vector<double>& seconds) {
  std::FILE* file = std::fopen(s.csv.c_str(), "a");
  if (file == nullptr) die("cannot write " + s.csv);
  std::fseek(file, 0, SEEK_END);
  if (std::ftell(file) == 0) std::fputs("name,drafts,ms\n", file);
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::fprintf(file, "%s,%u,%.4f\n", s.name.c_str(), sizes[i], 1e3 * seconds[i]);
  }
  std::fclose(file);
}

/// Medians of the seconds of passes over so many drafts.
std::vector<double> time_passes(const Settings& s, Passes* passes,
                                const std::vector<uint32_t>& sizes) {
  std::vector<std::vector<double>> seconds(sizes.size());
  for (uint32_t round = 0; round <= s.rounds; ++round) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const double t = passes->run(sizes[i], round % (sizes[i] + 1));
      if (round != 0) seconds[i].push_back(t);  // the first one warms up
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& v : seconds) medians.push_back(median(v));
  return medians;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings s = read_settings(argc, argv);
  // Before the passes and not beside them: large weights are in memory once.
  DraftTime draft;
  if (!s.drafter.empty()) draft = DrafterClock(s).run();
  Passes passes(s);
  std::vector<uint32_t> sizes = {0};
  for (const double n : s.drafts) sizes.push_back(static_cast<uint32_t>(n));
  const DraftTable table{s.accept, sizes, time_passes(s, &passes, sizes)};
  table.print();
  passes.print_reads();
  if (!s.drafter.empty()) table.print_with(s.drafter, draft);
  if (!s.csv.empty()) write_csv(s, sizes, table.seconds);
  if (s.taking_back) print_taking_back(s, &passes, sizes, table.seconds);
  if (!s.batches.empty()) print_batches(s, &passes);
  return 0;
}
