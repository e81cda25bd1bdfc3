// SPDX-License-Identifier: MIT
// What tests ask of the system, on every one.
// Thread rule: one thread; the environment is the process's.
#pragma once

#include <cstdint>
#include <string>

namespace sharpi::test {

void set_environment(const char* name, const std::string& value);
void unset_environment(const char* name);
/// When a file was changed last, since 1970; false if the system refuses. Windows counts in 100 ns.
[[nodiscard]] bool set_modified(const std::string& path, int64_t seconds, int64_t ns = 0);
/// Bytes of all pages of this process that forks share, as the system counts them; 0 where none can
/// be shared.
uint64_t shared_row_pages();

}  // namespace sharpi::test
