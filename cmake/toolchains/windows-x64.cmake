# Windows 10 and later on x86-64, from Debian's MinGW-w64. SHARPI_WINDOWS_ROOT is the folder that
# tools/setup/windows.sh makes: static PCRE2, utf8proc and GoogleTest, and headers of what has no
# library. Programs run under Wine.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc-posix)
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_RC_COMPILER x86_64-w64-mingw32-windres)
if(NOT SHARPI_WINDOWS_ROOT)
  set(SHARPI_WINDOWS_ROOT "${CMAKE_CURRENT_LIST_DIR}/../../build-windows/root")
endif()
get_filename_component(SHARPI_WINDOWS_ROOT "${SHARPI_WINDOWS_ROOT}" ABSOLUTE)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SHARPI_WINDOWS_ROOT)
include("${CMAKE_CURRENT_LIST_DIR}/look_below.cmake")
look_below("${SHARPI_WINDOWS_ROOT}" "${SHARPI_WINDOWS_ROOT}/lib/pkgconfig" /usr/x86_64-w64-mingw32)
set(CMAKE_CROSSCOMPILING_EMULATOR "${CMAKE_CURRENT_LIST_DIR}/../../tools/windows/wine.sh")
