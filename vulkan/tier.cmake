# The option of the Vulkan tier (cmake/SharpiGpuTiers.cmake), AUTO = on when the machine has Vulkan's headers and
# glslc, which compiles the shaders.
find_path(SHARPI_VULKAN_HEADERS vulkan/vulkan.h)
find_program(SHARPI_GLSLC glslc)
mark_as_advanced(SHARPI_VULKAN_HEADERS SHARPI_GLSLC)
if(SHARPI_VULKAN_HEADERS AND SHARPI_GLSLC)
  set(SHARPI_WITH_VULKAN ON)
else()
  sharpi_tier_lacks(vulkan "the machine lacks vulkan/vulkan.h or glslc (Debian: libvulkan-dev glslc)")
endif()
