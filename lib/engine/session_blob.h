// SPDX-License-Identifier: MIT
// The saved form of a session, the same from every tier. Little-endian, in this order:
//   u64 magic, u32 version, u32 n_layers, u64 model content id, u64 total bytes, u32 n_tokens,
//   u32 flags (1 = compacted), u32 ring_low, u32 ring_high, u32 evicted_floor, u32 n_logit_rows,
//   u32 n_checkpoints, u32 n_queries
//   i32 tokens[n_tokens]
//   per layer: u32 kind (0 none, 1 rows, 2 ring, 3 recurrent), u32 k_dtype, u32 v_dtype, u32 first
//     position (rings), u32 n_rows, u32 n_compacted, u32 tail_position, u32 n_lists,
//     u32 positions[n_lists][n_compacted], then the K rows, the V rows (canonical), or f32 state
//     and conv tail
//   per full-attention layer: f32 queries[n_queries][n_heads * head_dim], of the last positions
//   f32 logits[n_logit_rows][n_vocab]
//   per checkpoint: u32 n_tokens, u32 pinned, u64 age, then f32 state and conv of every recurrent
//   layer u64 XXH64 of all bytes before
// Thread rule: plain functions over caller-owned bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sharpi {

inline constexpr uint64_t kBlobMagic = 0x31564B4950524853ull;  // "SHRPIKV1"
inline constexpr uint32_t kBlobVersion = 1;
enum class BlobLayer : uint32_t { kNone = 0, kRows = 1, kRing = 2, kRecurrent = 3 };

/// Fixed part of a blob, as stored.
struct BlobHeader {
  uint64_t magic = kBlobMagic;
  uint32_t version = kBlobVersion;
  uint32_t n_layers = 0;
  uint64_t content_id = 0;
  uint64_t total_bytes = 0;
  uint32_t n_tokens = 0;
  uint32_t flags = 0;
  uint32_t ring_low = 0, ring_high = 0, evicted_floor = 0;
  uint32_t n_logit_rows = 0, n_checkpoints = 0, n_queries = 0;
};
static_assert(sizeof(BlobHeader) == 64);

/// Head of one layer's part, as stored.
struct BlobLayerHeader {
  BlobLayer kind = BlobLayer::kNone;
  uint32_t k_dtype = 0, v_dtype = 0;
  uint32_t first_position = 0;
  uint32_t n_rows = 0, n_compacted = 0, tail_position = 0, n_lists = 0;
};
static_assert(sizeof(BlobLayerHeader) == 32);

struct BlobCheckpointHeader {
  uint32_t n_tokens = 0, pinned = 0;
  uint64_t age = 0;
};
static_assert(sizeof(BlobCheckpointHeader) == 16);

/// Appends to a buffer, or only counts when there is none: one code path for size and content.
class BlobWriter {
 public:
  explicit BlobWriter(std::byte* out) : out_(out) {}
  void put(const void* data, uint64_t bytes) {
    if (out_ != nullptr && bytes != 0) std::memcpy(out_ + at_, data, bytes);
    at_ += bytes;
  }
  /// The next `bytes` bytes to be filled by the caller; null while counting.
  std::byte* take(uint64_t bytes) {
    std::byte* p = out_ == nullptr ? nullptr : out_ + at_;
    at_ += bytes;
    return p;
  }
  uint64_t bytes() const { return at_; }

 private:
  std::byte* out_;
  uint64_t at_ = 0;
};

/// Reads with every step checked; after a failed step everything fails.
class BlobReader {
 public:
  BlobReader(const std::byte* data, uint64_t bytes) : data_(data), left_(bytes) {}
  /// The next `bytes` bytes, or null.
  const std::byte* take(uint64_t bytes) {
    if (bytes > left_) {
      left_ = 0;
      return nullptr;
    }
    const std::byte* p = data_;
    data_ += bytes;
    left_ -= bytes;
    return p;
  }
  bool get(void* out, uint64_t bytes) {
    const std::byte* p = take(bytes);
    if (p != nullptr && bytes != 0) std::memcpy(out, p, bytes);
    return p != nullptr;
  }
  uint64_t left() const { return left_; }

 private:
  const std::byte* data_;
  uint64_t left_;
};

}  // namespace sharpi
