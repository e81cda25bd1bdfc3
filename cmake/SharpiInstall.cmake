# What `cmake --install` puts where: header, both libraries, pkg-config file, CMake package.
# The package can be moved after installation: nothing in it names the prefix.
include(CMakePackageConfigHelpers)

set(SHARPI_CMAKE_RUNTIME ${SHARPI_CXX_RUNTIME} ${CMAKE_DL_LIBS})
# The archive's users link what its GPU tiers need themselves: of CUDA, the toolkit's static run-time library.
set(SHARPI_CMAKE_CUDA ${SHARPI_CUDA_LIBS})
set(SHARPI_PC_GPU "")
foreach(tier IN LISTS SHARPI_BUILT_GPU_TIERS)
  string(TOUPPER "${tier}" upper)
  string(APPEND SHARPI_PC_GPU "${SHARPI_${upper}_PC_LIBS}")
endforeach()
list(TRANSFORM SHARPI_CMAKE_RUNTIME PREPEND "-l" OUTPUT_VARIABLE SHARPI_PC_LIBS_PRIVATE)
list(JOIN SHARPI_PC_LIBS_PRIVATE " " SHARPI_PC_LIBS_PRIVATE)
list(JOIN SHARPI_CMAKE_RUNTIME " " SHARPI_CMAKE_RUNTIME)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/sharpi")
install(FILES "${PROJECT_SOURCE_DIR}/include/sharpi.h"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT Development)
install(TARGETS sharpi EXPORT sharpi_shared
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT Runtime
        NAMELINK_COMPONENT Development
        RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT Runtime
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT Development)
# "Cuda" for cuda: what the component of a tier is called.
function(sharpi_tier_component tier out)
  string(SUBSTRING "${tier}" 0 1 first)
  string(SUBSTRING "${tier}" 1 -1 rest)
  string(TOUPPER "${first}" first)
  set(${out} "${first}${rest}" PARENT_SCOPE)
endfunction()
# Modules with a GPU tier: the library finds them where it lies itself.
foreach(tier IN LISTS SHARPI_BUILT_GPU_TIERS)
  if(TARGET sharpi_${tier}_module)
    sharpi_tier_component(${tier} component)
    install(TARGETS sharpi_${tier}_module
            LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT "${component}")
  endif()
endforeach()
install(TARGETS sharpi_static EXPORT sharpi_static
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT Development)

# Two files, because only users of the archive need its dependencies on their machine.
install(EXPORT sharpi_shared FILE sharpi-shared.cmake NAMESPACE sharpi::
        DESTINATION "${package_dir}" COMPONENT Development)
install(EXPORT sharpi_static FILE sharpi-static.cmake NAMESPACE sharpi::
        DESTINATION "${package_dir}" COMPONENT Development)
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/sharpi-config.cmake.in" "${PROJECT_BINARY_DIR}/sharpi-config.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/sharpi-config-version.cmake" COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/sharpi-config.cmake"
              "${PROJECT_BINARY_DIR}/sharpi-config-version.cmake"
        DESTINATION "${package_dir}" COMPONENT Development)

# The component Package is for archives that bring their own copy of everything (make dist): nothing of it
# is installed unless it is named.
set(bundled_type "")
if(TARGET sharpi_bundled)
  get_target_property(bundled_type sharpi_bundled TYPE)
endif()
if(bundled_type STREQUAL "SHARED_LIBRARY")
  install(FILES "${PROJECT_SOURCE_DIR}/include/sharpi.h" DESTINATION include
          COMPONENT Package EXCLUDE_FROM_ALL)
  install(TARGETS sharpi_bundled EXPORT sharpi_bundled
          LIBRARY DESTINATION lib COMPONENT Package EXCLUDE_FROM_ALL
          RUNTIME DESTINATION bin COMPONENT Package EXCLUDE_FROM_ALL
          ARCHIVE DESTINATION lib COMPONENT Package EXCLUDE_FROM_ALL)
  install(EXPORT sharpi_bundled FILE sharpi-shared.cmake NAMESPACE sharpi::
          DESTINATION lib/cmake/sharpi COMPONENT Package EXCLUDE_FROM_ALL)
  install(FILES "${PROJECT_BINARY_DIR}/sharpi-config.cmake"
                "${PROJECT_BINARY_DIR}/sharpi-config-version.cmake"
          DESTINATION lib/cmake/sharpi COMPONENT Package EXCLUDE_FROM_ALL)
  foreach(tier IN LISTS SHARPI_BUILT_GPU_TIERS)
    if(TARGET sharpi_${tier}_module_bundled)
      sharpi_tier_component(${tier} component)
      install(TARGETS sharpi_${tier}_module_bundled
              LIBRARY DESTINATION lib COMPONENT "Package${component}" EXCLUDE_FROM_ALL)
    endif()
  endforeach()
endif()

# pkg-config: directories relative to the .pc file, unless the builder chose absolute ones.
set(pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(SHARPI_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
  set(SHARPI_PC_LIBDIR "${CMAKE_INSTALL_LIBDIR}")
else()
  file(RELATIVE_PATH up "/${pc_dir}" "/")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(SHARPI_PC_PREFIX "\${pcfiledir}/${up}")
  set(SHARPI_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
endif()
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(SHARPI_PC_INCLUDEDIR "${CMAKE_INSTALL_INCLUDEDIR}")
else()
  set(SHARPI_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
# sharpi-static names the archive itself: with -lsharpi a linker takes the shared library beside it.
foreach(pc sharpi sharpi-static)
  configure_file("${PROJECT_SOURCE_DIR}/pkgconfig/${pc}.pc.in" "${PROJECT_BINARY_DIR}/${pc}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${pc}.pc" DESTINATION "${pc_dir}" COMPONENT Development)
endforeach()
