# SHARPI_VULKAN: ON, OFF, or AUTO = on when the machine has Vulkan's headers and glslc, which compiles
# the shaders. Sets SHARPI_WITH_VULKAN. The presets say OFF, as they do for CUDA. As a part of another
# project it is OFF until that asks for it.
set(SHARPI_VULKAN_DEFAULT OFF)
if(PROJECT_IS_TOP_LEVEL)
  set(SHARPI_VULKAN_DEFAULT AUTO)
endif()
set(SHARPI_VULKAN "${SHARPI_VULKAN_DEFAULT}" CACHE STRING "Build the Vulkan tier: ON, OFF or AUTO")
set_property(CACHE SHARPI_VULKAN PROPERTY STRINGS AUTO ON OFF)

set(SHARPI_WITH_VULKAN OFF)
if(SHARPI_VULKAN)
  find_path(SHARPI_VULKAN_HEADERS vulkan/vulkan.h)
  find_program(SHARPI_GLSLC glslc)
  mark_as_advanced(SHARPI_VULKAN_HEADERS SHARPI_GLSLC)
  if(SHARPI_VULKAN_HEADERS AND SHARPI_GLSLC)
    set(SHARPI_WITH_VULKAN ON)
  elseif(NOT SHARPI_VULKAN STREQUAL "AUTO")
    message(FATAL_ERROR "SHARPI_VULKAN=${SHARPI_VULKAN}, but the machine lacks vulkan/vulkan.h or glslc "
      "(Debian: libvulkan-dev glslc)")
  endif()
endif()
