// SPDX-License-Identifier: MIT
// What systems of POSIX have under names of their own, for posix/file.cc. Thread rule: any thread.
#pragma once

#include <sys/stat.h>

#include <cstdint>

namespace sharpi::os {

/// When the contents of a file changed last.
const timespec& modified(const struct stat& info);
/// Advice: a range of an open file will be read soon, or not again.
void advise_reading(int file, uint64_t at, uint64_t bytes);
void advise_forgetting(int file, uint64_t at, uint64_t bytes);

}  // namespace sharpi::os
