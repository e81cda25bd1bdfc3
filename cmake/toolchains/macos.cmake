# macOS 13 and later, compiled and linked on another machine by the Clang of the Python package
# `ziglang`, which brings the system's declarations: tools/setup/macos.sh makes SHARPI_MACOS_ROOT, with
# the compiler's commands in bin and static PCRE2 and utf8proc. SHARPI_MACOS_PROCESSOR is arm64 or x86_64.
# Nothing that was made this way has run.
set(SHARPI_MACOS_PROCESSOR arm64 CACHE STRING "arm64 or x86_64")
set(SHARPI_MACOS_ROOT "" CACHE PATH "The folder of tools/setup/macos.sh")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SHARPI_MACOS_PROCESSOR SHARPI_MACOS_ROOT)
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR ${SHARPI_MACOS_PROCESSOR})
set(CMAKE_C_COMPILER "${SHARPI_MACOS_ROOT}/bin/cc")
set(CMAKE_CXX_COMPILER "${SHARPI_MACOS_ROOT}/bin/c++")
set(CMAKE_AR "${SHARPI_MACOS_ROOT}/bin/ar")
set(CMAKE_RANLIB "${SHARPI_MACOS_ROOT}/bin/ranlib")
# Install names are right from the start.
set(CMAKE_INSTALL_NAME_TOOL true)
set(CMAKE_BUILD_WITH_INSTALL_NAME_DIR ON)
# The commands know the target: no folder of a system, no options that name one.
set(CMAKE_OSX_SYSROOT "")
set(CMAKE_OSX_ARCHITECTURES "")
set(CMAKE_OSX_DEPLOYMENT_TARGET "")
include("${CMAKE_CURRENT_LIST_DIR}/look_below.cmake")
look_below("${SHARPI_MACOS_ROOT}" "${SHARPI_MACOS_ROOT}/lib/pkgconfig")
