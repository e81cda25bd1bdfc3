// SPDX-License-Identifier: MIT
// The one place that names the system's header, and what its functions share here.
// Thread rule: any thread.
#pragma once

#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>

#include <string>
#include <string_view>

namespace sharpi::os {

/// The system's number of what the last call of this thread met.
inline int last_error() {
  return static_cast<int>(GetLastError());
}

/// UTF-8 as the system's functions take it, and back. Bytes that are no UTF-8 become U+FFFD.
std::wstring wide(std::string_view utf8);
std::string utf8(std::wstring_view text);

/// A function of a library of the system that older versions lack; null there.
template <class Function>
Function system_function(const wchar_t* library, const char* name) {
  const HMODULE module = GetModuleHandleW(library);
  if (module == nullptr) return nullptr;
  return reinterpret_cast<Function>(reinterpret_cast<void*>(GetProcAddress(module, name)));
}

}  // namespace sharpi::os
