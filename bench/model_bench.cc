// SPDX-License-Identifier: MIT
// Decode and prefill of a whole model through the C ABI, next to what the memory can deliver.
//   SHARPI_BENCH_MODEL=model.gguf    required
//   SHARPI_BENCH_THREADS=2           threads of the context and of the read-only stream (0 = all)
//   SHARPI_BENCH_DEPTH=0             tokens in the session before decode is measured
//   SHARPI_BENCH_KV=auto             f32, bf16 or q8_0, or K,V
//   SHARPI_BENCH_ROUNDS=7            stream and decode alternate this often (at least 5)
//   SHARPI_BENCH_TOKENS=16           decoded tokens of one round
//   SHARPI_BENCH_EXACT=0             1 = f32 activations
//   SHARPI_BENCH_GPU=0               1 = the whole model on the first GPU, and its memory's rate;
//                                    2 = there too, placed by the plan and these pins:
//   SHARPI_BENCH_BUDGET              MiB of device memory (default: all that is free)
//   SHARPI_BENCH_GPU_LAYERS, SHARPI_BENCH_GPU_FFN, SHARPI_BENCH_EXPERT_SLOTS
//   SHARPI_BENCH_DEVICES             layers of each GPU, in order, as 18,18
//   SHARPI_BENCH_STREAM=0            rows from which weights stream to the GPU; 0 = measured, never
//   SHARPI_BENCH_STATS               file for what the model says about its segments, as JSON
//   SHARPI_BENCH_BATCH=1             sessions that decode together
//   SHARPI_BENCH_GROUPS=1            in so many calls at once, each of its share of them
//   SHARPI_BENCH_REPLAY=0            n = sessions keep replay scores of every n-th query
//   SHARPI_BENCH_PREFILL=512         tokens of the prefill run; SHARPI_BENCH_CHUNK=512 at a time
// "save" and "restore" are a session of DEPTH or PREFILL tokens, in the form that moves it to
// another process: examples/move.c does so through a pipe. Bytes go piece by piece to nowhere, or
// to memory (save_memory), and come from memory, as one or through a callback (restore_pieces),
// into an empty session or over what one holds (restore_over).
// Decode is judged by its share of the stream: bytes that a token must read (matrix weights without
// the embedding table, active experts only, KV rows, recurrent state) over the time it takes,
// divided by the rate of reading memory. Both alternate because such machines are noisy; the median
// of the paired ratios is the result. Only the counting of bytes looks into the file, nothing else.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "env_count.h"
#include "kv_names.h"
#include "median.h"
#include "must.h"
#include "read_stream.h"
#include "sharpi.h"
#include "work_counter.h"

