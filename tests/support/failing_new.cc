// SPDX-License-Identifier: MIT
#include "support/failing_new.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace sharpi::testing {
namespace {
std::atomic<int> countdown{0};
}  // namespace

void fail_new(int n) {
  countdown = n;
}
bool new_pending() {
  return countdown > 0;
}

}  // namespace sharpi::testing

void* operator new(std::size_t bytes) {
  if (sharpi::testing::countdown > 0 && --sharpi::testing::countdown == 0) throw std::bad_alloc();
  void* p = std::malloc(bytes == 0 ? 1 : bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
// Else a sanitizer's own would allocate what the operators below free.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
