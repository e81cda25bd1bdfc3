// SPDX-License-Identifier: MIT
// Matrix products against what the machine can do. Every iteration runs one pass over a set of
// equal matrices that does not fit in any cache, and one read-only pass over the same bytes by the
// same threads, in turn.
//   GB/s      weight bytes over time
//   GFLOP/s   2 * weights * rows over time
//   share     median over the iterations of (best of the last three stream passes) / (product pass)
// Set SHARPI_BENCH_THREADS for a thread count other than all CPUs, SHARPI_BENCH_ISA for an
// instruction set (scalar, avx2, avx512, amx) other than the best, SHARPI_BENCH_SMALL_PAGES for
// weights in pages of 4 KiB (as a mapped file has them) instead of huge ones.
#include <benchmark/benchmark.h>
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/half.h"
#include "cpu/matmul.h"
#include "median.h"

namespace sharpi::cpu {
namespace {

using sharpi::bench::median;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Shape {
  uint64_t n_in, n_out;
};

/// Memory for weights (huge pages asked for) and everything else.
struct Arena {
  explicit Arena(uint64_t bytes) : bytes_(round_up(bytes, uint64_t{2} << 20)) {
    p_ = static_cast<std::byte*>(std::aligned_alloc(uint64_t{2} << 20, bytes_));
    madvise(p_, bytes_, std::getenv("SHARPI_BENCH_SMALL_PAGES") ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    std::memset(p_, 0, bytes_);
  }
  ~Arena() { std::free(p_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  std::byte* data() const { return p_; }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_;
  std::byte* p_;
};

void fill_matrix(GgmlType type, std::byte* data, uint64_t bytes) {
  const GgmlTypeTraits& t = ggml_traits(type);
  std::mt19937_64 rng(1);
  const auto half_at = [&](std::byte* at) {
    const uint16_t h = f16_from_f32(0.01f + static_cast<float>(rng() % 64) * 0x1p-12f);
    std::memcpy(at, &h, sizeof h);
  };
  for (uint64_t b = 0; b + t.block_bytes <= bytes; b += t.block_bytes) {
    std::byte* block = data + b;
    for (uint32_t i = 0; i < t.block_bytes; ++i) block[i] = static_cast<std::byte>(rng());
    switch (type) {
      case GgmlType::kF32: {
        const float v = static_cast<float>(rng() % 64) * 0.01f;
        std::memcpy(block, &v, sizeof v);
        break;
      }
      case GgmlType::kBF16:
        block[1] = std::byte{0x3C};
        break;
      case GgmlType::kMXFP4:
        block[0] = std::byte{120};
        break;
      case GgmlType::kQ2_K:
        half_at(block + 80), half_at(block + 82);
        break;
      case GgmlType::kQ3_K:
        half_at(block + 108);
        break;
      case GgmlType::kQ6_K:
        half_at(block + 208);
        break;
      case GgmlType::kQ4_K:
      case GgmlType::kQ5_K:
      case GgmlType::kQ4_1:
      case GgmlType::kQ5_1:
        half_at(block), half_at(block + 2);
        break;
      default:
        half_at(block);
    }
  }
}

uint32_t thread_count() {
  const char* text = std::getenv("SHARPI_BENCH_THREADS");
  return text == nullptr ? 0 : static_cast<uint32_t>(std::atoi(text));
}

const KernelSet& kernels_choice() {
  const char* text = std::getenv("SHARPI_BENCH_ISA");
  Isa wanted = Isa::kAuto;
  for (const InstructionSet& set : processor().sets) {
    if (text != nullptr && std::string(text) == isa_name(set.isa)) wanted = set.isa;
  }
  const auto set = resolve_isa(wanted);
  if (!set.is_ok()) {
    std::fprintf(stderr, "%s\n", set.status().text().c_str());
    std::exit(2);
  }
  return kernel_set(*set.value());
}

// The widest loads that the machine has: with narrow ones a core waits for itself, not for memory.
using ReadFn = void (*)(const std::byte* p, uint64_t bytes);

__attribute__((target("avx512f"))) void read_512(const std::byte* p, uint64_t bytes) {
  __m512i sum[4] = {};
  for (uint64_t i = 0; i < bytes; i += 256) {
    for (uint64_t l = 0; l < 4; ++l) {
      _mm_prefetch(reinterpret_cast<const char*>(p + i + 64 * l) + 2048, _MM_HINT_T0);
      sum[l] = _mm512_xor_si512(sum[l], _mm512_loadu_si512(p + i + 64 * l));
    }
  }
  for (__m512i& v : sum) benchmark::DoNotOptimize(v);
}

__attribute__((target("avx2"))) void read_256(const std::byte* p, uint64_t bytes) {
  __m256i sum[4] = {};
  for (uint64_t i = 0; i < bytes; i += 128) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i) + 2048, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i) + 2048 + 64, _MM_HINT_T0);
    for (uint64_t l = 0; l < 4; ++l) {
      const auto* at = reinterpret_cast<const __m256i*>(p + i + 32 * l);
      sum[l] = _mm256_xor_si256(sum[l], _mm256_loadu_si256(at));
    }
  }
  for (__m256i& v : sum) benchmark::DoNotOptimize(v);
}

double read_pass(ThreadPool& pool, const std::byte* data, uint64_t bytes) {
  constexpr uint64_t kChunk = 512 * 1024;
  const ReadFn read = __builtin_cpu_supports("avx512f") != 0 ? read_512 : read_256;
  const auto start = Clock::now();
  pool.run(static_cast<uint32_t>(bytes / kChunk),
           [&](uint32_t c) { read(data + c * kChunk, kChunk); });
  return seconds_since(start);
}

void bench_product(benchmark::State& state, GgmlType type, Shape shape, uint32_t n_rows, bool exact,
                   bool deterministic) {
  auto pool = ThreadPool::create(thread_count()).take();
  const MatmulConfig config{&kernels_choice(), exact, deterministic};
  const uint64_t row_bytes = ggml_row_bytes(type, shape.n_in);
  const uint64_t matrix_bytes = row_bytes * shape.n_out;
  const uint64_t total = n_rows <= 8 ? uint64_t{640} << 20 : matrix_bytes;
  const uint64_t n_matrices = std::max<uint64_t>(1, total / matrix_bytes);
  const Arena weights(n_matrices * matrix_bytes);
  fill_matrix(type, weights.data(), matrix_bytes);
  for (uint64_t i = 1; i < n_matrices; ++i) {
    std::memcpy(weights.data() + i * matrix_bytes, weights.data(), matrix_bytes);
  }
  std::vector<float> x(shape.n_in * n_rows), y(shape.n_out * n_rows);
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(rng);
  const Arena prepared(Matmul::prepared_bytes(config, shape.n_in, n_rows) + 64);
  const Arena scratch(Matmul::scratch_bytes(config, pool->size(), shape.n_in, n_rows) + 64);
  const Matmul matmul(config, pool.get(), scratch.data(), scratch.bytes());
  const MatmulInput in{x.data(), shape.n_in, n_rows, shape.n_in, prepared.data()};

  const auto product_pass = [&] {
    const auto start = Clock::now();
    for (uint64_t i = 0; i < n_matrices; ++i) {
      MatmulTask t;
      t.w = {type, weights.data() + i * matrix_bytes, shape.n_in, shape.n_out, row_bytes};
      t.in = &in;
      t.n_rows = n_rows;
      t.y = y.data();
      t.y_stride = shape.n_out;
      matmul.prepare(in);
      matmul.run({&t, 1});
    }
    return seconds_since(start);
  };
  product_pass();
  std::vector<double> streams, ratios, times;
  for (auto _ : state) {
    double stream = 1e9;
    for (int i = 0; i < 3; ++i)
      stream = std::min(stream, read_pass(*pool, weights.data(), weights.bytes()));
    stream *= static_cast<double>(n_matrices * matrix_bytes) / static_cast<double>(weights.bytes());
    const double t = product_pass();
    state.SetIterationTime(t);
    streams.push_back(stream);
    times.push_back(t);
    ratios.push_back(stream / t);
  }
  const double bytes = static_cast<double>(n_matrices * matrix_bytes);
  const double flops = 2.0 * static_cast<double>(n_matrices * shape.n_in * shape.n_out) * n_rows;
  state.counters["GB/s"] = bytes / median(times) * 1e-9;
  state.counters["GFLOP/s"] = flops / median(times) * 1e-9;
  if (n_rows <= 8) {
    state.counters["stream"] = bytes / median(streams) * 1e-9;
    state.counters["share"] = median(ratios);
  }
  state.SetLabel(matmul.path(type, n_rows, false));
}

void add(GgmlType type, Shape shape, uint32_t n_rows, bool exact = false, bool det = false) {
  const std::string name = std::string(ggml_traits(type).name) + "/" + std::to_string(shape.n_in) +
                           "x" + std::to_string(shape.n_out) + "/rows:" + std::to_string(n_rows) +
                           (exact ? "/exact" : "") + (det ? "/deterministic" : "");
  benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& s) { bench_product(s, type, shape, n_rows, exact, det); })
      ->UseManualTime()
      ->Iterations(5)
      ->Unit(benchmark::kMillisecond);
}

