# Compiles through ccache where it is installed and no other launcher was chosen
# (CMAKE_CXX_COMPILER_LAUNCHER, also in the environment). What one checkout compiled answers for
# another one at any path: paths below the checkout count from its root, and the precompiled header
# of the tests by its content. The choice is kept for the life of a build folder, because a new
# launcher means that everything is compiled again.
if(NOT DEFINED SHARPI_CCACHE)
  find_program(SHARPI_CCACHE_FOUND ccache NO_CACHE)
  if(NOT SHARPI_CCACHE_FOUND)
    set(SHARPI_CCACHE_FOUND "")
  endif()
  set(SHARPI_CCACHE "${SHARPI_CCACHE_FOUND}" CACHE STRING "Compiler cache; empty for none")
endif()
if(SHARPI_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER AND PROJECT_IS_TOP_LEVEL)
  set(launcher "${CMAKE_COMMAND}" -E env
    "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    "${SHARPI_CCACHE}")
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()
