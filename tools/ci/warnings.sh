#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The whole tree compiles without a warning: warnings.sh gcc|clang. Clang compiles the test programs and
# the server in sanitize.sh, with the same warnings, so here it compiles all but those, each source
# alone; the tests of the ABI surface and of the installed package run on what it built.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  gcc)
    # The folder of `make test`, which CI configures with the same flags: little is left to compile.
    CC=gcc CXX=g++ configure_tested -DSHARPI_BENCH=ON
    grep -q 'CMAKE_CXX_COMPILER_ID "GNU"' build/CMakeFiles/*/CMakeCXXCompiler.cmake ||
      { echo "build/ was made with another compiler than GCC; make clean first"; exit 1; }
    build build
    ;;
  clang)
    # Little optimised: Clang finds what it warns about before that.
    configure clang -DCMAKE_C_FLAGS_RELEASE="-O1 -DNDEBUG" -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG"
    build build-clang lib/all bench/all chat compact generate plan
    ctest --test-dir build-clang --output-on-failure -j "$jobs" -R '^(abi|package)\.'
    ;;
  *)
    echo "usage: $0 gcc|clang" >&2
    exit 2
    ;;
esac
