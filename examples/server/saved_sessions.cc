// SPDX-License-Identifier: MIT
#include "saved_sessions.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "session_cache.h"

namespace server {
namespace {

struct Writer {
  std::FILE* file;
  uint64_t written, most;
};

int32_t write_piece(void* user_data, const void* data, uint64_t bytes) {
  auto* w = static_cast<Writer*>(user_data);
  w->written += bytes;
  if (w->written > w->most) return 1;
  return std::fwrite(data, 1, bytes, w->file) == bytes ? 0 : 2;
}

int32_t read_piece(void* user_data, uint64_t offset, void* out, uint64_t bytes) {
  auto* file = static_cast<std::FILE*>(user_data);
  if (std::fseek(file, static_cast<long>(offset), SEEK_SET) != 0) return 1;
  return std::fread(out, 1, bytes, file) == bytes ? 0 : 2;
}

}  // namespace

SavedSessions::SavedSessions(const std::string& folder, uint64_t max_bytes)
    : folder_(folder), max_bytes_(max_bytes) {}

SavedSessions::~SavedSessions() {
  while (!files_.empty()) remove(files_.begin());
}

void SavedSessions::remove(std::list<File>::iterator file) {
  std::remove(file->path.c_str());
  bytes_ -= file->bytes;
  files_.erase(file);
}

bool SavedSessions::save(const sharpi_session* session, const Tokens& tokens) {
  if (folder_.empty()) return false;
  std::error_code ignored;
  std::filesystem::create_directories(folder_, ignored);
  const std::string path =
      folder_ + "/" + std::to_string(getpid()) + "-" + std::to_string(next_++) + ".session";
  std::FILE* file = std::fopen(path.c_str(), "wbx");
  if (file == nullptr) return false;
  Writer writer{file, 0, max_bytes_};
  const sharpi_status status =
      sharpi_session_save_to(session, write_piece, &writer, nullptr, nullptr);
  const bool closed = std::fclose(file) == 0;
  if (status != SHARPI_OK || !closed) {
    std::remove(path.c_str());
    return false;
  }
  files_.push_back({tokens, path, writer.written});
  bytes_ += writer.written;
  while (bytes_ > max_bytes_) remove(files_.begin());
  return true;
}

const Tokens* SavedSessions::best(const Tokens& prompt, uint32_t* common) const {
  const Tokens* found = nullptr;
  *common = 0;
  for (const File& file : files_) {
    const uint32_t length = common_prefix(file.tokens, prompt);
    if (length > *common) {
      *common = length;
      found = &file.tokens;
    }
  }
  return found;
}

bool SavedSessions::restore(const Tokens* saved, sharpi_session* session) {
  for (auto file = files_.begin(); file != files_.end(); ++file) {
    if (&file->tokens != saved) continue;
    std::FILE* in = std::fopen(file->path.c_str(), "rb");
    const bool read =
        in != nullptr && sharpi_session_restore_from(session, read_piece, in, nullptr) == SHARPI_OK;
    if (in != nullptr) std::fclose(in);
    remove(file);
    return read;
  }
  return false;
}

}  // namespace server
