// SPDX-License-Identifier: MIT
// What compaction costs next to the prefill before it, and what decode gains by it, through the C
// ABI.
//   SHARPI_BENCH_MODEL=model.gguf    required
//   SHARPI_BENCH_THREADS=2           threads of the context (0 = all)
//   SHARPI_BENCH_DEPTH=4096          tokens of the prompt
//   SHARPI_BENCH_BUDGET=1024         rows that stay
//   SHARPI_BENCH_POLICY=0            a SHARPI_POLICY_* number; 0 = the default policy
//   SHARPI_BENCH_LAYERS=0            a SHARPI_LAYER_BUDGET_* number; 3 = rows by head
//   SHARPI_BENCH_HEADROOM=1024       slots that stay beside the rows
//   SHARPI_BENCH_KV=1                a SHARPI_KV_* number; 1 = f32
//   SHARPI_BENCH_TOKENS=8            decoded tokens of a round
//   SHARPI_BENCH_GPU=0               1 = the whole model on the first GPU
//   SHARPI_BENCH_CHUNK=512           tokens of a chunk of the prompt
//   SHARPI_BENCH_ARCHIVE=0           rows of each KV head that the archive has room for
//   SHARPI_BENCH_RECALL=1024         rows that come back from it, with an archive
//   SHARPI_BENCH_PROBE=32            tokens of the question; 0 = the last queries of the prompt
// One prompt is read; "compact" compacts forks of it, "decode" goes on from a whole and a compacted
// one. Counters: share_of_prefill = compaction / prefill; gain = decode speed compacted / whole;
// gain_by_bytes = what reading weights (without the embedding table) and live KV explains. "recall"
// compacts one fork, and then recalls by one question after another; its counters are of one
// recall, the first apart.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "env_count.h"
#include "gguf/gguf_file.h"
#include "handles.h"
#include "median.h"
#include "model/model_spec.h"
#include "must.h"
#include "sharpi.h"

namespace {

using sharpi::bench::ContextPtr;
using sharpi::bench::die;
using sharpi::bench::env_count;
using sharpi::bench::median;
using sharpi::bench::ModelPtr;
using sharpi::bench::must;
using sharpi::bench::PlanPtr;
using sharpi::bench::SessionPtr;

/// A model and one session that has read the prompt.
class Reader {
 public:
  Reader() {
    const char* path = std::getenv("SHARPI_BENCH_MODEL");
    if (path == nullptr) die("SHARPI_BENCH_MODEL names no GGUF file");
    open(path);
    read();
  }
  double prefill_seconds() const { return prefill_seconds_; }

  SessionPtr fork() const {
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_session* out = nullptr;
    must(sharpi_session_fork(session_.get(), &out, &e), e, "fork");
    return SessionPtr(out);
  }
  sharpi_compact_report compact(sharpi_session* s) const {
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_compact_params p;
    sharpi_compact_params_init(&p, sizeof p);
    p.policy = env_count("SHARPI_BENCH_POLICY", SHARPI_POLICY_AUTO);
    p.budget = budget_;
    p.layer_budget = env_count("SHARPI_BENCH_LAYERS", SHARPI_LAYER_BUDGET_EQUAL);
    p.headroom = env_count("SHARPI_BENCH_HEADROOM", 1024);
    sharpi_compact_report r{};
    r.struct_size = sizeof r;
    must(sharpi_session_compact(s, &p, &r, &e), e, "compact");
    return r;
  }
  /// Every question is another.
  sharpi_recall_report recall(sharpi_session* s, uint32_t question) const {
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_recall_params p;
    sharpi_recall_params_init(&p, sizeof p);
    p.budget = env_count("SHARPI_BENCH_RECALL", 1024);
    std::vector<int32_t> probe(env_count("SHARPI_BENCH_PROBE", 32));
    for (uint32_t i = 0; i < probe.size(); ++i) probe[i] = token((7919 * question + i) % depth_);
    p.probe = probe.empty() ? nullptr : probe.data();
    p.n_probe = static_cast<uint32_t>(probe.size());
    sharpi_recall_report r{};
    r.struct_size = sizeof r;
    must(sharpi_session_recall(s, &p, &r, &e), e, "recall");
    return r;
  }
  /// Tokens per second.
  double decode(sharpi_session* s) const {
    sharpi_error e = SHARPI_ERROR_INIT;
    const auto start = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < tokens_; ++i)
      must(sharpi_session_decode(s, token(depth_ + i), &e), e, "decode");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return tokens_ / took.count();
  }
  double weight_bytes() const { return weight_bytes_; }
  static double kv_bytes(const sharpi_session* s) {
    sharpi_session_summary i{};
    i.struct_size = sizeof i;
    sharpi_error e = SHARPI_ERROR_INIT;
    must(sharpi_session_info(s, &i, &e), e, "info");
    return static_cast<double>(i.kv_payload_bytes);
  }

