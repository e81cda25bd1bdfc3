// SPDX-License-Identifier: MIT
// The boundary guard: every extern "C" body runs inside guard(), which turns a Status, or anything
// that was thrown, into a sharpi_status and fills the caller's sharpi_error.
// Thread rule: no state of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <string_view>

#include "base/call_environment.h"
#include "base/status.h"
#include "sharpi.h"

namespace sharpi::api {

/// No structure of this ABI will ever be larger; what claims to be is an uninitialised number, and
/// to look for its tail, or to clear it, would touch memory that is not the caller's.
inline constexpr uint32_t kMaxStructBytes = 4096;

/// Writes at most err->struct_size bytes of a sharpi_error. Allocates nothing. err may be null.
sharpi_status report(sharpi_error* err, Code code, int32_t native, std::string_view text) noexcept;
inline sharpi_status report(sharpi_error* err, const Status& status) noexcept {
  return report(err, status.code(), status.native(), status.text());
}

/// Copies text as a NUL-terminated string into `out[cap]`, cut where a UTF-8 character begins.
/// Control characters become spaces, since a text is one line, also when it quotes a file, and
/// bytes that are part of no character question marks. Pre: cap > 0.
void copy_line(std::string_view text, char* out, size_t cap) noexcept;

/// Runs `body`, a callable that returns Status.
template <class Body>
sharpi_status guard(sharpi_error* err, Body&& body) noexcept {
  const CallEnvironment environment;
  try {
    const Status status = body();
    return status.is_ok() ? SHARPI_OK : report(err, status);
  } catch (const std::bad_alloc&) {
    return report(err, Code::kOutOfMemory, 0, "host memory for bookkeeping could not be had");
  } catch (const std::exception& e) {
    return report(err, Code::kInternal, 0, e.what());
  } catch (...) {
    return report(err, Code::kInternal, 0, "a callback or the library threw an unknown exception");
  }
}

/// kInvalidArgument naming the argument when the pointer is null.
Status require(const void* pointer, const char* name);
/// kInvalidArgument when an array is null although it has elements.
Status require_array(const void* pointer, uint64_t n, const char* name);
/// kInvalidArgument when bits outside `known` are set.
Status require_flags(uint32_t flags, uint32_t known, const char* name);

}  // namespace sharpi::api
