// SPDX-License-Identifier: MIT
// Counts what operator new gives, the library's included, and what is not given back. Link
// counted_new.cc into a test that wants it. Thread rule: any thread.
#pragma once

#include <cstdint>

namespace sharpi::testing {

/// Calls of operator new so far.
uint64_t allocations();
/// Bytes that were asked for and not given back.
uint64_t allocated_bytes();

}  // namespace sharpi::testing
