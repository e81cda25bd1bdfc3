// SPDX-License-Identifier: MIT
// Attention and the delta net against what the machine can do.
//   decode   one row at 16K of context, over as many layers as no cache holds. GB/s counts the K
//   and
//            V bytes once; share is that against a read-only pass over the same bytes by the same
//            threads, run in turn (median over the iterations).
//   prefill  512 rows behind others; GFLOP/s counts 4 * head_dim operations per query head and
//            visible key, over the caller's processor time with one thread (busy machines), else
//            over the wall's.
//   delta    the recurrence (state bytes read and written once) and the chunked form.
// Set SHARPI_BENCH_THREADS for a thread count other than all CPUs, SHARPI_BENCH_ISA for an
// instruction set (scalar, avx2, avx512, amx) other than the best.
#include <benchmark/benchmark.h>
#include <emmintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/attention.h"
#include "cpu/delta_net.h"
#include "median.h"

namespace sharpi::cpu {
namespace {

using sharpi::bench::median;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ThreadPool& pool() {
  static const std::unique_ptr<ThreadPool> kPool = [] {
    const char* n = std::getenv("SHARPI_BENCH_THREADS");
    return ThreadPool::create(n != nullptr ? static_cast<uint32_t>(std::atoi(n)) : 0).take();
  }();
  return *kPool;
}

const KernelSet& bench_kernels() {
  const char* wanted = std::getenv("SHARPI_BENCH_ISA");
  for (const InstructionSet& set : processor().sets) {
    if (wanted != nullptr && std::string(wanted) == isa_name(set.isa)) {
      return kernel_set(*resolve_isa(set.isa).value());
    }
  }
  return kernel_set(*resolve_isa(Isa::kAuto).value());
}

/// Zeroed memory in huge pages, as sessions have it.
struct Arena {
  explicit Arena(uint64_t bytes) : size((bytes + (2u << 20) - 1) >> 21 << 21) {
    data = static_cast<std::byte*>(std::aligned_alloc(2u << 20, size));
    madvise(data, size, MADV_HUGEPAGE);
    std::memset(data, 0, size);
  }
  ~Arena() { std::free(data); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  uint64_t size;
  std::byte* data;
};

/// Reads all bytes once; the time of it.
double stream_seconds(const Arena& a) {
  const auto start = Clock::now();
  std::vector<uint64_t> sums(pool().size() * 8);
  const uint64_t part = a.size / pool().size() / 256 * 256;
  pool().run(pool().size(), [&](uint32_t i) {
    const auto* p = reinterpret_cast<const __m128i*>(a.data + i * part);
    __m128i s[4] = {};
    for (uint64_t n = part / 64; n-- > 0; p += 4) {
      for (int j = 0; j < 4; ++j) s[j] = _mm_or_si128(s[j], _mm_load_si128(p + j));
    }
    const __m128i all = _mm_or_si128(_mm_or_si128(s[0], s[1]), _mm_or_si128(s[2], s[3]));
    sums[i * 8] = static_cast<uint64_t>(_mm_cvtsi128_si64(all));
  });
  benchmark::DoNotOptimize(sums.data());
  return seconds_since(start);
}

struct Shape {
  const char* name;
  uint32_t n_heads, n_kv, dim;
};
constexpr Shape kShapes[] = {{"smollm2", 9, 3, 64},
                             {"qwen3-8b", 32, 8, 128},
                             {"qwen36-27b", 24, 4, 256},
                             {"gemma4-12b-global", 16, 1, 512},
                             {"olmoe", 16, 16, 128}};
constexpr auto& kCodecs = kAllKvCodecs;

std::vector<float> random_floats(uint64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

/// n_layers layers of n_slots filled slots each, in the block layout of a session.
struct Layers {
  uint64_t n_slots, n_layers;
  std::vector<KvView> views;
  Arena arena;

  Layers(const Shape& s, KvDtype dtype, uint64_t slots, uint64_t layers)
      : n_slots(slots),
        n_layers(layers),
        arena((slots + 63) / 64 * 64 * layers * 2 * kv_row_bytes(dtype, uint64_t{s.n_kv} * s.dim)) {
    const uint64_t n = uint64_t{s.n_kv} * s.dim, row = kv_row_bytes(dtype, n);
    for (uint64_t l = 0; l < layers; ++l) {
      KvView v;
      v.block_stride = layers * 128 * row;
      v.k = arena.data + l * 128 * row;
      v.v = v.k + 64 * row;
      v.k_row_bytes = v.v_row_bytes = static_cast<uint32_t>(row);
      v.k_dtype = v.v_dtype = dtype;
      v.n_heads = s.n_kv;
      v.head_dim = s.dim;
      views.push_back(v);
    }
    const std::vector<float> x = random_floats(n, 1);
    for (const KvView& v : views) {
      for (uint64_t i = 0; i < slots; ++i) {
        static_cast<void>(kv_encode_row(dtype, x.data(), n, v.k_row(i)));
        static_cast<void>(kv_encode_row(dtype, x.data(), n, v.v_row(i)));
      }
    }
  }
};

struct Query {
  std::vector<float> q, o;
  std::vector<std::byte> scratch;
  const KernelSet& kernels;
  bool exact;
  Query(const Shape& s, uint32_t rows, uint64_t slots, bool is_exact)
      : q(random_floats(uint64_t{rows} * s.n_heads * s.dim, 2)),
        o(q.size()),
        scratch(
            attention_scratch_bytes(bench_kernels(), pool().size(), rows, s.n_heads, s.dim, slots)),
        kernels(bench_kernels()),
        exact(is_exact) {}
  void run(const Shape& s, const KvView& kv, uint32_t rows, uint64_t n_past) {
    AttentionTask t;
    t.q = q.data();
    t.o = o.data();
    t.q_stride = t.o_stride = uint64_t{s.n_heads} * s.dim;
    t.n_rows = rows;
    t.n_heads = s.n_heads;
    t.scale = 1.0f / std::sqrt(static_cast<float>(s.dim));
    t.kv = kv;
    t.n_past = n_past;
    if (!attention(pool(), kernels, exact, {&t, 1}, scratch.data(), scratch.size(), true).is_ok())
      std::abort();
  }
};

void decode(benchmark::State& state, const Shape& s, KvDtype dtype, bool exact) {
  constexpr uint64_t kSlots = 16384;
  // Above 512 MiB, twice the largest last-level caches.
  const uint64_t layer = kSlots * 2 * kv_row_bytes(dtype, uint64_t{s.n_kv} * s.dim);
  const Layers layers(s, dtype, kSlots, (512ull << 20) / layer + 1);
  Query query(s, 1, kSlots, exact);
  std::vector<double> seconds, shares;
  for (auto _ : state) {
    const double stream = std::min(stream_seconds(layers.arena), stream_seconds(layers.arena));
    const auto start = Clock::now();
    for (const KvView& v : layers.views) query.run(s, v, 1, kSlots - 1);
    seconds.push_back(seconds_since(start));
    shares.push_back(stream / seconds.back());
    state.SetIterationTime(seconds.back());
  }
  const double bytes = static_cast<double>(layer * layers.n_layers);
  state.counters["GB/s"] = bytes / median(seconds) * 1e-9;
  state.counters["share"] = median(shares);
  state.counters["layers/s"] = static_cast<double>(layers.n_layers) / median(seconds);
}

void prefill(benchmark::State& state, const Shape& s, KvDtype dtype, bool exact, uint64_t n_past) {
  constexpr uint32_t kRows = 512;
  const Layers layers(s, dtype, n_past + kRows, 1);
  Query query(s, kRows, n_past + kRows, exact);
  for (auto _ : state) query.run(s, layers.views[0], kRows, n_past);
  const double keys = kRows * (static_cast<double>(n_past) + (kRows + 1) / 2.0);
  state.counters["GFLOP/s"] = benchmark::Counter(4e-9 * s.dim * s.n_heads * keys,
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

struct Delta {
  DeltaNetShape shape{16, 48, 128, 4};
  uint32_t rows;
  uint64_t n_layers;
  std::vector<float> qkv, raw, z, gates, conv, heads, norm, out, tail;
  std::vector<std::byte> scratch;
  Arena states;
  Delta(uint32_t n_rows, uint64_t layers)
      : rows(n_rows),
        n_layers(layers),
        raw(random_floats(uint64_t{n_rows} * shape.conv_dim(), 3)),
        z(random_floats(uint64_t{n_rows} * shape.value_dim(), 4)),
        gates(random_floats(uint64_t{n_rows} * shape.n_v_heads, 5)),
        conv(random_floats(uint64_t{shape.conv_dim()} * 4, 6)),
        heads(48, -0.5f),
        norm(128, 1.0f),
        out(z.size()),
        tail(shape.conv_floats()),
        scratch(delta_net_scratch_bytes(shape, pool().size(), n_rows)),
        states(layers * 2 * shape.state_floats() * sizeof(float)) {}
  void run(uint64_t layer, bool sequential) {
    qkv = raw;
    DeltaNetTask t;
    t.shape = shape;
    t.qkv = qkv.data();
    t.z = z.data();
    t.alpha = t.beta = gates.data();
    t.conv1d = conv.data();
    t.dt_bias = t.a = heads.data();
    t.norm = norm.data();
    float* s = reinterpret_cast<float*>(states.data) + layer * 2 * shape.state_floats();
    t.state_in = s;
    t.state_out = s + shape.state_floats();
    t.conv_in = t.conv_out = tail.data();
    t.out = out.data();
    t.n_rows = rows;
    delta_net(pool(), bench_kernels(), t, sequential, scratch.data(), scratch.size());
  }
};

void delta(benchmark::State& state, uint32_t rows, bool sequential) {
  const uint64_t layers = rows == 1 ? 96 : 1;  // 600 MB of states
  Delta d(rows, layers);
  for (auto _ : state) {
    for (uint64_t l = 0; l < layers; ++l) d.run(l, sequential);
  }
  const double bytes = static_cast<double>(layers * 2 * d.shape.state_floats() * sizeof(float));
  state.counters["state GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["rows/s"] = benchmark::Counter(static_cast<double>(rows * layers),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  for (const bool exact : {false, true}) {
    for (const Shape& s : kShapes) {
      for (const KvDtype dtype : kCodecs) {
        const std::string tail =
            std::string("/") + s.name + "/" + kv_dtype_name(dtype) + (exact ? "/exact" : "/fast");
        benchmark::RegisterBenchmark(("decode" + tail).c_str(), decode, s, dtype, exact)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
        for (const uint64_t past : {0u, 2048u, 4096u, 8192u, 16384u}) {
          const std::string at = "prefill" + tail + "/" + std::to_string(past);
          auto* bench = benchmark::RegisterBenchmark(at.c_str(), prefill, s, dtype, exact, past);
          bench->Unit(benchmark::kMillisecond);
          if (pool().size() > 1) bench->UseRealTime();
        }
      }
    }
  }
  for (const uint32_t rows : {1u, 4u, 8u, 16u, 24u, 32u, 64u, 512u}) {
    for (const bool sequential : {true, false}) {
      const std::string name =
          "delta/qwen36-27b/" + std::to_string(rows) + (sequential ? "/recurrence" : "/auto");
      benchmark::RegisterBenchmark(name.c_str(), delta, rows, sequential)
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace sharpi::cpu

int main(int argc, char** argv) {
  sharpi::cpu::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
