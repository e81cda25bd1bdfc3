# What the toolchain files of this folder have in common: look_below(<folder> <folders of .pc files> [<more folders>...])
# Libraries, headers and packages are then looked for below these folders alone, programs on this machine.
# PKG_CONFIG_SYSROOT_DIR, where .pc files name places as they are on the other machine, is the caller's.
macro(look_below root pkgconfig)
  set(CMAKE_FIND_ROOT_PATH "${root}" ${ARGN})
  set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
  set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
  set(ENV{PKG_CONFIG_LIBDIR} "${pkgconfig}")
  set(ENV{PKG_CONFIG_SYSROOT_DIR} "")
endmacro()
