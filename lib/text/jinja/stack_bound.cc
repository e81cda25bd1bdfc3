// SPDX-License-Identifier: MIT
#include "text/jinja/stack_bound.h"

namespace sharpi::jinja {

// Out of line, so that the functions that recurse need no frame pointer.
[[gnu::noinline]] uintptr_t StackBound::here() {
  return reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
}

[[gnu::noinline]] Status StackBound::spent() {
  return Status::error(Code::kDoesNotFit, "the template goes deeper than %zu KiB of stack allow",
                       kMaxStackBytes >> 10);
}

}  // namespace sharpi::jinja
