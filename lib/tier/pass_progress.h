// SPDX-License-Identifier: MIT
// How a pass over the model reports to its caller how many layers are computed, and learns that it
// shall stop.
// Thread rule: the thread that makes the call runs it.
#pragma once

#include <cstdint>

namespace sharpi {

/// Is told of each layer of a pass once it is computed, in order, on the calling thread. A tier
/// that computes asynchronously does not report on passes of one token a session.
class PassProgress {
 public:
  virtual ~PassProgress() = default;
  /// @return false to stop, which a tier does where it would answer a cancel.
  virtual bool layer_done(uint32_t layer) = 0;
};

}  // namespace sharpi
