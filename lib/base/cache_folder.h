// SPDX-License-Identifier: MIT
// The folder in which things are kept that can be made again (compiled kernels), as the environment
// names it. Thread rule: pure functions; the environment is read as it is.
#pragma once

#include <string>

namespace sharpi {

/// Values of the environment; null = not set.
struct CacheEnvironment {
  const char* named = nullptr;  // SHARPI_CACHE: a folder, or "off"
  const char* user = nullptr;   // the user's folder of caches: XDG_CACHE_HOME, LOCALAPPDATA
  const char* home = nullptr;   // whose ".cache" is that where it has no name
  static CacheEnvironment read();
};

/// The folder, without a slash at its end; empty: nothing is kept.
std::string cache_folder(const CacheEnvironment& environment);
/// Makes the folder, and the one that it lies in. False: there is none.
bool make_cache_folder(const std::string& folder);

}  // namespace sharpi
