// SPDX-License-Identifier: MIT
#include "os/windows/system.h"

namespace sharpi::os {

std::wstring wide(std::string_view utf8) {
  const auto n_in = static_cast<int>(utf8.size());
  const int n = MultiByteToWideChar(CP_UTF8, 0, utf8.data(), n_in, nullptr, 0);
  std::wstring text(static_cast<size_t>(n), L'\0');
  MultiByteToWideChar(CP_UTF8, 0, utf8.data(), n_in, text.data(), n);
  return text;
}

std::string utf8(std::wstring_view text) {
  const auto n_in = static_cast<int>(text.size());
  const int n = WideCharToMultiByte(CP_UTF8, 0, text.data(), n_in, nullptr, 0, nullptr, nullptr);
  std::string out(static_cast<size_t>(n), '\0');
  WideCharToMultiByte(CP_UTF8, 0, text.data(), n_in, out.data(), n, nullptr, nullptr);
  return out;
}

}  // namespace sharpi::os
