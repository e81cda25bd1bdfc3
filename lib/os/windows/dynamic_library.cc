// SPDX-License-Identifier: MIT
#include "os/dynamic_library.h"

#include "os/file.h"
#include "os/windows/system.h"

namespace sharpi::os {

DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr) FreeLibrary(static_cast<HMODULE>(handle_));
}

bool DynamicLibrary::open(std::initializer_list<std::string> files) {
  for (const std::string& file : files) {
    // Never from the current folder, where anybody may have put one of that name.
    constexpr DWORD kWhere = LOAD_LIBRARY_SEARCH_DEFAULT_DIRS;
    const HMODULE handle = LoadLibraryExW(wide(file).c_str(), nullptr, kWhere);
    if (handle == nullptr) {
      why_ = error_text(last_error());
      continue;
    }
    if (handle_ != nullptr) FreeLibrary(static_cast<HMODULE>(handle_));
    handle_ = handle;
    name_ = file;
    return true;
  }
  return false;
}

void* DynamicLibrary::symbol(const char* name) const {
  if (handle_ == nullptr) return nullptr;
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(handle_), name));
}

std::string library_file(const std::string& name, const std::string& version) {
  return version.empty() ? name + ".dll" : name + "64_" + version + ".dll";
}

std::string code_folder() {
  constexpr DWORD kFlags =
      GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
  HMODULE module = nullptr;
  if (!GetModuleHandleExW(kFlags, reinterpret_cast<const wchar_t*>(&code_folder), &module)) {
    return {};
  }
  constexpr DWORD kLongestPath = 32768;
  std::wstring file(kLongestPath, L'\0');
  const DWORD n = GetModuleFileNameW(module, file.data(), kLongestPath);
  if (n == 0 || n == kLongestPath) return {};
  file.resize(n);
  return utf8(std::wstring_view(file).substr(0, file.rfind(L'\\') + 1));
}

}  // namespace sharpi::os
