// SPDX-License-Identifier: MIT
#include "os/dynamic_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>

namespace sharpi::os {

DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

bool DynamicLibrary::open(std::initializer_list<std::string> files) {
  for (const std::string& file : files) {
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      why_ = dlerror();
      continue;
    }
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

std::string code_folder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&code_folder), &info) == 0) return {};
  const std::unique_ptr<char, decltype(&std::free)> path(realpath(info.dli_fname, nullptr),
                                                         &std::free);
  if (path == nullptr) return {};
  const std::string file = path.get();
  return file.substr(0, file.rfind('/') + 1);
}

}  // namespace sharpi::os
