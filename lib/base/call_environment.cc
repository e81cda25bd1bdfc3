// SPDX-License-Identifier: MIT
#include "base/call_environment.h"

namespace sharpi {

CallEnvironment::CallEnvironment() noexcept {
  std::fegetenv(&arithmetic_);
  std::fesetenv(FE_DFL_ENV);
}

CallEnvironment::~CallEnvironment() {
  std::fesetenv(&arithmetic_);
}

}  // namespace sharpi
