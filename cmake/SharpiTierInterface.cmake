# Run by CMake while the project is built: writes tier_interface.h, which has one text that is the same in
# the core and in a module with a tier (lib/tier/tier_module.h) if both are from the same sources of
# the layers that both have a copy of, made by the same compiler with the same settings.
#   cmake -DSOURCE=<project> -DLAYERS=<names, by commas> -DSETTINGS=<text> -DVERSION=<version>
#         -DOUT=<file> -P SharpiTierInterface.cmake
string(REPLACE "," ";" layers "${LAYERS}")
set(facts "${SETTINGS}")
foreach(layer IN LISTS layers)
  file(GLOB_RECURSE sources RELATIVE "${SOURCE}" "${SOURCE}/lib/${layer}/*.h" "${SOURCE}/lib/${layer}/*.cc")
  list(SORT sources)
  foreach(source IN LISTS sources)
    file(SHA256 "${SOURCE}/${source}" hash)
    string(APPEND facts "\n${source} ${hash}")
  endforeach()
endforeach()
file(SHA256 "${SOURCE}/include/sharpi.h" hash)
string(SHA256 hash "${facts}\n${hash}")
string(SUBSTRING "${hash}" 0 16 hash)
set(text "#define SHARPI_TIER_INTERFACE \"${VERSION}-${hash}\"\n")
set(before "")
if(EXISTS "${OUT}")
  file(READ "${OUT}" before)
endif()
if(NOT before STREQUAL text)
  file(WRITE "${OUT}" "${text}")
endif()
