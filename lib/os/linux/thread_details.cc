// SPDX-License-Identifier: MIT
#include "os/posix/thread_details.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "os/threads.h"

namespace sharpi::os {

void name_this_thread(const char* name) {
  pthread_setname_np(pthread_self(), name);
}

void wait_while(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void wake(std::atomic<uint32_t>& word, uint32_t n) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, n > INT_MAX ? INT_MAX : static_cast<int>(n),
          nullptr, nullptr, 0);
}

}  // namespace sharpi::os
