// SPDX-License-Identifier: MIT
#include "base/call_environment.h"

#include <pthread.h>

namespace sharpi {

CallEnvironment::CallEnvironment() noexcept {
  std::fegetenv(&arithmetic_);
  std::fesetenv(FE_DFL_ENV);
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state_);
}

CallEnvironment::~CallEnvironment() {
  std::fesetenv(&arithmetic_);
  pthread_setcancelstate(cancel_state_, nullptr);
}

}  // namespace sharpi
