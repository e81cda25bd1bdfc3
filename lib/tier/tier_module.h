// SPDX-License-Identifier: MIT
// A GPU tier that is a library of its own beside ours (libsharpi-cuda.so, libsharpi-vulkan.so):
// what it gives to the core. Such a module has its own copy of the layers below the tiers and meets
// the core in objects of C++ alone, so both must be built from the same sources of these layers:
// the text of their interface says so (cmake/SharpiTierInterface.cmake), and the core takes no
// module of another. Thread rule: constants and pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tier/tier.h"

namespace sharpi {

struct TierModuleOptions {
  /// Says why devices are left out.
  std::function<void(const std::string&)> log;
  uint32_t first_index = 1;  // of the module's first device in the context's list
  std::string cache_folder;  // for compiled kernels; empty: none are kept
};

/// What a module's one exported function returns. The first two fields are the same in every
/// version; the others may be read only after both were compared.
struct TierModule {
  const char* name;       // of the tier, as in "CUDA"
  const char* interface;  // of the build that made the module
  Result<std::vector<std::unique_ptr<Backend>>> (*make_backends)(const TierModuleOptions& options);
};

/// The function that a module exports, and its name.
using TierModuleFunction = const TierModule*();
inline constexpr char kTierModuleFunction[] = "sharpi_tier_module";

/// Lets exceptions of the other library through: what it throws and what it calls back into may
/// pass functions of this one (std::bad_alloc above all). In packages each library has GCC's
/// unwinder inside. A copy of it makes its table of registers when it throws for the first time,
/// and ends the process if it has none when an exception of another copy passes. Both sides call
/// this before anything else.
inline void let_exceptions_through() {
  try {
    throw 0;
  } catch (int) {
  }
}

}  // namespace sharpi
