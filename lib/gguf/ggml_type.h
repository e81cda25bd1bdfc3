// SPDX-License-Identifier: MIT
// The tensor types of GGUF files: block geometry, and dequantisation to f32 in plain code. The
// plain code is the reference for every tuned kernel, on every tier.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
// Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sharpi {

/// Numbers are those stored in GGUF files.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
  kQ1_0 = 41,
  kQ2_0 = 42,
};

struct GgmlTypeTraits {
  const char* name;         // lower case, as in "q4_k"
  uint32_t block_elements;  // elements per block
  uint32_t block_bytes;     // bytes per block
  bool computable;          // dequantize_row and the kernels know it
};

/// Traits of a type id read from a file, or nullptr for an id that no GGUF type has.
const GgmlTypeTraits* ggml_type_traits(uint32_t type_id);
inline const GgmlTypeTraits& ggml_traits(GgmlType type) {
  return *ggml_type_traits(static_cast<uint32_t>(type));
}

/// Bytes of one row of n elements; n must be a multiple of the type's block_elements.
inline uint64_t ggml_row_bytes(GgmlType type, uint64_t n) {
  const GgmlTypeTraits& t = ggml_traits(type);
  return n / t.block_elements * t.block_bytes;
}

/// dst[0..n) = the f32 values of n elements at `src`. Pre: the type is computable, n is a multiple
/// of block_elements. Reads exactly ggml_row_bytes(type, n) bytes, at any alignment.
void dequantize_row(GgmlType type, const void* src, float* dst, uint64_t n);

}  // namespace sharpi
