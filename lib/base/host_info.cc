// SPDX-License-Identifier: MIT
#include "base/host_info.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/memory.h"
#include "os/host_memory.h"
#include "os/processors.h"
#include "os/random.h"

namespace sharpi {

uint64_t host_free_bytes() {
  return os::host_memory("", os::system_memory()).free;
}

uint64_t host_total_bytes() {
  return os::host_memory("", os::system_memory()).total;
}

uint64_t host_random() {
  uint64_t number = UINT64_MAX;
  while (number == UINT64_MAX) {
    if (os::random_bytes(&number, sizeof number)) continue;
    // Only a sandbox that forbids the call comes here.
    static std::atomic<uint64_t> calls{0};
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    number = (static_cast<uint64_t>(now) ^ calls.fetch_add(1) << 48) * 0x9E3779B97F4A7C15u;
  }
  return number;
}

std::string host_cpu_name() {
  return os::cpu_name();
}

Result<double> measure_read_bandwidth(ThreadPool& pool) {
  constexpr uint64_t kBytes = 1ull << 30;  // several times the largest L3
  MemoryMeter meter;
  SHARPI_TRY_ASSIGN(HostBuffer buffer, HostBuffer::allocate(meter, kBytes, "bandwidth probe"));
  const uint64_t n = kBytes / sizeof(uint64_t);
  auto* words = buffer.as<uint64_t>();
  pool.for_range(n, 65536, [&](uint64_t b, uint64_t e) {
    for (uint64_t i = b; i < e; ++i) words[i] = i;
  });
  double best = 0;
  std::atomic<uint64_t> sink{0};
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    pool.for_range(n, 65536, [&](uint64_t b, uint64_t e) {
      uint64_t sum[8] = {};
      for (uint64_t i = b; i + 8 <= e; i += 8) {
        for (uint64_t j = 0; j < 8; ++j) sum[j] ^= words[i + j];
      }
      for (const uint64_t s : sum) sink.fetch_xor(s, std::memory_order_relaxed);
    });
    const double s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(kBytes) / s);
  }
  return best;
}

}  // namespace sharpi
