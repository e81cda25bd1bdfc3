// SPDX-License-Identifier: MIT
// Where KV rows lie: the one addressing rule of every store and every kernel, on every tier.
// A layer group owns one address range in blocks of 64 slots; a block holds, for each layer of the
// group in order, 64 K rows and then 64 V rows:
//   address(slot) = base + (slot / 64) * block_stride + offset(layer, K|V) + (slot % 64) *
//   row_bytes
// Thread rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/codec.h"

namespace sharpi {

inline constexpr uint32_t kKvBlockSlots = 64;

/// One layer's rows, as kernels see them. `n_slots` counts the rows that are readable.
struct KvView {
  std::byte* k = nullptr;     // address of K row 0 (base + K offset of the layer)
  std::byte* v = nullptr;     // address of V row 0
  uint64_t block_stride = 0;  // bytes from one block of 64 slots to the next
  uint32_t k_row_bytes = 0, v_row_bytes = 0;
  KvDtype k_dtype = KvDtype::kF32, v_dtype = KvDtype::kF32;
  uint32_t n_heads = 0;   // KV heads
  uint32_t head_dim = 0;  // elements per head; a row is n_heads * head_dim elements

  std::byte* k_row(uint64_t slot) const {
    return k + slot / kKvBlockSlots * block_stride + slot % kKvBlockSlots * k_row_bytes;
  }
  std::byte* v_row(uint64_t slot) const {
    return v + slot / kKvBlockSlots * block_stride + slot % kKvBlockSlots * v_row_bytes;
  }
};

/// The bytes of a row that belong to one KV head.
struct KvHeadParts {
  struct Part {
    uint32_t offset = 0, bytes = 0;
  };
  Part values;
  Part scales;  // q8_0: behind the values of all heads; else empty
};
inline KvHeadParts kv_head_parts(const KvView& v, bool value, uint32_t head) {
  const KvDtype dtype = value ? v.v_dtype : v.k_dtype;
  if (dtype == KvDtype::kQ8_0) {
    const uint32_t scales = v.head_dim / 32 * 2;
    return {{head * v.head_dim, v.head_dim}, {v.n_heads * v.head_dim + head * scales, scales}};
  }
  const auto bytes = static_cast<uint32_t>(kv_row_bytes(dtype, v.head_dim));
  return {{head * bytes, bytes}, {}};
}

}  // namespace sharpi
