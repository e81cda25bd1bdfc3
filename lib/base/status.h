// SPDX-License-Identifier: MIT
// Status and Result<T>: how every fallible call inside the library reports. A Status is one code
// of the public ABI, an optional native (errno, CUDA) code, and one sentence. Nothing in the
// library throws; std::bad_alloc may unwind to the boundary guard in lib/api.
// Thread rule: plain values, no shared state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

/// The compiler checks a format and its arguments: printf's, of C99 on every system.
#if defined(__MINGW32__) && !defined(__clang__)
#define SHARPI_FORMAT(format_at, arguments_at) \
  __attribute__((format(gnu_printf, format_at, arguments_at)))
#else
#define SHARPI_FORMAT(format_at, arguments_at) \
  __attribute__((format(printf, format_at, arguments_at)))
#endif

namespace sharpi {

/// The numbers are those of SHARPI_E_* in sharpi.h (sealed by static_assert in lib/api).
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument = -1,
  kOutOfMemory = -2,
  kUnsupported = -3,
  kNotFound = -4,
  kIo = -5,
  kFormat = -6,
  kMismatch = -7,
  kCancelled = -8,
  kKvFull = -9,
  kDoesNotFit = -10,
  kBufferTooSmall = -11,
  kState = -12,
  kBusy = -13,
  kDevice = -14,
  kDeviceLost = -15,
  kInternal = -16,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  static Status ok() { return {}; }
  /// `format` is printf's. The text is one line, no function prefix, no final full stop.
  static Status error(Code code, const char* format, ...) SHARPI_FORMAT(2, 3);
  static Status native_error(Code code, int32_t native, const char* format, ...)
      SHARPI_FORMAT(3, 4);

  bool is_ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  int32_t native() const { return native_; }
  const std::string& text() const { return text_; }

 private:
  Code code_ = Code::kOk;
  int32_t native_ = 0;
  std::string text_;
};

/// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit by intent
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit by intent

  bool is_ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  Status take_status() { return std::move(status_); }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T take() { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace sharpi

/// Returns the Status of `expr` from the enclosing function unless it is ok.
#define SHARPI_TRY(expr)                                                                    \
  do {                                                                                      \
    if (::sharpi::Status sharpi_try_s = (expr); !sharpi_try_s.is_ok()) return sharpi_try_s; \
  } while (0)

#define SHARPI_TRY_CAT2(a, b) a##b
#define SHARPI_TRY_CAT(a, b) SHARPI_TRY_CAT2(a, b)
/// `SHARPI_TRY_ASSIGN(auto x, f());`: x = value of the Result, or return its Status.
#define SHARPI_TRY_ASSIGN(decl, expr)                         \
  auto SHARPI_TRY_CAT(sharpi_r_, __LINE__) = (expr);          \
  if (!SHARPI_TRY_CAT(sharpi_r_, __LINE__).is_ok())           \
    return SHARPI_TRY_CAT(sharpi_r_, __LINE__).take_status(); \
  decl = SHARPI_TRY_CAT(sharpi_r_, __LINE__).take()
