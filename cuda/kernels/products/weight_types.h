// SPDX-License-Identifier: MIT
// Lists of weight types that kernels have forms for. Launchers refuse others, and a type that joins
// a list does not compile where a kernel's branch leaves it out. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "gguf/ggml_type.h"

namespace sharpi::cuda {

template <GgmlType... kTypes>
struct WeightTypes {
  static constexpr uint32_t kCount = sizeof...(kTypes);
  static constexpr bool has(GgmlType type) { return ((type == kTypes) || ...); }
  template <class Others>
  static constexpr bool are_all_in() {
    return (Others::has(kTypes) && ...);
  }
};

/// The types that have a fixed-point product (fixed_product.cuh).
using FixedTypes = WeightTypes<GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kQ4_0,
                               GgmlType::kQ8_0>;
constexpr bool has_fixed_product(GgmlType type) {
  return FixedTypes::has(type);
}

/// The types that have tiles (tiles.cuh).
using TiledTypes = WeightTypes<GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0,
                               GgmlType::kQ5_1, GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K>;

/// Whether a branch has a case for every type of the list: what such branches assert. Their last
/// case needs no comparison, for launchers refuse types that are not in the list.
template <class List, GgmlType... kCases>
inline constexpr bool kBranchIsWhole =
    List::kCount == sizeof...(kCases) && List::template are_all_in<WeightTypes<kCases...>>();

}  // namespace sharpi::cuda
