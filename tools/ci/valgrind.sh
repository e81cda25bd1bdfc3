#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The programs with the label `valgrind` under memcheck, as `make test` built them.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[[ -f build/build.ninja ]] || configure_tested
build build tests_valgrind
run_labelled build valgrind valgrind --quiet --error-exitcode=9 --leak-check=full \
  --show-leak-kinds=definite,possible --errors-for-leak-kinds=definite
