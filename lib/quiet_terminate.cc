// SPDX-License-Identifier: MIT
// For the library that packages bring (the target sharpi_bundled), which has GCC's C++ run-time
// library inside: what that does last where an exception finds no handler. Its own function of this
// name writes to stderr what was thrown, which is no library's place to write to, and brings a
// demangler of 40 KB; no code of the library lets an exception come so far.
#include <cstdlib>

namespace __gnu_cxx {

void __verbose_terminate_handler();
void __verbose_terminate_handler() {
  std::abort();
}

}  // namespace __gnu_cxx
