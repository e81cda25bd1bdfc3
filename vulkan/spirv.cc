// SPDX-License-Identifier: MIT
#include "vulkan/spirv.h"

namespace sharpi::vulkan {
namespace {

// The build writes a file for each shader (CMakeLists.txt), a list of words in braces.
#include "vulkan/compiled/vulkan_spirv.inc"

constexpr Spirv kAll[] = {
#define SHARPI_SHADER(name) {k_##name, sizeof k_##name},
#include "vulkan/shaders.inc"
#undef SHARPI_SHADER
};

}  // namespace

Spirv spirv_of(Shader shader) {
  return kAll[static_cast<size_t>(shader)];
}

}  // namespace sharpi::vulkan
