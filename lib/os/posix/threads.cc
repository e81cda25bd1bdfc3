// SPDX-License-Identifier: MIT
#include "os/threads.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <bit>
#include <memory>
#include <string>

#include "os/posix/thread_details.h"

namespace sharpi::os {
namespace {

struct Start {
  Thread::Entry entry;
  void* argument;
  std::string name;
};

static_assert(sizeof(pthread_t) == sizeof(uint64_t));

void* run(void* p) {
  const std::unique_ptr<Start> start(static_cast<Start*>(p));
  name_this_thread(start->name.c_str());
  start->entry(start->argument);
  return nullptr;
}

}  // namespace

int Thread::start(Entry entry, void* argument, const char* name) {
  auto start = std::make_unique<Start>(Start{entry, argument, name});
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited
  pthread_t thread;
  const int error = pthread_create(&thread, nullptr, run, start.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return error;
  start.release();
  handle_ = std::bit_cast<uint64_t>(thread);
  return 0;
}

void Thread::join() const {
  pthread_join(std::bit_cast<pthread_t>(handle_), nullptr);
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
