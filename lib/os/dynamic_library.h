// SPDX-License-Identifier: MIT
// A shared library that is looked for at run time: what a machine may lack must not be linked.
// Thread rule: one owner; symbol() may be called from any thread.
#pragma once

#include <initializer_list>
#include <string>

namespace sharpi::os {

class DynamicLibrary {
 public:
  DynamicLibrary() = default;
  ~DynamicLibrary();
  DynamicLibrary(const DynamicLibrary&) = delete;
  DynamicLibrary& operator=(const DynamicLibrary&) = delete;
  /// Opens the first of the files that the loader finds; false if it finds none. What was open
  /// before stays open then.
  bool open(std::initializer_list<std::string> files);
  const std::string& name() const { return name_; }  // of the file that was opened
  /// Address of a symbol, nullptr = it has none of that name.
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string name_;
};

/// The file of a version of a library as vendors name it on this system: `name` "cublasLt" and
/// `version` "13" are libcublasLt.so.13, cublasLt64_13.dll or libcublasLt.13.dylib; without a
/// version, what a link names.
std::string library_file(const std::string& name, const std::string& version);

}  // namespace sharpi::os
