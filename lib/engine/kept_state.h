// SPDX-License-Identifier: MIT
// What a probe of several passes overwrites and the session still needs: the ring buffers of
// sliding windows and the recurrent state, copied to host memory before and written back after.
// Rows of full attention need no copy, because those of a probe lie behind the session's. Owns the
// copy. Thread rule: as Session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/session_core.h"

namespace sharpi {

class KeptState {
 public:
  explicit KeptState(SessionCore& core) : core_(core) {}
  /// What save() takes, of the host.
  uint64_t bytes() const;
  /// May throw std::bad_alloc.
  Status save();
  /// Writes back what save() copied. A device that fails here has lost it, and the session knows.
  Status restore();

 private:
  template <class Rows, class State>
  Status each(Rows&& rows, State&& state) const;
  SessionCore& core_;
  std::vector<std::byte> copy_;
};

}  // namespace sharpi
