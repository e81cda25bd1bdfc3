# Linux on aarch64, compiled on another machine by GCC's cross compiler (Debian: g++-aarch64-linux-gnu)
# with the libraries of a folder that tools/setup/sysroot_aarch64.sh makes:
#   cmake -B build-arm --toolchain cmake/toolchains/aarch64-linux.cmake -DSHARPI_SYSROOT=FOLDER
# Test programs run under qemu; SHARPI_QEMU_CPU says as which processor.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(SHARPI_SYSROOT "" CACHE PATH "Unpacked libraries for aarch64")
set(SHARPI_QEMU_CPU max CACHE STRING "The processor that qemu plays for test programs")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SHARPI_SYSROOT SHARPI_QEMU_CPU)

include("${CMAKE_CURRENT_LIST_DIR}/look_below.cmake")
look_below("${SHARPI_SYSROOT}"
  "${SHARPI_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${SHARPI_SYSROOT}/usr/share/pkgconfig" /usr/aarch64-linux-gnu)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${SHARPI_SYSROOT}")
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64-static;-cpu;${SHARPI_QEMU_CPU};-L;/usr/aarch64-linux-gnu")
