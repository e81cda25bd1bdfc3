// SPDX-License-Identifier: MIT
#include "support/counted_new.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {
std::atomic<uint64_t> n_allocations{0}, live_bytes{0};
// In front of every allocation stands its size.
constexpr std::size_t kLeast = 16;
void* counted(std::size_t bytes, std::size_t before) noexcept {
  const std::size_t whole = (before + bytes + before - 1) / before * before;
  auto* p = static_cast<char*>(std::aligned_alloc(before, whole));
  if (p == nullptr) return nullptr;
  std::memcpy(p, &bytes, sizeof bytes);
  n_allocations.fetch_add(1, std::memory_order_relaxed);
  live_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return p + before;
}
void* taken(std::size_t bytes, std::size_t before) {
  void* p = counted(bytes, before);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void given(void* at, std::size_t before) noexcept {
  if (at == nullptr) return;
  char* p = static_cast<char*>(at) - before;
  std::size_t bytes = 0;
  std::memcpy(&bytes, p, sizeof bytes);
  live_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  std::free(p);
}
std::size_t before_of(std::align_val_t a) {
  return static_cast<std::size_t>(a) < kLeast ? kLeast : static_cast<std::size_t>(a);
}
}  // namespace

// Every form that a sanitizer would else bring is here: what it allocates has no size in front.
void* operator new(std::size_t n) {
  return taken(n, kLeast);
}
void* operator new(std::size_t n, std::align_val_t a) {
  return taken(n, before_of(a));
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return counted(n, kLeast);
}
void* operator new[](std::size_t n) {
  return taken(n, kLeast);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return counted(n, kLeast);
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return taken(n, before_of(a));
}
void operator delete(void* p) noexcept {
  given(p, kLeast);
}
void operator delete[](void* p) noexcept {
  given(p, kLeast);
}
void operator delete(void* p, std::size_t) noexcept {
  given(p, kLeast);
}
void operator delete[](void* p, std::size_t) noexcept {
  given(p, kLeast);
}
void operator delete(void* p, std::align_val_t a) noexcept {
  given(p, before_of(a));
}
void operator delete[](void* p, std::align_val_t a) noexcept {
  given(p, before_of(a));
}
void operator delete[](void* p, std::size_t, std::align_val_t a) noexcept {
  given(p, before_of(a));
}
void operator delete(void* p, std::size_t, std::align_val_t a) noexcept {
  given(p, before_of(a));
}

namespace sharpi::testing {

uint64_t allocations() {
  return n_allocations.load();
}
uint64_t allocated_bytes() {
  return live_bytes.load();
}

}  // namespace sharpi::testing
