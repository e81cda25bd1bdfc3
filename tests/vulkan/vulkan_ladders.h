// SPDX-License-Identifier: MIT
// Models over the CPU and the first Vulkan device through the C interface. Thread rule: as
// sharpi.h.
#pragma once

#include <string>

#include "engine/by_head_case.h"
#include "support/device_ladders.h"
#include "vulkan/vulkan_tier.h"

namespace sharpi::testing {

inline LadderMachine vulkan_machine() {
  static const ContextPtr made = context_of(&host_and_vulkan);
  return {made.get()};
}

/// Two layers with heads of so many elements.
inline test::ModelRecipe heads_of(uint32_t dim) {
  test::ModelRecipe r = deep(test::tiny_qwen3(), 2);
  r.head_dim = dim;
  return r;
}

inline std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

}  // namespace sharpi::testing
