#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The suites of the CPU on the narrower instruction sets that this machine has; `make test` is the widest.
# What there is time for is chosen by the commit's hash, so that every suite has its turn; the rest is
# named. isa.sh [seconds]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

seconds=${1:-300}
build build
mapfile -t sets < <(build/tests/list_isas)
unset 'sets[-1]'
((${#sets[@]})) || { echo "this machine has one set only"; exit "$kSkipped"; }
turn=$(git rev-parse HEAD 2> /dev/null || tools/ci/tree_hash.sh lib tests)
status=0
tools/isa_check.sh --sets "$(IFS=,; echo "${sets[*]}")" --turn "$turn" --limit "$seconds" --jobs "$jobs" ||
  status=$?
((status == 3)) && exit 0  # cut off, and said what did not run
exit "$status"
