// SPDX-License-Identifier: MIT
// The program's operator new: where the system gives no memory any more, small pieces come from a
// spare that was set aside. So what unwinds after a failed allocation, says so to a client, and
// takes apart what was made, has what little it needs for that, also in destructors of the JSON
// library and of the C++ library, which would end the program otherwise. Thread rule: any thread.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

namespace {

constexpr size_t kUnit = 64, kUnits = 65536;  // 4 MiB, whose pages are taken when they are used
constexpr size_t kLargest = 256 << 10;
constexpr uint32_t kTaken = UINT32_MAX;

alignas(kUnit) std::byte spare[kUnit * kUnits];
// Of the first unit of a piece its length in units, of the others kTaken; 0: free.
std::array<uint32_t, kUnits> runs;
std::mutex spare_mutex;

void* take_spare(size_t bytes) {
  const size_t n = (bytes + kUnit - 1) / kUnit;
  const std::lock_guard lock(spare_mutex);
  size_t free = 0;
  for (size_t i = 0; i < kUnits; ++i) {
    free = runs[i] == 0 ? free + 1 : 0;
    if (free < n) continue;
    const size_t first = i + 1 - n;
    for (size_t k = first; k <= i; ++k) runs[k] = kTaken;
    runs[first] = static_cast<uint32_t>(n);
    return spare + first * kUnit;
  }
  return nullptr;
}

bool is_spare(const void* piece) {
  return piece >= static_cast<const void*>(spare) &&
         piece < static_cast<const void*>(spare + sizeof spare);
}

void give_spare_back(void* piece) {
  const std::lock_guard lock(spare_mutex);
  const size_t first = static_cast<size_t>(static_cast<std::byte*>(piece) - spare) / kUnit;
  const size_t n = runs[first];
  for (size_t k = first; k < first + n; ++k) runs[k] = 0;
}

}  // namespace

void* operator new(size_t bytes) {
  bytes = bytes == 0 ? 1 : bytes;
  void* piece = std::malloc(bytes);
  if (piece == nullptr && bytes <= kLargest) piece = take_spare(bytes);
  if (piece == nullptr) throw std::bad_alloc();
  return piece;
}

void operator delete(void* piece) noexcept {
  is_spare(piece) ? give_spare_back(piece) : std::free(piece);
}
void operator delete(void* piece, size_t) noexcept {
  operator delete(piece);
}
