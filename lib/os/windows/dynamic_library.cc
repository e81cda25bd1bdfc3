// SPDX-License-Identifier: MIT
#include "os/dynamic_library.h"

#include "os/windows/system.h"

namespace sharpi::os {

DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr) FreeLibrary(static_cast<HMODULE>(handle_));
}

bool DynamicLibrary::open(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    // Never from the current folder, where anybody may have put one of that name.
    constexpr DWORD kWhere = LOAD_LIBRARY_SEARCH_DEFAULT_DIRS;
    const HMODULE handle = LoadLibraryExW(wide(name).c_str(), nullptr, kWhere);
    if (handle == nullptr) continue;
    if (handle_ != nullptr) FreeLibrary(static_cast<HMODULE>(handle_));
    handle_ = handle;
    name_ = name;
    return true;
  }
  return false;
}

void* DynamicLibrary::symbol(const char* name) const {
  if (handle_ == nullptr) return nullptr;
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(handle_), name));
}

}  // namespace sharpi::os
