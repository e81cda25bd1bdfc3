// SPDX-License-Identifier: MIT
// The system's own way to wait for a word became public with macOS 14.4. On older ones, sleepers
// stand in a few queues by their word's address.
#include "os/posix/thread_details.h"

#include <pthread.h>

#include <cstdint>

#include "os/threads.h"

namespace sharpi::os {
namespace {

struct Queue {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t woken = PTHREAD_COND_INITIALIZER;
};

constexpr uintptr_t kQueues = 64;

/// Words of the same queue are woken with one another, which a caller of wait_while() expects.
Queue& queue_of(const std::atomic<uint32_t>& word) {
  static Queue queues[kQueues];
  const auto address = reinterpret_cast<uintptr_t>(&word);
  return queues[(address / 64 ^ address / 4096) % kQueues];
}

}  // namespace

void name_this_thread(const char* name) {
  pthread_setname_np(name);
}

void wait_while(std::atomic<uint32_t>& word, uint32_t expected) {
  Queue& queue = queue_of(word);
  pthread_mutex_lock(&queue.mutex);
  // Who changes the word wakes behind that, under the mutex: either the change is seen here, or the
  // wake finds this thread asleep.
  if (word.load() == expected) pthread_cond_wait(&queue.woken, &queue.mutex);
  pthread_mutex_unlock(&queue.mutex);
}

void wake(std::atomic<uint32_t>& word, uint32_t n) {
  if (n == 0) return;
  Queue& queue = queue_of(word);
  pthread_mutex_lock(&queue.mutex);
  // Never one alone: it could be a sleeper of another word.
  pthread_cond_broadcast(&queue.woken);
  pthread_mutex_unlock(&queue.mutex);
}

}  // namespace sharpi::os
