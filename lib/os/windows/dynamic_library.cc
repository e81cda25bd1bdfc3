// SPDX-License-Identifier: MIT
#include "os/dynamic_library.h"

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
    if (handle == nullptr) continue;
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

}  // namespace sharpi::os
