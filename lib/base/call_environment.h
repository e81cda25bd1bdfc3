// SPDX-License-Identifier: MIT
// The state of a host's thread during a call: its floating-point environment, and whether it can be
// cancelled. Thread rule: one owner, on its thread.
#pragma once

#include <cfenv>

#include "os/threads.h"

namespace sharpi {

/// While it lives, the thread has the default floating-point environment and cannot be cancelled. A
/// host may have unmasked floating-point exceptions, which would end the process in a kernel, or
/// another rounding, which would give other results; pthread_cancel() would unwind half a call.
/// Threads that are made in a call have the same arithmetic.
class CallEnvironment {
 public:
  CallEnvironment() noexcept;
  ~CallEnvironment();
  CallEnvironment(const CallEnvironment&) = delete;
  CallEnvironment& operator=(const CallEnvironment&) = delete;

 private:
  std::fenv_t arithmetic_;
  os::NoCancellation whole_;
};

}  // namespace sharpi
