// SPDX-License-Identifier: MIT
#include "saved_sessions.h"

#include <cstdio>
#include <string_view>

#include "session_cache.h"

namespace server {
namespace {

// As save() names them: two numbers with a dash between them.
bool is_saved_session(std::string_view name) {
  constexpr std::string_view kEnd = ".session";
  if (!name.ends_with(kEnd)) return false;
  name.remove_suffix(kEnd.size());
  const size_t dash = name.find('-');
  return dash != 0 && dash != std::string_view::npos && dash + 1 != name.size() &&
         name.find_first_not_of("0123456789", dash + 1) == std::string_view::npos &&
         name.substr(0, dash).find_first_not_of("0123456789") == std::string_view::npos;
}

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
  if (!seek(file, offset)) return 1;
  return std::fread(out, 1, bytes, file) == bytes ? 0 : 2;
}

}  // namespace

SavedSessions::SavedSessions(const std::string& folder, uint64_t max_bytes)
    : folder_(folder.empty() ? nullptr
                             : std::make_unique<PrivateFolder>(folder, "--cache-dir " + folder)),
      max_bytes_(max_bytes) {
  if (folder_ != nullptr) folder_->remove_all(is_saved_session);  // of a server that was killed
}

SavedSessions::~SavedSessions() {
  while (!files_.empty()) remove(files_.begin());
}

void SavedSessions::remove(std::list<File>::iterator file) {
  folder_->remove(file->name);
  bytes_ -= file->bytes;
  files_.erase(file);
}

bool SavedSessions::save(const sharpi_session* session, const Tokens& tokens,
                         const LoraScales& lora) {
  if (folder_ == nullptr) return false;
  const std::string name =
      std::to_string(process_number()) + "-" + std::to_string(next_++) + ".session";
  std::list<File> made;  // what is needed for it is there before it is
  made.push_back({tokens, lora, name, 0});
  OpenFile file = folder_->make(name);
  if (file == nullptr) return false;
  Writer writer{file.get(), 0, max_bytes_};
  const sharpi_status status =
      sharpi_session_save_to(session, write_piece, &writer, nullptr, nullptr);
  const bool closed = std::fclose(file.release()) == 0;
  if (status != SHARPI_OK || !closed) {
    folder_->remove(name);
    return false;
  }
  made.front().bytes = writer.written;
  files_.splice(files_.end(), made);
  bytes_ += writer.written;
  while (bytes_ > max_bytes_) remove(files_.begin());
  return true;
}

const Tokens* SavedSessions::best(const Tokens& prompt, const LoraScales& lora,
                                  uint32_t* common) const {
  const Tokens* found = nullptr;
  *common = 0;
  for (const File& file : files_) {
    if (file.lora != lora) continue;
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
    const OpenFile in = folder_->open(file->name, file->bytes);
    const bool read = in != nullptr && sharpi_session_restore_from(session, read_piece, in.get(),
                                                                   nullptr) == SHARPI_OK;
    remove(file);
    return read;
  }
  return false;
}

}  // namespace server
