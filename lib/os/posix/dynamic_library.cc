// SPDX-License-Identifier: MIT
#include "os/dynamic_library.h"

#include <dlfcn.h>

namespace sharpi::os {

DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

bool DynamicLibrary::open(std::initializer_list<std::string> files) {
  for (const std::string& file : files) {
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    if (handle_ != nullptr) dlclose(handle_);
    handle_ = handle;
    name_ = file;
    return true;
  }
  return false;
}

void* DynamicLibrary::symbol(const char* name) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

}  // namespace sharpi::os
