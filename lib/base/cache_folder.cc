// SPDX-License-Identifier: MIT
#include "base/cache_folder.h"

#include <cstdlib>
#include <string_view>

#include "os/file.h"

namespace sharpi {
namespace {

bool is_set(const char* value) {
  return value != nullptr && *value != '\0';
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && (path.back() == '/' || path.back() == '\\')) path.pop_back();
  return path;
}

}  // namespace

CacheEnvironment CacheEnvironment::read() {
  CacheEnvironment e;
  e.named = std::getenv("SHARPI_CACHE");
#ifdef _WIN32
  e.user = std::getenv("LOCALAPPDATA");
#else
  e.user = std::getenv("XDG_CACHE_HOME");
  e.home = std::getenv("HOME");
#endif
  return e;
}

std::string cache_folder(const CacheEnvironment& e) {
  if (is_set(e.named)) {
    const std::string_view named = e.named;
    return named == "off" || named == "0" ? std::string() : without_slash(e.named);
  }
  if (is_set(e.user)) return without_slash(e.user) + "/sharpi";
  return is_set(e.home) ? without_slash(e.home) + "/.cache/sharpi" : std::string();
}

bool make_cache_folder(const std::string& folder) {
  if (os::make_folder(folder.c_str()) == 0) return true;
  const size_t slash = folder.find_last_of("/\\");
  if (slash == std::string::npos || slash == 0) return false;
  return os::make_folder(folder.substr(0, slash).c_str()) == 0 &&
         os::make_folder(folder.c_str()) == 0;
}

}  // namespace sharpi
