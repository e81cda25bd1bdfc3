// SPDX-License-Identifier: MIT
#include "support/watched_new.h"

#include <atomic>
#include <cstring>
#include <new>

#include "os/pages.h"

namespace {
std::atomic<uint64_t> n_allocations{0}, live_bytes{0}, library_live{0}, largest{0};
std::atomic<int> countdown{0}, n_library_calls{0};

/// Stands in front of every allocation.
struct Front {
  uint64_t bytes = 0, of_library = 0;
};
constexpr std::size_t kLeast = 16;
static_assert(sizeof(Front) <= kLeast);

void* counted(std::size_t bytes, std::size_t before) noexcept {
  const std::size_t whole = (before + bytes + before - 1) / before * before;
  auto* p = static_cast<char*>(sharpi::os::allocate_aligned(before, whole));
  if (p == nullptr) return nullptr;
  const Front front{bytes, n_library_calls.load(std::memory_order_relaxed) != 0 ? 1u : 0u};
  std::memcpy(p, &front, sizeof front);
  n_allocations.fetch_add(1, std::memory_order_relaxed);
  live_bytes.fetch_add(bytes, std::memory_order_relaxed);
  if (front.of_library != 0) library_live.fetch_add(bytes, std::memory_order_relaxed);
  for (uint64_t most = largest.load(std::memory_order_relaxed); most < bytes;) {
    if (largest.compare_exchange_weak(most, bytes, std::memory_order_relaxed)) break;
  }
  return p + before;
}
void* taken(std::size_t bytes, std::size_t before) {
  if (countdown > 0 && --countdown == 0) throw std::bad_alloc();
  void* p = counted(bytes, before);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void given(void* at, std::size_t before) noexcept {
  if (at == nullptr) return;
  char* p = static_cast<char*>(at) - before;
  Front front;
  std::memcpy(&front, p, sizeof front);
  live_bytes.fetch_sub(front.bytes, std::memory_order_relaxed);
  if (front.of_library != 0) library_live.fetch_sub(front.bytes, std::memory_order_relaxed);
  sharpi::os::free_aligned(p);
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
uint64_t largest_allocation() {
  return largest;
}
LibraryCall::LibraryCall() noexcept {
  ++n_library_calls;
}
LibraryCall::~LibraryCall() {
  --n_library_calls;
}
uint64_t library_bytes() {
  return library_live.load();
}
void fail_new(int n) {
  countdown = n;
}
bool new_pending() {
  return countdown > 0;
}

}  // namespace sharpi::testing
