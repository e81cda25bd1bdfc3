// SPDX-License-Identifier: MIT
// Thread rule: any thread.
#pragma once

#include <cstddef>

namespace sharpi::os {

/// Fills a few bytes with random ones of the system; false where it forbids that.
bool random_bytes(void* out, size_t bytes);

}  // namespace sharpi::os
