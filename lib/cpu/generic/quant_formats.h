// SPDX-License-Identifier: MIT
// What is done with the block formats of every instruction set alike. Behind the formats, whose
// names it takes: their header, quant_<isa>_k.h, ends with this one. Everything here has internal
// linkage. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "gguf/ggml_type.h"

namespace sharpi::cpu {
namespace {  // NOLINT: internal linkage keeps code of one instruction set out of other files

/// Calls f with the format of a block type; `otherwise` for the types that are no block type.
template <class Result, class F>
inline Result with_format(GgmlType type, Result otherwise, F f) {
  switch (type) {
    case GgmlType::kQ8_0:
      return f(Q8_0{});
    case GgmlType::kQ4_0:
      return f(Q4_0{});
    case GgmlType::kQ4_1:
      return f(Q4_1{});
    case GgmlType::kQ5_0:
      return f(Q5_0{});
    case GgmlType::kQ5_1:
      return f(Q5_1{});
    case GgmlType::kIQ4_NL:
      return f(IQ4_NL{});
    case GgmlType::kMXFP4:
      return f(MXFP4{});
    case GgmlType::kQ2_K:
      return f(Q2_K{});
    case GgmlType::kQ3_K:
      return f(Q3_K{});
    case GgmlType::kQ4_K:
      return f(Q4_K{});
    case GgmlType::kQ5_K:
      return f(Q5_K{});
    case GgmlType::kQ6_K:
      return f(Q6_K{});
    case GgmlType::kIQ4_XS:
      return f(IQ4_XS{});
    default:
      return otherwise;
  }
}

/// The last, partial unit of a row of blocks of 32, completed with zero bytes (whose scales are
/// zero, or which weigh nothing against zero activations).
template <class Format>
inline const uint8_t* padded_unit(const uint8_t* p, uint64_t n_left, uint8_t* buffer) {
  std::memset(buffer, 0, Format::kUnitBytes);
  std::memcpy(buffer, p, n_left / 32 * Format::kBlockBytes);
  return buffer;
}

}  // namespace
}  // namespace sharpi::cpu
