// SPDX-License-Identifier: MIT
// How a pass tells its caller how far it is. Thread rule: of the thread that makes the call.
#pragma once

#include <cstdint>

namespace sharpi {

/// Hears of layers of a pass once they are computed, in order, on the calling thread. Of passes
/// that compute one token a session, a tier that computes asynchronously tells nothing.
class PassProgress {
 public:
  virtual ~PassProgress() = default;
  /// @return false to stop, which a tier does where it would answer a cancel.
  virtual bool layer_done(uint32_t layer) = 0;
};

}  // namespace sharpi
