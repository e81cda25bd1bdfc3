// SPDX-License-Identifier: MIT
// A shared library that is looked for at run time: what a machine may lack must not be linked.
// Thread rule: one owner; symbol() may be called from any thread.
#pragma once

#include <initializer_list>

namespace sharpi::os {

class DynamicLibrary {
 public:
  DynamicLibrary() = default;
  ~DynamicLibrary();
  DynamicLibrary(const DynamicLibrary&) = delete;
  DynamicLibrary& operator=(const DynamicLibrary&) = delete;
  /// Opens the first of the names that the loader finds; false if it finds none.
  bool open(std::initializer_list<const char*> names);
  const char* name() const { return name_; }  // of the one that was opened
  /// Address of a symbol, nullptr = it has none of that name.
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
  const char* name_ = "";
};

}  // namespace sharpi::os
