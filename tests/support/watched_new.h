// SPDX-License-Identifier: MIT
// Counts what operator new gives, the library's included, and what is not given back; and makes it
// fail. Link watched_new.cc into a test that wants it. Thread rule: any thread; one countdown for
// all of them.
#pragma once

#include <cstdint>

namespace sharpi::testing {

/// Calls of operator new so far.
uint64_t allocations();
/// Bytes that were asked for and not given back.
uint64_t allocated_bytes();

/// The most bytes that one call of operator new asked for so far.
uint64_t largest_allocation();

/// As long as one lives, what is asked for is the library's, until it is given back.
class LibraryCall {
 public:
  LibraryCall() noexcept;
  ~LibraryCall();
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;
};
/// Of allocated_bytes() those.
uint64_t library_bytes();

/// The n-th operator new from now throws std::bad_alloc (1 = the next one); 0 switches it off.
void fail_new(int n);
/// A failure is still due.
bool new_pending();

}  // namespace sharpi::testing