namespace {

using sharpi::bench::die;
using sharpi::bench::env_count;
using sharpi::bench::median;
using sharpi::bench::must;
using sharpi::bench::Work;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A pin of the plan; -1 where the variable is not set.
int32_t env_pin(const char* name) {
  return std::getenv(name) == nullptr ? -1 : static_cast<int32_t>(env_count(name, 0));
}

sharpi_kv_dtype kv_dtype(const std::string& name) {
  if (const auto* known = sharpi::bench::kv_of_name(name)) return known->dtype;
  die("SHARPI_BENCH_KV: auto, f32, bf16, q8_0, or two of them as K,V");
}

/// "18,18": so many layers on the first GPU, and so many on the second.
std::vector<sharpi_device_request> on_gpus(const std::string& text) {
  std::vector<sharpi_device_request> list;
  for (size_t at = 0; at <= text.size(); at = std::min(text.find(',', at), text.size()) + 1) {
    sharpi_device_request d;
    sharpi_device_request_init(&d, sizeof d);
    d.device = static_cast<uint32_t>(list.size() + 1);
    d.n_layers = std::atoi(text.c_str() + at);
    if (d.n_layers < 1) die("SHARPI_BENCH_DEVICES: layers of each GPU, as 18,18");
    list.push_back(d);
  }
  return list;
}

struct Settings {
  std::string model, kv = "auto";
  uint32_t n_threads = 2, depth = 0, rounds = 7, tokens = 16, batch = 1, prompt = 512, chunk = 512;
  uint32_t gpu = 0, budget = 0, groups = 1, replay = 0;
  std::vector<sharpi_device_request> devices;
  uint32_t stream_rows = 0;
  int32_t gpu_layers = -1, gpu_ffn = -1, expert_slots = -1;
  bool exact = false;
  static Settings read() {
    Settings s;
    const char* model = std::getenv("SHARPI_BENCH_MODEL");
    if (model == nullptr) die("SHARPI_BENCH_MODEL names no GGUF file");
    s.model = model;
    if (const char* kv = std::getenv("SHARPI_BENCH_KV")) s.kv = kv;
    s.n_threads = env_count("SHARPI_BENCH_THREADS", s.n_threads);
    s.depth = env_count("SHARPI_BENCH_DEPTH", s.depth);
    s.rounds = std::max(5u, env_count("SHARPI_BENCH_ROUNDS", s.rounds));
    s.tokens = std::max(1u, env_count("SHARPI_BENCH_TOKENS", s.tokens));
    s.exact = env_count("SHARPI_BENCH_EXACT", 0) != 0;
    s.gpu = env_count("SHARPI_BENCH_GPU", 0);
    s.budget = env_count("SHARPI_BENCH_BUDGET", 0);
    s.replay = env_count("SHARPI_BENCH_REPLAY", 0);
    s.gpu_layers = env_pin("SHARPI_BENCH_GPU_LAYERS");
    s.gpu_ffn = env_pin("SHARPI_BENCH_GPU_FFN");
    s.expert_slots = env_pin("SHARPI_BENCH_EXPERT_SLOTS");
    const char* stream = std::getenv("SHARPI_BENCH_STREAM");
    const bool never = stream != nullptr && std::string(stream) == "never";
    s.stream_rows = never ? SHARPI_UNSET : env_count("SHARPI_BENCH_STREAM", 0);
    s.batch = std::clamp(env_count("SHARPI_BENCH_BATCH", 1), 1u, 64u);
    s.groups = std::clamp(env_count("SHARPI_BENCH_GROUPS", 1), 1u, s.batch);
    if (const char* layers = std::getenv("SHARPI_BENCH_DEVICES")) s.devices = on_gpus(layers);
    s.prompt = std::max(1u, env_count("SHARPI_BENCH_PREFILL", s.prompt));
    s.chunk = std::max(1u, env_count("SHARPI_BENCH_CHUNK", s.chunk));
    return s;
  }
  uint32_t n_ctx() const { return std::max(depth + (rounds + 1) * tokens, prompt) + 64; }
};

class Bench {
 public:
  explicit Bench(const Settings& s) : settings_(s) {
    open_file();
    open_model();
  }
  ~Bench() {
    for (sharpi_session* s : sessions_) sharpi_session_destroy(s);
    sharpi_model_destroy(model_);
    sharpi_plan_destroy(plan_);
    sharpi_context_destroy(context_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const Settings& settings() const { return settings_; }
  const Work& work() const { return work_; }
  uint32_t n_threads() const { return n_threads_; }
  uint32_t n_tokens() const { return info().n_tokens; }
  std::string paths() const { return info().paths; }
  std::string stats() const {
    sharpi_error err = SHARPI_ERROR_INIT;
    std::string text(1u << 20, '\0');
    size_t n = 0;
    must(sharpi_model_json(model_, text.data(), text.size(), &n, &err), err, "statistics");
    text.resize(n);
    return text;
  }
  double load_seconds() const { return load_seconds_; }

  void restart() {
    sharpi_error err = SHARPI_ERROR_INIT;
    for (sharpi_session* s : sessions_) must(sharpi_session_truncate(s, 0, &err), err, "truncate");
  }
  double prefill(uint32_t n) {
    sharpi_error err = SHARPI_ERROR_INIT;
    std::vector<int32_t> tokens(n);
    for (int32_t& t : tokens) t = next_token();
    const auto start = Clock::now();
    for (sharpi_session* s : sessions_) {
      must(sharpi_session_prefill(s, tokens.data(), n, nullptr, nullptr, &err), err, "prefill");
    }
    return seconds_since(start);
  }
  double decode(uint32_t n) {
    std::vector<int32_t> tokens(n * sessions_.size());
    for (int32_t& t : tokens) t = next_token();
    const auto start = Clock::now();
    std::vector<std::thread> others;
    for (uint32_t g = 1; g < settings_.groups; ++g)
      others.emplace_back([&, g] { decode_group(g, n, tokens.data()); });
    decode_group(0, n, tokens.data());
    for (std::thread& t : others) t.join();
    return seconds_since(start);
  }
  /// Saves the first session to `blob`, or piece by piece to nowhere. Returns its bytes.
  uint64_t save(std::vector<char>* blob) const {
    sharpi_error err = SHARPI_ERROR_INIT;
    uint64_t n = 0;
    const auto take = [](void*, const void*, uint64_t) -> int32_t { return 0; };
    if (blob == nullptr)
      must(sharpi_session_save_to(sessions_[0], take, nullptr, &n, &err), err, "save");
    else
      must(sharpi_session_save(sessions_[0], blob->data(), blob->size(), &n, &err), err, "save");
    return n;
  }
  void restore(const std::vector<char>& blob, bool in_pieces) const {
    sharpi_error err = SHARPI_ERROR_INIT;
    const auto give = [](void* from, uint64_t at, void* out, uint64_t bytes) -> int32_t {
      std::memcpy(out, static_cast<const char*>(from) + at, bytes);
      return 0;
    };
    void* from = const_cast<char*>(blob.data());
    if (in_pieces)
      must(sharpi_session_restore_from(sessions_[0], give, from, &err), err, "restore");
    else
      must(sharpi_session_restore(sessions_[0], from, blob.size(), &err), err, "restore");
  }
  /// Bytes/s at which the memory under test is read, now.
  double stream_rate() {
    if (settings_.gpu == 0) {
      if (!stream_) stream_ = ReadStream::create(n_threads_);
      return stream_->best_rate();
    }
    sharpi_error err = SHARPI_ERROR_INIT;
    sharpi_device d{};
    d.struct_size = sizeof d;
    must(sharpi_device_info(context_, 1, SHARPI_DEVICE_MEASURE, &d, &err), err, "device");
    return d.bandwidth;
  }
  /// Uses of experts that are on the CPU beside a GPU so far, and how many found a slot.
  sharpi_expert_stats experts() const {
    sharpi_error err = SHARPI_ERROR_INIT;
    sharpi_expert_stats s{};
    s.struct_size = sizeof s;
    must(sharpi_model_experts(model_, &s, &err), err, "experts");
    return s;
  }
  /// KV bytes that reading the next token goes through.
  uint64_t kv_bytes() const {
    return sharpi::bench::kv_read_bytes(sessions_[0], work_, n_tokens());
  }

 private:
  /// n steps of one group's sessions; `tokens`: [n][sessions].
  void decode_group(uint32_t group, uint32_t n, const int32_t* tokens) {
    sharpi_error err = SHARPI_ERROR_INIT;
    const size_t all = sessions_.size(), first = all * group / settings_.groups,
                 count = all * (group + 1) / settings_.groups - first;
    for (uint32_t i = 0; i < n; ++i, tokens += all) {
      must(count == 1 ? sharpi_session_decode(sessions_[first], tokens[first], &err)
                      : sharpi_decode_batch(sessions_.data() + first, tokens + first,
                                            static_cast<uint32_t>(count), &err),
           err, "decode");
    }
  }
  void open_file() {
    std::string why;
    if (!sharpi::bench::read_work(settings_.model, &work_, &why)) die(why);
  }
  void open_model() {
    sharpi_error err = SHARPI_ERROR_INIT;
    sharpi_context_params cp;
    sharpi_context_params_init(&cp, sizeof cp);
    cp.n_threads = settings_.n_threads;
    must(sharpi_context_create(&cp, &context_, &err), err, "context");
    sharpi_device device{};
    device.struct_size = sizeof device;
    must(sharpi_device_info(context_, 0, 0, &device, &err), err, "device");
    n_threads_ = device.n_cores;
    sharpi_session_params sp;
    sharpi_session_params_init(&sp, sizeof sp);
    sp.n_ctx = settings_.n_ctx();
    const size_t comma = settings_.kv.find(',');
    sp.k_dtype = kv_dtype(settings_.kv.substr(0, comma));
    sp.v_dtype = comma == std::string::npos ? sp.k_dtype : kv_dtype(settings_.kv.substr(comma + 1));
    if (settings_.replay != 0) {
      sp.capture_window = 64;
      sp.replay = 1;
      sp.replay_every = settings_.replay;
    }
    sharpi_plan_params pp;
    sharpi_plan_params_init(&pp, sizeof pp);
    pp.n_gpu_layers = settings_.gpu == 1 ? static_cast<int32_t>(work_.n_layers()) : 0;
    if (settings_.gpu == 2) {
      pp.n_gpu_layers = settings_.gpu_layers;
      pp.n_gpu_ffn = settings_.gpu_ffn;
      pp.n_expert_slots = settings_.expert_slots;
      pp.stream_rows = settings_.stream_rows;
      if (settings_.budget != 0) pp.device_budget = uint64_t{settings_.budget} << 20;
    }
    if (!settings_.devices.empty()) {
      pp.n_gpu_layers = -1;
      pp.devices = settings_.devices.data();
      pp.n_devices = static_cast<uint32_t>(settings_.devices.size());
    }
    pp.max_concurrent = std::max(pp.max_concurrent, settings_.groups);
    pp.max_batch = std::max(pp.max_batch, settings_.batch);
    pp.n_chunk = settings_.chunk;
    pp.n_sessions = settings_.batch;
    pp.arithmetic = settings_.exact ? SHARPI_ARITHMETIC_EXACT : SHARPI_ARITHMETIC_FAST;
    pp.session = &sp;
    must(sharpi_plan_create(context_, settings_.model.c_str(), &pp, &plan_, &err), err, "plan");
    const auto start = Clock::now();
    must(sharpi_model_load(plan_, nullptr, nullptr, &model_, &err), err, "load");
    load_seconds_ = seconds_since(start);
    sessions_.resize(settings_.batch);
    for (sharpi_session*& s : sessions_) {
      must(sharpi_session_create(model_, nullptr, &s, &err), err, "session");
    }
  }
  sharpi_session_summary info() const {
    sharpi_error err = SHARPI_ERROR_INIT;
    sharpi_session_summary s{};
    s.struct_size = sizeof s;
    must(sharpi_session_info(sessions_[0], &s, &err), err, "session");
    return s;
  }
  /// Any ids will do; they differ so that experts do.
  int32_t next_token() {
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int32_t>((random_ >> 33) % work_.n_vocab);
  }

  Settings settings_;
  Work work_;
  uint32_t n_threads_ = 0;
  uint64_t random_ = 1;
  double load_seconds_ = 0;
  sharpi_context* context_ = nullptr;
  sharpi_plan* plan_ = nullptr;
  sharpi_model* model_ = nullptr;
  std::vector<sharpi_session*> sessions_;
  std::unique_ptr<ReadStream> stream_;
};

void decode_share(benchmark::State& state, Bench* bench) {
  const Settings& s = bench->settings();
  for (auto _ : state) {
    bench->restart();
    if (s.depth > 0) bench->prefill(s.depth);
    bench->decode(s.tokens);  // first touches
    bench->stream_rate();
    const sharpi_expert_stats before = bench->experts();
    std::vector<double> shares, rates, streams;
    double seconds = 0;
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < s.rounds; ++r) {
      const double rate = bench->stream_rate();
      const uint64_t kv_before = bench->kv_bytes();
      const double t = bench->decode(s.tokens);
      const uint64_t kv = (kv_before + bench->kv_bytes()) / 2;
      bytes = bench->work().weight_bytes + s.batch * (bench->work().state_bytes + kv);
      const double decode_rate = static_cast<double>(bytes) * s.tokens / t;
      shares.push_back(decode_rate / rate);
      rates.push_back(decode_rate);
      streams.push_back(rate);
      seconds += t;
    }
    state.SetIterationTime(seconds);
    state.counters["share_of_stream"] = median(shares);
    state.counters["decode_GB/s"] = median(rates) * 1e-9;
    state.counters["stream_GB/s"] = median(streams) * 1e-9;
    state.counters["tokens/s"] = s.batch * median(rates) / static_cast<double>(bytes);
    state.counters["MB/token"] = static_cast<double>(bytes) * 1e-6;
    state.counters["depth"] = bench->n_tokens();
    const sharpi_expert_stats after = bench->experts();
    if (after.n_uses == before.n_uses) continue;
    state.counters["expert_slots"] = after.n_slots;
    state.counters["expert_hits"] = static_cast<double>(after.n_hits - before.n_hits) /
                                    static_cast<double>(after.n_uses - before.n_uses);
    state.counters["promotions"] = static_cast<double>(after.n_promotions - before.n_promotions);
  }
}

void prefill_rate(benchmark::State& state, Bench* bench) {
  const auto n = static_cast<uint32_t>(state.range(0));
  bench->restart();
  bench->prefill(n);  // first touches
  double seconds = 0;
  uint64_t tokens = 0;
  for (auto _ : state) {
    bench->restart();
    const double t = bench->prefill(n);
    state.SetIterationTime(t);
    seconds += t;
    tokens += uint64_t{n} * bench->settings().batch;
  }
  const double flop =
      2.0 * static_cast<double>(bench->work().matrix_weights) * static_cast<double>(tokens);
  state.counters["GFLOP/s"] = flop / seconds * 1e-9;
  state.counters["tokens/s"] = static_cast<double>(tokens) / seconds;
}

/// A session's bytes on their way.
struct Crossing {
  const char* name;
  bool in, pieces, over;
};
constexpr Crossing kCrossings[] = {{"save", false, true, false},
                                   {"save_memory", false, false, false},
                                   {"restore", true, false, false},
                                   {"restore_pieces", true, true, false},
                                   {"restore_over", true, false, true}};

void saved_rate(benchmark::State& state, Bench* bench, const Crossing& way) {
  bench->restart();
  bench->prefill(std::max(bench->settings().depth, bench->settings().prompt));
  std::vector<char> blob(bench->save(nullptr));
  bench->save(&blob);
  double seconds = 0;
  for (auto _ : state) {
    if (way.in && !way.over) bench->restart();
    const auto start = Clock::now();
    if (way.in)
      bench->restore(blob, way.pieces);
    else
      bench->save(way.pieces ? nullptr : &blob);
    const double t = seconds_since(start);
    state.SetIterationTime(t);
    seconds += t;
  }
  const auto bytes = static_cast<double>(blob.size());
  state.counters["MB"] = bytes * 1e-6;
  state.counters["GB/s"] = bytes * static_cast<double>(state.iterations()) / seconds * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const Settings settings = Settings::read();
  Bench bench(settings);
  benchmark::AddCustomContext("model", settings.model);
  benchmark::AddCustomContext("threads", std::to_string(bench.n_threads()));
  benchmark::AddCustomContext("kv", settings.kv);
  benchmark::AddCustomContext("paths", bench.paths());
  benchmark::AddCustomContext("load_seconds", std::to_string(bench.load_seconds()));
  benchmark::RegisterBenchmark("decode", decode_share, &bench)
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("prefill", prefill_rate, &bench)
      ->Arg(settings.prompt / 2)
      ->Arg(settings.prompt)
      ->Iterations(5)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
  for (const Crossing& way : kCrossings)
    benchmark::RegisterBenchmark(way.name, saved_rate, &bench, way)
        ->Iterations(10)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  benchmark::RunSpecifiedBenchmarks();
  if (const char* path = std::getenv("SHARPI_BENCH_STATS")) {
    if (std::FILE* f = std::fopen(path, "w")) {
      std::fprintf(f, "%s\n", bench.stats().c_str());
      std::fclose(f);
    }
  }
  benchmark::Shutdown();
  return 0;
}