void add_all() {
  constexpr Shape kWide{4096, 12288}, kTall{12288, 4096};
  const GgmlType types[] = {GgmlType::kQ8_0, GgmlType::kQ4_K,  GgmlType::kQ6_K,   GgmlType::kQ4_0,
                            GgmlType::kQ5_K, GgmlType::kQ4_1,  GgmlType::kQ5_0,   GgmlType::kQ5_1,
                            GgmlType::kQ2_K, GgmlType::kQ3_K,  GgmlType::kIQ4_NL, GgmlType::kIQ4_XS,
                            GgmlType::kBF16, GgmlType::kMXFP4, GgmlType::kF16,    GgmlType::kF32};
  for (const GgmlType type : types) {
    for (const uint32_t n_rows : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 16u, 32u, 64u, 256u, 512u})
      add(type, kWide, n_rows);
    add(type, kTall, 1);
    add(type, kTall, 512);
    for (const uint32_t n_rows : {1u, 8u, 256u}) add(type, kWide, n_rows, true);
    // Few rows as dots, where the fast way takes panels.
    for (const uint32_t n_rows : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 10u, 12u, 256u}) {
      add(type, kWide, n_rows, false, true);
    }
  }
}

}  // namespace
}  // namespace sharpi::cpu

int main(int argc, char** argv) {
  sharpi::cpu::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