 private:
  void open(const char* path) {
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    c.n_threads = env_count("SHARPI_BENCH_THREADS", 2);
    sharpi_context* context = nullptr;
    must(sharpi_context_create(&c, &context, &e), e, "context");
    context_.reset(context);
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = depth_ + 9 * tokens_ + 64;
    s.k_dtype = s.v_dtype = env_count("SHARPI_BENCH_KV", SHARPI_KV_F32);
    s.capture_window = 64;
    s.archive_rows = env_count("SHARPI_BENCH_ARCHIVE", 0);
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.n_gpu_layers = env_count("SHARPI_BENCH_GPU", 0) == 0 ? 0 : -1;
    p.n_chunk = env_count("SHARPI_BENCH_CHUNK", 512);
    p.session = &s;
    sharpi_plan* plan = nullptr;
    must(sharpi_plan_create(context, path, &p, &plan, &e), e, "plan");
    plan_.reset(plan);
    sharpi_model* model = nullptr;
    must(sharpi_model_load(plan, nullptr, nullptr, &model, &e), e, "load");
    model_.reset(model);
    sharpi_model_summary info{};
    info.struct_size = sizeof info;
    must(sharpi_model_info(model, &info, &e), e, "model");
    n_vocab_ = info.n_vocab;
    auto file = sharpi::GgufFile::open(path);
    const auto spec = sharpi::load_model_spec(file.take()).take();
    const uint64_t table = spec->tied_output ? 0 : spec->token_embd.bytes();
    weight_bytes_ = static_cast<double>(info.file_bytes - table - spec->mtp_bytes);
  }
  void read() {
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_session* s = nullptr;
    must(sharpi_session_create(model_.get(), nullptr, &s, &e), e, "session");
    session_.reset(s);
    std::vector<int32_t> prompt(depth_);
    for (uint32_t i = 0; i < depth_; ++i) prompt[i] = token(i);
    const auto start = std::chrono::steady_clock::now();
    must(sharpi_session_prefill(s, prompt.data(), depth_, nullptr, nullptr, &e), e, "prefill");
    prefill_seconds_ =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  int32_t token(uint32_t i) const {
    return static_cast<int32_t>((uint64_t{i} * 2654435761u >> 7) % n_vocab_);
  }

  const uint32_t depth_ = env_count("SHARPI_BENCH_DEPTH", 4096);
  const uint32_t budget_ = env_count("SHARPI_BENCH_BUDGET", 1024);
  const uint32_t tokens_ = env_count("SHARPI_BENCH_TOKENS", 8);
  uint32_t n_vocab_ = 0;
  double prefill_seconds_ = 0, weight_bytes_ = 0;
  ContextPtr context_;
  PlanPtr plan_;
  ModelPtr model_;
  SessionPtr session_;
};

const Reader& reader() {
  static const Reader r;
  return r;
}

/// What gives memory back is the driver's, and now and then takes much longer: medians and the
/// worst.
void compact(benchmark::State& state) {
  std::vector<double> all, score, move;
  sharpi_compact_report last{};
  for (auto _ : state) {
    const SessionPtr s = reader().fork();
    last = reader().compact(s.get());
    score.push_back(last.score_ms);
    move.push_back(last.move_ms);
    all.push_back(last.score_ms + last.move_ms);
    state.SetIterationTime(all.back() / 1e3);
  }
  state.counters["prefill_s"] = reader().prefill_seconds();
  state.counters["share_of_prefill"] = median(all) / 1e3 / reader().prefill_seconds();
  state.counters["median_ms"] = median(all);
  state.counters["worst_ms"] = *std::max_element(all.begin(), all.end());
  state.counters["score_ms"] = median(score);
  state.counters["move_ms"] = median(move);
  state.counters["held_mib_before"] = static_cast<double>(last.held_before) / (1 << 20);
  state.counters["held_mib_after"] = static_cast<double>(last.held_after) / (1 << 20);
}
BENCHMARK(compact)->UseManualTime()->Iterations(9)->Unit(benchmark::kMillisecond);

/// Rows that changed places say whether there was anything to do.
void recall(benchmark::State& state) {
  if (env_count("SHARPI_BENCH_ARCHIVE", 0) == 0) {
    state.SkipWithError("without an archive (SHARPI_BENCH_ARCHIVE) nothing is recalled");
    return;
  }
  const SessionPtr s = reader().fork();
  reader().compact(s.get());
  const sharpi_recall_report first = reader().recall(s.get(), 0);
  std::vector<double> all, score, move, rows;
  uint32_t question = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    const sharpi_recall_report r = reader().recall(s.get(), ++question);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    score.push_back(r.score_ms);
    move.push_back(r.move_ms);
    all.push_back(took.count());
    rows.push_back(static_cast<double>(r.total_rows));
    state.SetIterationTime(all.back() / 1e3);
  }
  state.counters["first_score_ms"] = first.score_ms;
  state.counters["first_move_ms"] = first.move_ms;
  state.counters["total_ms"] = median(all);
  state.counters["worst_ms"] = *std::max_element(all.begin(), all.end());
  state.counters["score_ms"] = median(score);
  state.counters["move_ms"] = median(move);
  state.counters["rows"] = median(rows);
  state.counters["archived"] = first.archived;
}
BENCHMARK(recall)->UseManualTime()->Iterations(9)->Unit(benchmark::kMillisecond);

/// Rounds on the whole and on the compacted session alternate, because such machines are noisy; the
/// medians are the result, that of the paired ratios for the gain.
void decode(benchmark::State& state) {
  const SessionPtr whole = reader().fork(), compacted = reader().fork();
  reader().compact(compacted.get());
  const double kv_whole = Reader::kv_bytes(whole.get()),
               kv_compacted = Reader::kv_bytes(compacted.get());
  std::vector<double> a, b, gain;
  for (auto _ : state) {
    a.push_back(reader().decode(whole.get()));
    b.push_back(reader().decode(compacted.get()));
    gain.push_back(b.back() / a.back());
  }
  const double weights = reader().weight_bytes();
  state.counters["whole_tokens/s"] = median(a);
  state.counters["compacted_tokens/s"] = median(b);
  state.counters["gain"] = median(gain);
  state.counters["gain_by_bytes"] = (weights + kv_whole) / (weights + kv_compacted);
  state.counters["kv_mib_whole"] = kv_whole / (1 << 20);
  state.counters["kv_mib_compacted"] = kv_compacted / (1 << 20);
  state.counters["weight_mib"] = weights / (1 << 20);
}
BENCHMARK(decode)->Iterations(9)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
