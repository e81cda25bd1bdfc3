// SPDX-License-Identifier: MIT
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "private_folder.h"
#include "settings.h"

namespace server {

struct PrivateFolder::System {
  int folder = -1;
  ~System() {
    if (folder >= 0) close(folder);
  }
};

PrivateFolder::PrivateFolder(const std::string& path, const std::string& what)
    : system_(std::make_unique<System>()) {
  const auto refuse = [&](const std::string& fault) { throw SettingsError(what + " " + fault); };
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    refuse(std::string("cannot be made: ") + std::strerror(errno));
  }
  const int fd = system_->folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) refuse(std::string("cannot be opened: ") + std::strerror(errno));
  struct stat info {};
  if (fstat(fd, &info) != 0 || info.st_uid != geteuid()) refuse("belongs to somebody else");
  if ((info.st_mode & 077) != 0) refuse("can be entered by others: its mode has to be 0700");
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) refuse("is in use by another server");
}
PrivateFolder::~PrivateFolder() = default;

OpenFile PrivateFolder::make(const std::string& name) const {
  const int fd = openat(system_->folder, name.c_str(),
                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  OpenFile file(fd < 0 ? nullptr : fdopen(fd, "wb"), std::fclose);
  if (fd >= 0 && file == nullptr) close(fd);
  return file;
}

OpenFile PrivateFolder::open(const std::string& name, uint64_t bytes) const {
  const int fd = openat(system_->folder, name.c_str(),
                        O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  struct stat info {};
  const bool is_it = fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
                     info.st_uid == geteuid() && static_cast<uint64_t>(info.st_size) == bytes;
  OpenFile file(is_it ? fdopen(fd, "rb") : nullptr, std::fclose);
  if (fd >= 0 && file == nullptr) close(fd);
  return file;
}

void PrivateFolder::remove(const std::string& name) const noexcept {
  unlinkat(system_->folder, name.c_str(), 0);
}

void PrivateFolder::remove_all(const std::function<bool(std::string_view)>& is_such) const {
  const int fd = openat(system_->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const all = fd < 0 ? nullptr : fdopendir(fd);
  if (all == nullptr && fd >= 0) close(fd);
  if (all == nullptr) return;
  while (const dirent* entry = readdir(all)) {
    if (is_such(entry->d_name)) unlinkat(system_->folder, entry->d_name, 0);
  }
  closedir(all);
}

bool seek(std::FILE* file, uint64_t offset) {
  return fseeko(file, static_cast<off_t>(offset), SEEK_SET) == 0;
}

uint64_t process_number() {
  return static_cast<uint64_t>(getpid());
}

}  // namespace server
