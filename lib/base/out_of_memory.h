// SPDX-License-Identifier: MIT
// What buffers and reservations say when the system refuses memory. Internal to base. Thread rule:
// pure functions.
#pragma once

#include <cinttypes>
#include <cstdint>

#include "base/memory.h"
#include "base/status.h"

namespace sharpi {

inline constexpr uint64_t kMaxBytes = uint64_t{1} << 62;  // keeps every rounding overflow-free

inline Status out_of_memory(const char* what, uint64_t bytes, int error, const MemoryMeter& meter) {
  return Status::native_error(Code::kOutOfMemory, error,
                              "there is no memory for %s: %" PRIu64 " bytes are needed, %" PRIu64
                              " bytes are held",
                              what, bytes, meter.live_bytes());
}

}  // namespace sharpi
