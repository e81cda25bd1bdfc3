// SPDX-License-Identifier: MIT
// Marks memory that is mapped but must not be touched, so that AddressSanitizer reports whoever
// touches it. In builds without it these functions do nothing.
// Thread rule: whoever owns the memory calls them.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define SHARPI_HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SHARPI_HAS_ASAN 1
#endif
#endif

#ifdef SHARPI_HAS_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace sharpi {

#ifdef SHARPI_HAS_ASAN
inline constexpr bool kPoisons = true;
inline void poison(const std::byte* p, uint64_t bytes) {
  if (bytes != 0) __asan_poison_memory_region(p, bytes);
}
inline void unpoison(const std::byte* p, uint64_t bytes) {
  if (bytes != 0) __asan_unpoison_memory_region(p, bytes);
}
inline bool is_poisoned(const std::byte* p) {
  return __asan_address_is_poisoned(p) != 0;
}
#else
inline constexpr bool kPoisons = false;
inline void poison(const std::byte*, uint64_t) {}
inline void unpoison(const std::byte*, uint64_t) {}
inline bool is_poisoned(const std::byte*) {
  return false;
}
#endif

}  // namespace sharpi
