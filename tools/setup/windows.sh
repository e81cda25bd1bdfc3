#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The libraries that a build for Windows needs, in a folder: windows.sh folder. They are
# compiled from the system's own source packages, static, so that a user has nothing to install.
set -euo pipefail
root=$(mkdir -p "${1:?usage: windows.sh folder}" && cd "$1" && pwd)
source "$(dirname "${BASH_SOURCE[0]}")/source_packages.sh"
compiler=(-DCMAKE_SYSTEM_NAME=Windows -DCMAKE_C_COMPILER=x86_64-w64-mingw32-gcc-posix
  -DCMAKE_CXX_COMPILER=x86_64-w64-mingw32-g++-posix -DCMAKE_RC_COMPILER=x86_64-w64-mingw32-windres)

source_libraries "$root" "${compiler[@]}"
[[ -f $root/lib/libgtest.a ]] || compile_source "$root" googletest /usr/src/googletest "${compiler[@]}" -DBUILD_GMOCK=ON
static_package "$root" zlib 1.2 '' /usr/x86_64-w64-mingw32/lib/libz.a
static_package "$root" nlohmann_json 3 '' ''
ln -sfn /usr/include/boost "$root/include/boost"
ln -sfn /usr/include/nlohmann "$root/include/nlohmann"
# What finds headers alone on Linux would name the folder of all the machine's headers here.
mkdir -p "$root/lib/cmake/nlohmann_json"
cat > "$root/lib/cmake/nlohmann_json/nlohmann_jsonConfig.cmake" << 'CONFIG'
if(NOT TARGET nlohmann_json::nlohmann_json)
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
  target_include_directories(nlohmann_json::nlohmann_json INTERFACE "${CMAKE_CURRENT_LIST_DIR}/../../../include")
endif()
CONFIG
