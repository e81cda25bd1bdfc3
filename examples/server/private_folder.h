// SPDX-License-Identifier: MIT
// A folder that one server has for itself: nobody but its user may enter it, and no second server
// has it at the same time. private_folder_posix.cc and private_folder_windows.cc. Names are those
// of files in it. Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace server {

using OpenFile = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

class PrivateFolder {
 public:
  /// Made where it is not there yet. Throws SettingsError with a sentence that begins with `what`
  /// where it cannot be had for this server alone.
  PrivateFolder(const std::string& path, const std::string& what);
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  /// A new file, for nobody but this user, to be written. Null where it cannot be made, or where
  /// there is something.
  OpenFile make(const std::string& name) const;
  /// The file that was written, and nothing that was put in its place. Waits for nothing.
  OpenFile open(const std::string& name, uint64_t bytes) const;
  void remove(const std::string& name) const noexcept;
  /// Removes the files whose names are such ones.
  void remove_all(const std::function<bool(std::string_view)>& is_such) const;

 private:
  struct System;
  std::unique_ptr<System> system_;
};

/// To a byte of a file, which may be beyond 4 GiB; false where it cannot be had.
bool seek(std::FILE* file, uint64_t offset);
/// A number that no other process of the system has now.
uint64_t process_number();

}  // namespace server
