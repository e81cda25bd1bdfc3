// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "host_process.h"

namespace server {
namespace {

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

std::vector<std::string> program_arguments(int argc, char** argv) {
  return {argv + 1, argv + argc};
}

std::vector<std::string> environment_texts() {
  std::vector<std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    all.emplace_back(*entry);
  return all;
}

void keep_stop_requests() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a saved conversation beyond the limit of files is one not saved
}

// Waits in a thread of its own; all others have these signals blocked.
struct StopWaiter::System {
  std::thread thread;
};

StopWaiter::StopWaiter(std::function<void()> stop) : system_(std::make_unique<System>()) {
  system_->thread = std::thread([stop = std::move(stop)] {
    const sigset_t signals = stop_signals();
    int number = 0;
    sigwait(&signals, &number);
    stop();
  });
}

StopWaiter::~StopWaiter() {
  pthread_kill(system_->thread.native_handle(), SIGTERM);
  system_->thread.join();
}

}  // namespace server
