// SPDX-License-Identifier: MIT
// A fast 64-bit hash for fingerprints, checksums of saved blobs and hash tables: XXH64 as its
// published specification defines it, in one call or over a stream of pieces. It detects
// accidental damage and is no defence against forgery.
// Format: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
// Thread rule: plain values, no shared state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sharpi {

/// The hash of a byte stream that arrives in pieces; how it is cut does not matter.
class Hash64 {
 public:
  explicit Hash64(uint64_t seed = 0);
  void add(const void* data, uint64_t bytes);
  /// Adds one number as 8 little-endian bytes.
  void add_u64(uint64_t value) { add(&value, sizeof value); }
  /// The hash of everything added so far; adding may go on afterwards.
  uint64_t value() const;

 private:
  static constexpr uint64_t kStripe = 32;
  uint64_t seed_;
  uint64_t total_ = 0;
  std::array<uint64_t, 4> lanes_;
  std::array<std::byte, kStripe> tail_{};  // total_ % kStripe bytes wait here
};

/// The hash of one piece, as Hash64 gives it.
uint64_t hash64(const void* data, uint64_t bytes, uint64_t seed = 0);

/// A hash of a byte stream that several threads can make: block i of kBlock bytes goes to lane
/// i % kLanes, a Hash64, and the hash is that of the lanes' values, 8 little-endian bytes each.
class StripedHash64 {
 public:
  static constexpr uint32_t kLanes = 4;
  static constexpr uint64_t kBlock = 32 << 10;
  /// Of bytes [at, at + n) of the stream, what is for lanes first, first + step, ..: each lane gets
  /// its bytes in their order, from one thread at a time.
  void add(uint64_t at, const void* data, uint64_t n, uint32_t first = 0, uint32_t step = 1);
  uint64_t value() const;

 private:
  struct alignas(64) Lane {
    Hash64 hash;
  };
  std::array<Lane, kLanes> lanes_;
};
/// The striped hash of one piece.
uint64_t striped_hash64(const void* data, uint64_t bytes);

}  // namespace sharpi
