// SPDX-License-Identifier: MIT
// Makes the n-th operator new of the program fail, the library's among them. Link failing_new.cc
// into a test that wants it. Thread rule: one counter for all threads.
#pragma once

namespace sharpi::testing {

/// The n-th operator new from now throws std::bad_alloc (1 = the next one); 0 switches it off.
void fail_new(int n);
/// A failure is still due.
bool new_pending();

}  // namespace sharpi::testing
