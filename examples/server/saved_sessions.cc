// SPDX-License-Identifier: MIT
#include "saved_sessions.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>

#include "session_cache.h"

namespace server {
namespace {

using OpenFile = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

[[noreturn]] void refuse(const std::string& folder, const std::string& what) {
  throw SettingsError("--cache-dir " + folder + " " + what);
}

// Opened for this server alone.
int own_folder(const std::string& path) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    refuse(path, std::string("cannot be made: ") + std::strerror(errno));
  }
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) refuse(path, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat info {};
  std::string fault;
  if (fstat(fd, &info) != 0 || info.st_uid != geteuid()) {
    fault = "belongs to somebody else";
  } else if ((info.st_mode & 077) != 0) {
    fault = "can be entered by others: its mode has to be 0700";
  } else if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    fault = "is in use by another server";
  }
  if (fault.empty()) return fd;
  close(fd);
  refuse(path, fault);
}

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

// A new file, for nobody but this user. Null where it cannot be made, or where there is something.
OpenFile made_file(int folder, const std::string& name) {
  const int fd = openat(folder, name.c_str(),
                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  OpenFile file(fd < 0 ? nullptr : fdopen(fd, "wb"), std::fclose);
  if (fd >= 0 && file == nullptr) close(fd);
  return file;
}

// The file that was written, and nothing that was put in its place. Waits for nothing.
OpenFile written_file(int folder, const std::string& name, uint64_t bytes) {
  const int fd =
      openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  struct stat info {};
  const bool is_it = fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
                     info.st_uid == geteuid() && static_cast<uint64_t>(info.st_size) == bytes;
  OpenFile file(is_it ? fdopen(fd, "rb") : nullptr, std::fclose);
  if (fd >= 0 && file == nullptr) close(fd);
  return file;
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
  if (fseeko(file, static_cast<off_t>(offset), SEEK_SET) != 0) return 1;
  return std::fread(out, 1, bytes, file) == bytes ? 0 : 2;
}

}  // namespace

SavedSessions::SavedSessions(const std::string& folder, uint64_t max_bytes)
    : folder_(folder.empty() ? -1 : own_folder(folder)), max_bytes_(max_bytes) {
  if (folder_ >= 0) remove_left();
}

SavedSessions::~SavedSessions() {
  while (!files_.empty()) remove(files_.begin());
  if (folder_ >= 0) close(folder_);
}

// By a server that was killed.
void SavedSessions::remove_left() const {
  const int fd = openat(folder_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const all = fd < 0 ? nullptr : fdopendir(fd);
  if (all == nullptr && fd >= 0) close(fd);
  if (all == nullptr) return;
  while (const dirent* entry = readdir(all)) {
    if (is_saved_session(entry->d_name)) unlinkat(folder_, entry->d_name, 0);
  }
  closedir(all);
}

void SavedSessions::remove(std::list<File>::iterator file) {
  unlinkat(folder_, file->name.c_str(), 0);
  bytes_ -= file->bytes;
  files_.erase(file);
}

bool SavedSessions::save(const sharpi_session* session, const Tokens& tokens) {
  if (folder_ < 0) return false;
  const std::string name = std::to_string(getpid()) + "-" + std::to_string(next_++) + ".session";
  std::list<File> made;  // what is needed for it is there before it is
  made.push_back({tokens, name, 0});
  OpenFile file = made_file(folder_, name);
  if (file == nullptr) return false;
  Writer writer{file.get(), 0, max_bytes_};
  const sharpi_status status =
      sharpi_session_save_to(session, write_piece, &writer, nullptr, nullptr);
  const bool closed = std::fclose(file.release()) == 0;
  if (status != SHARPI_OK || !closed) {
    unlinkat(folder_, name.c_str(), 0);
    return false;
  }
  made.front().bytes = writer.written;
  files_.splice(files_.end(), made);
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
    const OpenFile in = written_file(folder_, file->name, file->bytes);
    const bool read = in != nullptr && sharpi_session_restore_from(session, read_piece, in.get(),
                                                                   nullptr) == SHARPI_OK;
    remove(file);
    return read;
  }
  return false;
}

}  // namespace server
