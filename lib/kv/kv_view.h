// SPDX-License-Identifier: MIT
// Where KV rows lie: the one addressing rule of every store and every kernel, on every tier. A
// group of layers owns one range of virtual addresses in blocks of 64 slots; a block holds, for
// each layer of the group in order, 64 K rows and then 64 V rows:
//   address(slot) = base + (slot / 64) * block_stride
//                   + offset(layer, K|V) + (slot % 64) * row_bytes
// Kernels look up no block table as in PagedAttention (paged KV): the rows of a session are
// contiguous in virtual addresses, and memory is mapped behind these as rows come, as in vAttention
// (arXiv 2405.04437). Rows of a session that was compacted by head are in blocks of one head, which
// a table names (kv/head_blocks.h); a view of them has one head:
//   address(slot) = base + table[slot / 64] + (K: 0, V: 64 K rows) + (slot % 64) * row_bytes
// Thread rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/codec.h"

namespace sharpi {

inline constexpr uint32_t kKvBlockSlots = 64;

/// One layer's rows, as kernels see them. `n_slots` counts the rows that are readable. Where one
/// row is key and value, both are the same address, size and codec.
struct KvView {
  std::byte* k = nullptr;     // address of K row 0 (base + K offset of the layer)
  std::byte* v = nullptr;     // address of V row 0
  uint64_t block_stride = 0;  // bytes from one block of 64 slots to the next
  uint32_t k_row_bytes = 0, v_row_bytes = 0;
  KvDtype k_dtype = KvDtype::kF32, v_dtype = KvDtype::kF32;
  uint32_t n_heads = 0;             // KV heads
  uint32_t head_dim = 0;            // elements per head; a row is n_heads * head_dim elements
  const uint64_t* table = nullptr;  // of blocks, in place of block_stride
  bool one_row = false;             // V rows are the K rows

  std::byte* k_row(uint64_t slot) const {
    return k + block(slot / kKvBlockSlots) + slot % kKvBlockSlots * k_row_bytes;
  }
  std::byte* v_row(uint64_t slot) const {
    return v + block(slot / kKvBlockSlots) + slot % kKvBlockSlots * v_row_bytes;
  }
  std::byte* row(bool value, uint64_t slot) const { return value ? v_row(slot) : k_row(slot); }
  uint32_t row_bytes(bool value) const { return value ? v_row_bytes : k_row_bytes; }
  uint64_t block(uint64_t i) const { return table != nullptr ? table[i] : i * block_stride; }
};

/// The bytes of a row that belong to one KV head: a part of each plane. Pre: head_dim is a multiple
/// of the codec's block.
struct KvPart {
  uint32_t offset = 0, bytes = 0;
};
/// The parts of one KV head in a row of K (or of V, if `value`), one per plane.
class KvHeadParts {
 public:
  KvHeadParts(const KvView& v, bool value, uint32_t head) {
    uint32_t plane_start = 0;
    for (const KvPlane& plane : kv_codec(value ? v.v_dtype : v.k_dtype)->planes) {
      const auto bytes = static_cast<uint32_t>(plane.bytes_of(v.head_dim));
      parts_[n_++] = {plane_start + head * bytes, bytes};
      plane_start += v.n_heads * bytes;
    }
  }
  const KvPart* begin() const { return parts_; }
  const KvPart* end() const { return parts_ + n_; }

 private:
  KvPart parts_[kMostKvPlanes];
  size_t n_ = 0;
};

}  // namespace sharpi
