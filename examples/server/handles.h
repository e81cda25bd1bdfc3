// SPDX-License-Identifier: MIT
// Handles of sharpi.h that free themselves, and failures of the library as exceptions with its
// sentence. Thread rule: that of the handles.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "sharpi.h"

namespace server {

/// A call of the library that failed: status and sentence.
class LibraryError : public std::runtime_error {
 public:
  explicit LibraryError(const sharpi_error& err)
      : std::runtime_error(err.text), status_(err.status), native_(err.native_code) {}
  sharpi_status status() const { return status_; }
  int32_t native_code() const { return native_; }

 private:
  sharpi_status status_;
  int32_t native_;
};

inline void check(sharpi_status status, const sharpi_error& err) {
  if (status != SHARPI_OK) throw LibraryError(err);
}

inline bool is_short_of_memory(sharpi_status status) {
  return status == SHARPI_E_DOES_NOT_FIT || status == SHARPI_E_OUT_OF_MEMORY;
}

template <auto destroy>
struct Destroy {
  template <typename T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};
using ContextHandle = std::unique_ptr<sharpi_context, Destroy<sharpi_context_destroy>>;
using PlanHandle = std::unique_ptr<sharpi_plan, Destroy<sharpi_plan_destroy>>;
using ModelHandle = std::unique_ptr<sharpi_model, Destroy<sharpi_model_destroy>>;
using AdapterHandle = std::unique_ptr<sharpi_adapter, Destroy<sharpi_adapter_destroy>>;
using SessionHandle = std::unique_ptr<sharpi_session, Destroy<sharpi_session_destroy>>;

/// What a call writes into a buffer of unknown size: call(buffer, capacity, out_length, error).
/// Out is a std::string or a std::vector.
template <typename Out, typename Length, typename Call>
Out sized(Call call) {
  Out out(256, typename Out::value_type());
  for (;;) {
    sharpi_error err = SHARPI_ERROR_INIT;
    Length needed = 0;
    const sharpi_status status = call(out.data(), static_cast<Length>(out.size()), &needed, &err);
    if (status == SHARPI_E_BUFFER_TOO_SMALL && needed > out.size()) {
      out.resize(needed);
      continue;
    }
    check(status, err);
    out.resize(needed);
    return out;
  }
}

}  // namespace server
