#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What programs of tests are built from: a test of the lowest layer has no file of those above it, and no
# kernels; a test of sessions has both: suite_sources.sh source-tree build-folder
set -euo pipefail
export LC_ALL=C
[[ -f $2/build.ninja ]] || { echo "skipped: Ninja did not make this build"; exit 77; }
command -v nm > /dev/null || { echo "skipped: no nm on this machine"; exit 77; }
said=$("$1/tools/suite_sources.py" "$2" tests/base/base_test tests/engine/compact_test)
check() {  # program, has|lacks, what
  local line found=lacks
  line=$(grep -P "^$1\t" <<< "$said") || { echo "$1 is not listed"; exit 1; }
  [[ $line =~ [[:space:]]$3 ]] && found=has
  [[ $found == "$2" ]] || { echo "$1 $found $3"; exit 1; }
}
check base_test has none
check base_test has lib/base/hash.cc
check base_test has lib/base/CMakeLists.txt
check base_test has tests/base/hash_test.cc
check base_test lacks lib/engine/
check base_test lacks tests/engine/
check compact_test has narrowed
check compact_test has lib/engine/session.cc
check compact_test has lib/cpu/x86/kernels.cmake
check compact_test has tests/support/precompiled.h
check compact_test has tests/engine/compact_test.cc
check compact_test lacks tests/base/
grep -q '^# compiler [A-Z]' <<< "$said" || { echo "no compiler is named"; exit 1; }
