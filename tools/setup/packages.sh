#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes sure that what a step needs is on this machine: packages.sh build|serve|test|bench|docs|format|wheel|arm|windows|macos|ci
#
# Each need is probed by what it does, not by its package, so tools from elsewhere count too. What is
# missing is installed with apt-get when that is possible without a question (root, or sudo without a
# password); otherwise the command to run is printed and the exit status is 2.
set -euo pipefail

min_cmake=3.25
cmake=${CMAKE:-cmake}

have() { command -v "$1" > /dev/null 2>&1; }
have_library() { have pkg-config && pkg-config --exists "$1" 2> /dev/null; }
sanitizers_link() {
  have clang++ && clang++ -fsanitize=fuzzer,address,undefined -x c++ -o /dev/null - 2> /dev/null \
    <<< '#include <cstddef>
extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, size_t) { return 0; }'
}

# Prints the first of the given packages that this system's archive has.
first_known() {
  local package
  for package in "$@"; do
    if apt-cache show "$package" > /dev/null 2>&1; then
      echo "$package"
      return
    fi
  done
  echo "$1"
}

have_header() { echo "#include <$1>" | "${CXX:-g++}" -x c++ -E -o /dev/null - 2> /dev/null; }

# Fills `missing` with the packages for the needs of a group that are not met.
missing=()
need() {  # package, probe...
  local package=$1
  shift
  "$@" || missing+=("$package")
}

# A package that is done without where the system's archive does not have it.
wanted_if_known() {
  if apt-cache show "$1" > /dev/null 2>&1; then missing+=("$1"); fi
}

need_build() {
  need cmake have "$cmake"
  need ninja-build have ninja
  need g++ have "${CXX:-g++}"
  need gcc have "${CC:-gcc}"
  need pkg-config have pkg-config
  need libpcre2-dev have_library libpcre2-8
  need libutf8proc-dev have_library libutf8proc
}
# The server is left out of a build where the system's archive does not have these.
need_serve() {
  need_build
  local package
  for package in zlib1g-dev:zlib nlohmann-json3-dev:nlohmann_json; do
    have_library "${package#*:}" || wanted_if_known "${package%:*}"
  done
  have_header boost/beast/http/basic_parser.hpp || wanted_if_known libboost-dev
}
need_test() {
  need_serve
  have_library cpp-httplib || wanted_if_known libcpp-httplib-dev  # a client of the server's tests
  need libgtest-dev have_library gtest
  need binutils have readelf
}
need_bench() {
  need_test
  need libbenchmark-dev have_library benchmark
  need python3-numpy python3 -c 'import numpy' 2> /dev/null
}
need_docs() {
  need_build
  need doxygen have doxygen
}
need_format() {
  have clang-format-14 || need "$(first_known clang-format-14 clang-format)" have clang-format
}
need_wheel() {
  need_build
  need binutils have readelf
  need python3-venv python3 -c 'import ensurepip, venv' 2> /dev/null
}
# A build for aarch64 on another machine, and what runs it (tools/arm_check.sh).
need_arm() {
  need_test
  need g++-aarch64-linux-gnu have aarch64-linux-gnu-g++
  need qemu-user-static have qemu-aarch64-static
  need libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/lib/libc.so.6
}
need_windows() {
  need_build
  need g++-mingw-w64-x86-64-posix have x86_64-w64-mingw32-g++-posix
  need libz-mingw-w64-dev test -e /usr/x86_64-w64-mingw32/lib/libz.a
  need wine64 test -x /usr/lib/wine/wine64
  need googletest test -d /usr/src/googletest/googletest
  need libboost-dev have_header boost/beast/http/basic_parser.hpp
  need nlohmann-json3-dev have_header nlohmann/json.hpp
}
# Sources of libraries, and what reads the formats of macOS; the compiler is a package of Python.
need_macos() {
  need_build
  need llvm have llvm-objdump
  need python3-venv python3 -c 'import ensurepip, venv' 2> /dev/null
}
# The page of the server is looked at with it; Ubuntu's archive has none.
need_browser() {
  have chromium || have google-chrome || ! apt-cache show chromium > /dev/null 2>&1 || missing+=(chromium)
}
need_ci() {
  need_browser
  need curl have curl
  need_wheel
  need_test
  need_bench
  need_docs
  need_format
  need git have git
  need clang have clang++
  need valgrind have valgrind
  need ccache have ccache
  need abigail-tools have abidiff
}
# The run-time libraries of Clang's sanitizers have their own package, named after its version; this
# is asked once Clang is there.
need_sanitizers() {
  local version
  version=$(clang++ -dumpversion 2> /dev/null | cut -d . -f 1)
  need "$(first_known "libclang-rt-$version-dev" libclang-rt-dev "libclang-common-$version-dev")" \
    sanitizers_link
}

install_missing() {
  local as_root=() command
  ((${#missing[@]})) || return 0
  mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
  command="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if ! have apt-get; then
    echo "Missing on this machine (names of Debian's packages): ${missing[*]}" >&2
    echo "Install them with this system's package manager, then run the same command again." >&2
    exit 2
  fi
  if ((EUID != 0)); then
    if have sudo && sudo -n true 2> /dev/null; then
      as_root=(sudo -n)
    else
      echo "Packages are missing, and installing them needs root. Run this, then try again:" >&2
      echo "  sudo sh -c '$command'" >&2
      exit 2
    fi
  fi
  echo "Installing: ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
      --no-install-recommends "${missing[@]}" > /dev/null || {
    echo "apt-get failed. The command was:" >&2
    echo "  $command" >&2
    exit 2
  }
  missing=()
}

check_cmake() {
  local version
  version=$("$cmake" --version | sed -nE '1s/.* ([0-9]+\.[0-9]+).*/\1/p')
  if [[ $(printf '%s\n' "$min_cmake" "$version" | sort -V | head -n 1) != "$min_cmake" ]]; then
    cat >&2 << EOF
CMake $version is too old: at least $min_cmake is needed (Ubuntu 22.04 ships 3.22). A newer one from PyPI:
  sudo apt-get install -y python3-pip && python3 -m pip install --user 'cmake>=$min_cmake'
  make CMAKE="\$HOME/.local/bin/cmake" ...
EOF
    exit 2
  fi
}

case "${1:-}" in
  build | serve | test | bench | docs | format | wheel | arm | windows | macos | ci)
    "need_$1"
    install_missing
    if [[ $1 == ci ]]; then
      need_sanitizers
      install_missing
    fi
    [[ $1 == format ]] || check_cmake
    ;;
  *)
    echo "usage: $0 build|serve|test|bench|docs|format|wheel|arm|windows|macos|ci" >&2
    exit 2
    ;;
esac
