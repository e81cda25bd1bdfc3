// SPDX-License-Identifier: MIT
// Want of memory as a Status: for what has to be undone by hand when a call fails half way.
// Thread rule: pure functions.
#pragma once

#include <new>

#include "base/status.h"

namespace sharpi {

template <class Work>
Status no_throw(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Status::error(Code::kOutOfMemory, "host memory for bookkeeping could not be had");
  }
}

}  // namespace sharpi
