# Layers (docs/architecture.md): each is an object library that can include its own headers and
# those of the layers below it, and no others. The include root of a layer is a directory of
# symbolic links to exactly those folders, so a wrong #include does not compile.
#
#   sharpi_layer(<name> DIR <folder> SEES <layers...> SOURCES <files...> [LIBS <targets...>]
#                [OF <layer>] [APART])
#
# OF: a part of that layer, in its folder. APART: its objects are no part of the library by themselves; who asks for
# them links them.
function(sharpi_layer name)
  cmake_parse_arguments(L "APART" "DIR;OF" "SEES;SOURCES;LIBS" ${ARGN})
  set(root "${PROJECT_BINARY_DIR}/layers/${name}")
  file(MAKE_DIRECTORY "${root}")
  set(own "${name}")
  if(L_OF)
    set(own "${L_OF}")
  endif()
  foreach(dep IN ITEMS ${own} LISTS L_SEES)
    if(dep IN_LIST SHARPI_GPU_TIERS)
      set(from "${PROJECT_SOURCE_DIR}/${dep}")
    else()
      set(from "${PROJECT_SOURCE_DIR}/lib/${dep}")
    endif()
    file(CREATE_LINK "${from}" "${root}/${dep}" SYMBOLIC)
  endforeach()
  list(TRANSFORM L_SOURCES PREPEND "${L_DIR}/")
  add_library(sharpi_${name} OBJECT ${L_SOURCES})
  set_target_properties(sharpi_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(NOT name IN_LIST SHARPI_GPU_TIERS)
    sharpi_unity(sharpi_${name})
  endif()
  target_include_directories(sharpi_${name} PRIVATE "${root}" "${PROJECT_SOURCE_DIR}/include")
  if(WIN32)  # these define what sharpi.h declares
    target_compile_definitions(sharpi_${name} PRIVATE SHARPI_BUILD)
  endif()
  target_link_libraries(sharpi_${name} PRIVATE sharpi_compile ${L_LIBS})
  # These have no loops over weights, rows or vocabularies (sources that have are named by their layer): a level
  # more would only make the library larger and builds longer.
  if(name MATCHES "^(gguf|text_cold|model|plan|tier|group|engine|device|api)$")
    target_compile_options(sharpi_${name} PRIVATE $<$<CONFIG:Release>:-Os>)
  elseif(name STREQUAL "text")
    target_compile_options(sharpi_${name} PRIVATE $<$<CONFIG:Release>:-O2>)
  endif()
  if(NOT L_APART)
    set_property(GLOBAL APPEND PROPERTY SHARPI_LAYERS sharpi_${name})
  endif()
endfunction()
