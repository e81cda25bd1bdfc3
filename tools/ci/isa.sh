#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The suites of the CPU on the narrower instruction sets that this machine has; `make test` is the widest.
# What there is time for is chosen by the commit's hash, so that every suite has its turn; the rest is
# named. isa.sh [seconds]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

seconds=${1:-300}
build build
SECONDS=0
mapfile -t sets < <(build/tests/list_isas)
unset 'sets[-1]'
((${#sets[@]})) || { echo "this machine has one set only"; exit "$kSkipped"; }
turn=$(tools/ci/turn.sh)
export SHARPI_TEST_TURN=$turn
status=0
check() {
  local got=0
  tools/isa_check.sh --turn "$turn" --jobs "$jobs" "$@" || got=$?
  ((got == 0 || got == 3)) || status=$got  # 3: cut off, and it said what did not run
}
# Tests of kernels go over all sets of the machine by themselves; AVX-512 without BF16 is none of its
# own where the machine has BF16.
kernels="^($(sed -nE 's|.*/tests/cpu/([^ ]+) .*|\1|p' build/tests_suites.txt | paste -sd '|'))\$"
[[ " ${sets[*]} " == *' avx512 '* ]] && check --sets avx512 --suite "$kernels" --limit $((seconds / 3))
check --sets "$(IFS=,; echo "${sets[*]}")" --skip "$kernels" --limit $((seconds - SECONDS))
exit "$status"
