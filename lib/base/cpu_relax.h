// SPDX-License-Identifier: MIT
// What a thread does while it waits for another by asking again. Thread rule: any thread.
#pragma once

#include <atomic>

namespace sharpi {

/// Tells the processor that this thread waits; a thread beside it on the core goes on meanwhile.
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield" ::: "memory");
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace sharpi
