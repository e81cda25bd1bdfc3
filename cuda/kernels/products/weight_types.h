// SPDX-License-Identifier: MIT
// Lists of weight types that kernels have forms for, and the one branch over each. Launchers refuse
// other types by a status, and a list that a type joins does not compile until the branches below
// have it. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <type_traits>

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
  template <class F>
  static constexpr bool all(const F& f) {
    return (f(kTypes) && ...);
  }
  /// Calls f.operator()<t>() for the type t of the list that `type` is; false: it is none of them.
  template <class F>
  static bool visit(GgmlType type, const F& f) {
    return ((type == kTypes && (f.template operator()<kTypes>(), true)) || ...);
  }
};

/// The types that have a fixed-point product (fixed_product.cuh).
using FixedTypes = WeightTypes<GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kQ4_0,
                               GgmlType::kQ8_0>;
constexpr bool has_fixed_product(GgmlType type) {
  return FixedTypes::has(type);
}

/// The types that have tiles (tiles.cuh).
using TiledTypes =
    WeightTypes<GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1,
                GgmlType::kMXFP4, GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K>;

/// The types that tiles of gemm.cu have: those, and f16 (gemm_stage.cu makes such tiles of others).
using GemmTypes = WeightTypes<GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0,
                              GgmlType::kQ5_1, GgmlType::kMXFP4, GgmlType::kQ4_K, GgmlType::kQ5_K,
                              GgmlType::kQ6_K, GgmlType::kF16>;
static_assert(TiledTypes::are_all_in<GemmTypes>() && GemmTypes::has(GgmlType::kF16) &&
              GemmTypes::kCount == TiledTypes::kCount + 1);

/// The types whose rows are read as the file has them (rows.cuh).
using RowTypes = WeightTypes<GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ4_0,
                             GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kQ8_0,
                             GgmlType::kIQ4_NL, GgmlType::kMXFP4, GgmlType::kQ2_K, GgmlType::kQ3_K,
                             GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kIQ4_XS>;

/// Whether a branch has a case for every type of the list: what such branches assert. Their last
/// case needs no comparison, for launchers refuse types that are not in the list.
template <class List, GgmlType... kCases>
inline constexpr bool kBranchIsWhole =
    List::kCount == sizeof...(kCases) && List::template are_all_in<WeightTypes<kCases...>>();

#ifdef __CUDACC__
/// f.operator()<type>() of a type of the list, which is TiledTypes or GemmTypes; launchers refuse
/// others. It is a switch because the compiler gives kernels more registers where it is a chain of
/// comparisons that is unfolded from the list.
template <class List, class F>
__device__ __forceinline__ void with_type_of(GgmlType type, const F& f) {
  constexpr bool kWithF16 = std::is_same_v<List, GemmTypes>;
  constexpr GgmlType kLast = kWithF16 ? GgmlType::kF16 : GgmlType::kQ6_K;
  static_assert(kWithF16 || std::is_same_v<List, TiledTypes>);
  static_assert(kBranchIsWhole<TiledTypes, GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1,
                               GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kMXFP4, GgmlType::kQ4_K,
                               GgmlType::kQ5_K, GgmlType::kQ6_K>);
  switch (type) {
    case GgmlType::kQ8_0:
      return f.template operator()<GgmlType::kQ8_0>();
    case GgmlType::kQ4_0:
      return f.template operator()<GgmlType::kQ4_0>();
    case GgmlType::kQ4_1:
      return f.template operator()<GgmlType::kQ4_1>();
    case GgmlType::kQ5_0:
      return f.template operator()<GgmlType::kQ5_0>();
    case GgmlType::kQ5_1:
      return f.template operator()<GgmlType::kQ5_1>();
    case GgmlType::kMXFP4:
      return f.template operator()<GgmlType::kMXFP4>();
    case GgmlType::kQ4_K:
      return f.template operator()<GgmlType::kQ4_K>();
    case GgmlType::kQ5_K:
      return f.template operator()<GgmlType::kQ5_K>();
    case GgmlType::kQ6_K:
      if constexpr (kWithF16) return f.template operator()<GgmlType::kQ6_K>();
      [[fallthrough]];
    default:  // the last of the list
      return f.template operator()<kLast>();
  }
}
#endif

}  // namespace sharpi::cuda
