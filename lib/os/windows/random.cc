// SPDX-License-Identifier: MIT
#include "os/random.h"

#include <bcrypt.h>

#include "os/windows/system.h"

namespace sharpi::os {

bool random_bytes(void* out, size_t bytes) {
  return BCryptGenRandom(nullptr, static_cast<PUCHAR>(out), static_cast<ULONG>(bytes),
                         BCRYPT_USE_SYSTEM_PREFERRED_RNG) == 0;
}

}  // namespace sharpi::os
