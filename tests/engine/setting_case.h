// SPDX-License-Identifier: MIT
// What the suites over every setting of arithmetic share: a model, how its KV rows are stored, its
// arithmetic and whether it is deterministic, as a test parameter. Thread rule: plain values.
#pragma once

#include <string>
#include <tuple>

#include "engine/engine_case.h"

namespace sharpi::testing {

using Setting = std::tuple<std::string, sharpi_kv_dtype, sharpi_arithmetic, uint32_t>;

inline std::string setting_name(const ::testing::TestParamInfo<Setting>& info) {
  const auto& [model, kv, arithmetic, deterministic] = info.param;
  return short_name(model) + "_" + dtype_text(kv) +
         (arithmetic == SHARPI_ARITHMETIC_EXACT ? "_exact" : "_fast") +
         (deterministic != 0 ? "_deterministic" : "");
}

/// Every setting of every model, with rows stored as one of `dtypes`.
inline auto all_settings(const std::vector<sharpi_kv_dtype>& dtypes = stored_dtypes()) {
  return ::testing::Combine(::testing::ValuesIn(all_models()), ::testing::ValuesIn(dtypes),
                            ::testing::Values(SHARPI_ARITHMETIC_EXACT, SHARPI_ARITHMETIC_FAST),
                            ::testing::Values(0u, 1u));
}

}  // namespace sharpi::testing
