// SPDX-License-Identifier: MIT
#include "os/dynamic_library.h"

namespace sharpi::os {

std::string library_file(const std::string& name, const std::string& version) {
  return "lib" + name + (version.empty() ? "" : "." + version) + ".dylib";
}

}  // namespace sharpi::os
