// SPDX-License-Identifier: MIT
// The compiled shaders, inside the library. Thread rule: constants.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vulkan/pipelines.h"

namespace sharpi::vulkan {

struct Spirv {
  const uint32_t* words = nullptr;
  size_t bytes = 0;
};
Spirv spirv_of(Shader shader);

}  // namespace sharpi::vulkan
