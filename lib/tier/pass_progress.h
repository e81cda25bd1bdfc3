// SPDX-License-Identifier: MIT
// How a pass tells its caller how far it is. Thread rule: of the thread that makes the call.
#pragma once

#include <cstdint>

namespace sharpi {

/// Hears how far a pass is, on the calling thread; of a tier that computes asynchronously nothing.
class PassProgress {
 public:
  virtual ~PassProgress() = default;
  /// @return false to stop, which a tier does where it would answer a cancel.
  virtual bool layer_done(uint32_t layer) = 0;
};

}  // namespace sharpi
