#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Checks that take long take turns: each commit has one group of the steps below, and one part of each test that
# is cut into parts (tests/support/turn.h). What follows from the commit's hash is the same on every machine.
#
#   turn.sh           the text that says whose turn it is: SHARPI_TEST_TURN where it is set, else the commit's hash
#   turn.sh STEP      exit status 0 if the step of .ci/run runs now, 1 if it is another commit's, 2 if it takes no turns
#   turn.sh --list    every step that takes turns, and whether it runs now
#
# With SHARPI_TEST_TURN=all everything runs: `SHARPI_TEST_TURN=all .ci/run`, or a step's own command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Each takes up to twenty minutes on 2 cores where little has to be compiled.
readonly groups=('sanitize old-x86' 'tsan fuzz cuda-oldest macos' 'valgrind arm windows')

turn=${SHARPI_TEST_TURN:-$(git rev-parse HEAD 2> /dev/null || tools/ci/tree_hash.sh lib tests)}
readonly turn
now=$(($(cksum <<< "$turn" | cut -d ' ' -f 1) % ${#groups[@]}))
is_now() { [[ $turn == all || $1 == "$now" ]]; }

case ${1:-} in
  '') echo "$turn" ;;
  --list)
    for i in "${!groups[@]}"; do
      for step in ${groups[i]}; do
        if is_now "$i"; then echo "$step: now"; else echo "$step: another commit's turn"; fi
      done
    done
    ;;
  *)
    for i in "${!groups[@]}"; do
      [[ " ${groups[i]} " == *" $1 "* ]] || continue
      if is_now "$i"; then exit 0; else exit 1; fi
    done
    echo "$1 takes no turns" >&2
    exit 2
    ;;
esac
