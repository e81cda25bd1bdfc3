// SPDX-License-Identifier: MIT
#include "os/dynamic_library.h"

#include <dlfcn.h>

namespace sharpi::os {

DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

bool DynamicLibrary::open(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    if (handle_ != nullptr) dlclose(handle_);
    handle_ = handle;
    name_ = name;
    return true;
  }
  return false;
}

void* DynamicLibrary::symbol(const char* name) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

}  // namespace sharpi::os
