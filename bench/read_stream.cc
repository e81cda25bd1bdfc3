// SPDX-License-Identifier: MIT
#include "read_stream.h"

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

// Much more than any last-level cache, and short enough (25 ms at 40 GB/s) to alternate often.
constexpr size_t kBytes = size_t{1} << 30;
constexpr size_t kLine = 64;
// Bytes: 32 lines, so that one is asked for about a microsecond before its turn at 2 GB/s a core or
// more, and what is under way fits in the first-level cache many times.
constexpr size_t kPrefetchAhead = 2048;

typedef uint64_t Vec __attribute__((vector_size(64)));

#define STREAM_INLINE static inline __attribute__((always_inline))

STREAM_INLINE uint64_t fold(const Vec& v) {
  uint64_t sum = 0;
  for (int i = 0; i < 8; ++i) sum ^= v[i];
  return sum;
}

/// Reads `n_streams` equal parts side by side, one line of each in turn.
template <size_t kStreams, size_t kAhead>
STREAM_INLINE uint64_t read_lines(const std::byte* data, size_t bytes) {
  const size_t part = bytes / kStreams;
  Vec acc[kStreams == 1 ? 8 : kStreams] = {};
  constexpr size_t kLinesAtOnce = kStreams == 1 ? 8 : 1;
  for (size_t at = 0; at + kLinesAtOnce * kLine <= part; at += kLinesAtOnce * kLine) {
    for (size_t s = 0; s < kStreams; ++s) {
      for (size_t l = 0; l < kLinesAtOnce; ++l) {
        const std::byte* line = data + s * part + at + l * kLine;
        if (kAhead > 0) __builtin_prefetch(line + kAhead, 0, 3);
        Vec v;
        std::memcpy(&v, line, sizeof v);
        acc[s * kLinesAtOnce + l] ^= v;
      }
    }
  }
  for (size_t i = 1; i < sizeof acc / sizeof acc[0]; ++i) acc[0] ^= acc[i];
  return fold(acc[0]);
}

#define STREAM_LOOPS(suffix, attribute)                             \
  attribute uint64_t one_##suffix(const std::byte* p, size_t n) {   \
    return read_lines<1, 0>(p, n);                                  \
  }                                                                 \
  attribute uint64_t four_##suffix(const std::byte* p, size_t n) {  \
    return read_lines<4, 0>(p, n);                                  \
  }                                                                 \
  attribute uint64_t ahead_##suffix(const std::byte* p, size_t n) { \
    return read_lines<1, kPrefetchAhead>(p, n);                     \
  }
STREAM_LOOPS(avx512, __attribute__((target("avx512f"))))
STREAM_LOOPS(avx2, __attribute__((target("avx2"))))
STREAM_LOOPS(plain, )

}  // namespace

std::unique_ptr<ReadStream> ReadStream::create(uint32_t n_threads) {
  void* p = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    std::perror("model_bench: memory for the read-only stream");
    std::exit(1);
  }
  madvise(p, kBytes, MADV_HUGEPAGE);
  std::memset(p, 1, kBytes);  // every page its own
  return std::unique_ptr<ReadStream>(new ReadStream(n_threads, static_cast<std::byte*>(p)));
}

ReadStream::~ReadStream() {
  munmap(data_, kBytes);
}

double ReadStream::rate(Loop loop) {
  using Clock = std::chrono::steady_clock;
  std::atomic<uint32_t> ready{0};
  std::atomic<bool> go{false};
  const size_t part = kBytes / n_threads_ / kLine * kLine;
  std::vector<Clock::time_point> ends(n_threads_);
  const auto work = [&](uint32_t t) {
    ++ready;
    while (!go.load(std::memory_order_acquire)) {
    }
    const uint64_t sum = loop(data_ + t * part, part);
    benchmark::DoNotOptimize(sum);
    ends[t] = Clock::now();
  };
  std::vector<std::thread> threads;
  for (uint32_t t = 1; t < n_threads_; ++t) threads.emplace_back(work, t);
  while (ready.load() + 1 < n_threads_) std::this_thread::yield();
  const auto start = Clock::now();
  go.store(true, std::memory_order_release);
  work(0);
  for (std::thread& t : threads) t.join();
  const auto end = *std::max_element(ends.begin(), ends.end());
  return static_cast<double>(part * n_threads_) /
         std::chrono::duration<double>(end - start).count();
}

double ReadStream::best_rate() {
  const Loop avx512[] = {one_avx512, four_avx512, ahead_avx512};
  const Loop avx2[] = {one_avx2, four_avx2, ahead_avx2};
  const Loop plain[] = {one_plain, four_plain, ahead_plain};
  const Loop* loops = __builtin_cpu_supports("avx512f") ? avx512
                      : __builtin_cpu_supports("avx2")  ? avx2
                                                        : plain;
  return std::max({rate(loops[0]), rate(loops[1]), rate(loops[2])});
}
