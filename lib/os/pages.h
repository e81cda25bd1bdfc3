// SPDX-License-Identifier: MIT
// Pages of address space and of memory. Functions that give an int return 0 or the system's error
// number. Ranges begin and end at multiples of page_size() unless a line says otherwise.
// Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sharpi::os {

uint64_t page_size();
/// What the processor maps at once where the system lets it: aligned ranges of so many bytes.
inline constexpr uint64_t kHugePage = uint64_t{2} << 20;

/// A block of the C library's heap; null: there is no memory. Pre: `bytes` is a multiple of
/// `alignment`, a power of two.
void* allocate_aligned(uint64_t alignment, uint64_t bytes);
void free_aligned(void* block);

enum class Access { kNone, kRead, kReadWrite };

/// Address space at a multiple of kHugePage. With kReadWrite memory comes when it is touched, and
/// is zero; with kNone the range takes none until protect() allows access. Null: refused, and
/// *error says why.
std::byte* map_pages(uint64_t bytes, Access access, int* error);
void unmap_pages(std::byte* p, uint64_t bytes);
int protect_pages(std::byte* p, uint64_t bytes, Access access);
/// Gives a range memory that later writes cannot fail for.
int populate_pages(std::byte* p, uint64_t bytes);
/// The memory of a private range goes back to the system; it is inaccessible from then on.
void release_pages(std::byte* p, uint64_t bytes);
/// Whatever is mapped in the range goes; its addresses stay taken, without memory.
void clear_mapping(std::byte* p, uint64_t bytes);

/// Whether this system can put pages that several ranges read in the place of others while those
/// are read. Where it cannot, the functions below refuse with the system's "not supported".
bool can_share_pages();

/// Memory somewhere, populated, that move_pages() puts into a range. Null: refused.
std::byte* map_spare(uint64_t bytes, int* error);
/// The memory of map_spare() takes the place of what is mapped at `to`, with its contents. On
/// failure nothing changes.
int move_pages(std::byte* spare, uint64_t bytes, std::byte* to);

/// Memory that several ranges of this process map: a file without a name.
class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  /// Room for `bytes`, without memory yet.
  int create(uint64_t bytes);
  /// Writes `bytes` at `at`, where memory comes for them; any length. After a failure part of it
  /// may be there, until drop() takes it away.
  int write(uint64_t at, const std::byte* from, uint64_t bytes);
  /// Bytes [at, at + bytes) become readable at `to`, in place of what is mapped there, at once.
  int map_read_only(uint64_t at, uint64_t bytes, std::byte* to) const;
  /// The memory of a part goes back to the system. Not in a child of the process that made it: what
  /// it maps are the pages that its parent goes on reading.
  void drop(uint64_t at, uint64_t bytes) const noexcept;

 private:
  int file_ = -1;
  int64_t process_ = 0;
};

}  // namespace sharpi::os
