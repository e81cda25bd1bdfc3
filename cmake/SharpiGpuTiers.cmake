# The GPU tiers (gpu_tiers.txt). Each has an option SHARPI_<NAME>: ON, OFF, or AUTO = on when the machine has what it is
# built with; SHARPI_GPU is what they are where nothing else was said. The presets say OFF, because tiers take long to
# compile. As a part of another project they are OFF until that asks for one.
#
# A tier's folder has `tier.cmake`, which is included where the option is not OFF. It sets SHARPI_WITH_<NAME> to ON, or
# says what the machine lacks by sharpi_tier_lacks(); SHARPI_<NAME>_LIBS is what its objects are linked with, and
# SHARPI_<NAME>_PC_LIBS the same for pkg-config.
#
# Sets SHARPI_GPU_TIERS, all of the list, and SHARPI_BUILT_GPU_TIERS; SHARPI_<NAME>_TITLE is what one is called.
set(SHARPI_GPU_DEFAULT OFF)
if(PROJECT_IS_TOP_LEVEL)
  set(SHARPI_GPU_DEFAULT AUTO)
endif()
set(SHARPI_GPU "${SHARPI_GPU_DEFAULT}" CACHE STRING "What the options of GPU tiers are by default: ON, OFF or AUTO")
set_property(CACHE SHARPI_GPU PROPERTY STRINGS AUTO ON OFF)

# The tier cannot be built: an error where it was asked for.
function(sharpi_tier_lacks tier)
  string(TOUPPER "${tier}" upper)
  list(JOIN ARGN "" text)
  if(NOT SHARPI_${upper} STREQUAL "AUTO")
    message(FATAL_ERROR "SHARPI_${upper}=${SHARPI_${upper}}: ${text}")
  endif()
  message(STATUS "No ${SHARPI_${upper}_TITLE} tier: ${text}")
endfunction()

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/gpu_tiers.txt")
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/gpu_tiers.txt" tier_lines REGEX "^[a-z]")
set(SHARPI_GPU_TIERS "")
set(SHARPI_BUILT_GPU_TIERS "")
set(all_rows "")
set(built_rows "")
foreach(tier_line IN LISTS tier_lines)
  string(REPLACE " " ";" tier_words "${tier_line}")
  list(GET tier_words 0 tier)
  list(GET tier_words 2 tier_missed)
  string(TOUPPER "${tier}" tier_upper)
  list(APPEND SHARPI_GPU_TIERS "${tier}")
  list(GET tier_words 1 SHARPI_${tier_upper}_TITLE)
  set(SHARPI_${tier_upper} "${SHARPI_GPU}" CACHE STRING
    "Build the ${SHARPI_${tier_upper}_TITLE} tier: ON, OFF or AUTO")
  set_property(CACHE SHARPI_${tier_upper} PROPERTY STRINGS AUTO ON OFF)
  set(SHARPI_WITH_${tier_upper} OFF)
  if(tier_missed STREQUAL "missed")
    set(tier_row " X(${tier}, \"${SHARPI_${tier_upper}_TITLE}\", true)")
  else()
    set(tier_row " X(${tier}, \"${SHARPI_${tier_upper}_TITLE}\", false)")
  endif()
  string(APPEND all_rows "${tier_row}")
  if(SHARPI_${tier_upper})
    if(EXISTS "${PROJECT_SOURCE_DIR}/${tier}/tier.cmake")
      include("${PROJECT_SOURCE_DIR}/${tier}/tier.cmake")
    else()
      sharpi_tier_lacks(${tier} "these sources have no folder ${tier}")
    endif()
  endif()
  if(SHARPI_WITH_${tier_upper})
    list(APPEND SHARPI_BUILT_GPU_TIERS "${tier}")
    string(APPEND built_rows "${tier_row}")
  endif()
endforeach()

# The same for C++: X(name, title, is_missed) for each.
list(JOIN SHARPI_GPU_TIERS ", " all_names)
set(SHARPI_GPU_TIER_LIST "${PROJECT_BINARY_DIR}/gpu_tiers")
file(CONFIGURE OUTPUT "${SHARPI_GPU_TIER_LIST}/api/gpu_tier_list.h" CONTENT
  "#define SHARPI_GPU_TIERS(X)${all_rows}
#define SHARPI_BUILT_IN_GPU_TIERS(X)${built_rows}
#define SHARPI_GPU_TIERS_TEXT \"${all_names}\"
")
