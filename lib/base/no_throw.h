// SPDX-License-Identifier: MIT
// Turns std::bad_alloc into a Status, for calls that have to undo something by hand when they fail
// half way.
// Thread rule: pure functions.
#pragma once

#include <new>

#include "base/status.h"

namespace sharpi {

/// Calls work(), which returns a Status; kOutOfMemory where it throws std::bad_alloc.
template <class Work>
Status no_throw(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Status::error(Code::kOutOfMemory, "host memory for bookkeeping could not be had");
  }
}

}  // namespace sharpi
