// SPDX-License-Identifier: MIT
#include "os/random.h"

#include <stdlib.h>

namespace sharpi::os {

bool random_bytes(void* out, size_t bytes) {
  arc4random_buf(out, bytes);
  return true;
}

}  // namespace sharpi::os
