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
  const std::string& why() const { return why_; }    // what the loader said of the last file
  /// Address of a symbol, nullptr = it has none of that name.
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string name_, why_;
};

/// The file of a version of a library as vendors name it on this system: `name` "cublasLt" and
/// `version` "13" are libcublasLt.so.13, cublasLt64_13.dll or libcublasLt.13.dylib; without a
/// version, what a link names.
std::string library_file(const std::string& name, const std::string& version);

/// The folder of the file that this code was loaded from, with a separator at its end; symbolic
/// links are followed where the loader leaves them. Empty where the system does not say.
std::string code_folder();

}  // namespace sharpi::os
