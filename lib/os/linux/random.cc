// SPDX-License-Identifier: MIT
#include "os/random.h"

#include <sys/random.h>

namespace sharpi::os {

bool random_bytes(void* out, size_t bytes) {
  return getrandom(out, bytes, 0) == static_cast<ssize_t>(bytes);
}

}  // namespace sharpi::os
