// SPDX-License-Identifier: MIT
// Idle sessions as files in a folder of the server's own, the least used removed first. Nobody else
// may read folder and files; only one server at a time has the folder. Files do not outlive the
// server: what it left is removed when it ends, or, if it was killed, when the next one starts.
// Thread rule: the compute thread only, but for the constructor.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "engine.h"
#include "private_folder.h"

namespace server {

class SavedSessions {
 public:
  /// @param folder made where it is not there yet; empty: nothing is saved. Throws SettingsError
  /// with a sentence where the folder cannot be had for the server alone.
  SavedSessions(const std::string& folder, uint64_t max_bytes);
  ~SavedSessions();
  SavedSessions(const SavedSessions&) = delete;
  SavedSessions& operator=(const SavedSessions&) = delete;

  /// False where it cannot be written, or is longer than all saved sessions may be.
  bool save(const sharpi_session* session, const Tokens& tokens, const LoraScales& lora);
  /// The tokens of the saved session with these adapters that begins most like the prompt; null =
  /// there is none.
  const Tokens* best(const Tokens& prompt, const LoraScales& lora, uint32_t* common) const;
  /// Fills the session with the one that best() named, and removes the file. False: it could not
  /// be read, and the session is as it was, or empty.
  bool restore(const Tokens* saved, sharpi_session* session);

 private:
  struct File {
    Tokens tokens;
    LoraScales lora;
    std::string name;
    uint64_t bytes;
  };
  void remove(std::list<File>::iterator file);

  const std::unique_ptr<PrivateFolder> folder_;  // null: none
  const uint64_t max_bytes_;
  uint64_t bytes_ = 0, next_ = 1;
  std::list<File> files_;  // the oldest first
};

}  // namespace server
