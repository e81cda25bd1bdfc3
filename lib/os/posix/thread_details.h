// SPDX-License-Identifier: MIT
// What systems of POSIX have each in a way of its own, for posix/threads.cc.
#pragma once

namespace sharpi::os {

/// What tools show for the calling thread; at most 15 letters.
void name_this_thread(const char* name);

}  // namespace sharpi::os
