// SPDX-License-Identifier: MIT
// VK_KHR_cooperative_matrix, which headers of 2022 do not have: what is needed of its types and
// numbers (Vulkan specification 1.3.255). Thread rule: plain types.
#pragma once

#include "vulkan/functions.h"

namespace sharpi::vulkan {

inline constexpr const char* kMatrixExtension = "VK_KHR_cooperative_matrix";

struct MatrixFeatures {
  VkStructureType sType = static_cast<VkStructureType>(1000506000);
  void* pNext = nullptr;
  VkBool32 cooperativeMatrix = VK_FALSE, cooperativeMatrixRobustBufferAccess = VK_FALSE;
};

/// One shape that a device multiplies; kinds of elements: kHalf, kFloat.
struct MatrixProperties {
  VkStructureType sType = static_cast<VkStructureType>(1000506001);
  void* pNext = nullptr;
  uint32_t m = 0, n = 0, k = 0;
  int32_t a = 0, b = 0, c = 0, result = 0;
  VkBool32 saturating = VK_FALSE;
  int32_t scope = 0;
};
inline constexpr int32_t kHalf = 0, kFloat = 1, kSubgroupScope = 3;
using GetMatrixProperties = VkResult(VKAPI_PTR*)(VkPhysicalDevice, uint32_t*, MatrixProperties*);

}  // namespace sharpi::vulkan
