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

# Each takes up to ten minutes on 2 cores where little has to be compiled, with the steps that every commit has some
# twenty-five. A step of two groups runs for two commits of five.
readonly groups=('sanitize old-x86 wheel' 'tsan cuda-oldest clang' 'fuzz macos wheel' 'arm' 'valgrind windows clang')

turn=${SHARPI_TEST_TURN:-$(git rev-parse HEAD 2> /dev/null || tools/ci/tree_hash.sh lib tests)}
readonly turn
now=$(($(cksum <<< "$turn" | cut -d ' ' -f 1) % ${#groups[@]}))
runs() { [[ $turn == all || " ${groups[now]} " == *" $1 "* ]]; }

case ${1:-} in
  '') echo "$turn" ;;
  --list)
    for step in $(printf '%s\n' "${groups[@]}" | tr ' ' '\n' | sort -u); do
      if runs "$step"; then echo "$step: now"; else echo "$step: another commit's turn"; fi
    done
    ;;
  *)
    [[ " ${groups[*]} " == *" $1 "* ]] || { echo "$1 takes no turns" >&2; exit 2; }
    runs "$1" || exit 1
    ;;
esac
