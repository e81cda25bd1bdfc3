// SPDX-License-Identifier: MIT
// How much of the host's stack a call may take. Templates come from files, and threads of hosts
// have stacks of every size, so recursion is bounded by bytes: what a count of levels costs depends
// on the kind of each level and on the build.
// Thread rule: one owner, on one thread between entering and leaving.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace sharpi::jinja {

/// Bytes of stack that parsing and rendering may take before they are refused. The published
/// templates need between 16 and 24 KiB, and up to 40 KiB with sanitizers, whose frames are larger:
/// the bound is wider there, so that such builds refuse no template for their frames. Counts of
/// levels (kMaxNesting, Limits) are the same in every build, and decide where levels are small.
#ifdef SHARPI_SANITIZED
constexpr size_t kMaxStackBytes = size_t{256} << 10;
#else
constexpr size_t kMaxStackBytes = size_t{64} << 10;
#endif

/// Knows where on the stack a call entered. Stacks grow down wherever the library runs.
class StackBound {
 public:
  /// Whether the calls since the entry take more than kMaxStackBytes; never without an entry.
  bool is_spent() const {
    // Close to the entry, its own frames may have been the deeper ones: that is less than nothing.
    const auto taken = static_cast<intptr_t>(entered_ - here());
    return entered_ != 0 && taken > static_cast<intptr_t>(kMaxStackBytes);
  }
  /// What to say then: kDoesNotFit.
  [[gnu::cold]] static Status spent();

 private:
  friend class StackEntry;
  /// Of the frame itself: with a sanitizer, the address of a local may lie on a stack of its own.
  static uintptr_t here();

  uintptr_t entered_ = 0;
};

/// A call enters here. Of entries inside each other the first one counts.
class StackEntry {
 public:
  explicit StackEntry(StackBound* bound) : bound_(*bound), outer_(bound->entered_) {
    if (outer_ == 0) bound_.entered_ = StackBound::here();
  }
  ~StackEntry() { bound_.entered_ = outer_; }
  StackEntry(const StackEntry&) = delete;
  StackEntry& operator=(const StackEntry&) = delete;

 private:
  StackBound& bound_;
  uintptr_t outer_;
};

}  // namespace sharpi::jinja
