// SPDX-License-Identifier: MIT
#include "os/threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <memory>
#include <new>

namespace sharpi::os {
namespace {

struct Start {
  Thread::Entry entry;
  void* argument;
};

void* run(void* p) {
  const std::unique_ptr<Start> start(static_cast<Start*>(p));
  const Start s = *start;
  s.entry(s.argument);
  return nullptr;
}

}  // namespace

int Thread::start(Entry entry, void* argument, const char* name) {
  auto start = std::make_unique<Start>(Start{entry, argument});
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited
  pthread_t thread;
  const int error = pthread_create(&thread, nullptr, run, start.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return error;
  start.release();
  pthread_setname_np(thread, name);
  handle_ = thread;
  return 0;
}

void Thread::join() const {
  pthread_join(handle_, nullptr);
}

void wait_while(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void wake(std::atomic<uint32_t>& word, uint32_t n) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, n > INT_MAX ? INT_MAX : static_cast<int>(n),
          nullptr, nullptr, 0);
}

NoCancellation::NoCancellation() noexcept {
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_);
}

NoCancellation::~NoCancellation() {
  pthread_setcancelstate(before_, nullptr);
}

int64_t process_id() {
  return getpid();
}

}  // namespace sharpi::os
