#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Steps of CI that take turns: a commit has some of them and always the same, over many commits each has its
# turn, and CI knows the same steps: turns.sh source-tree
set -euo pipefail
cd "$1"
fail() { echo "$1"; exit 1; }
declare -A n
commits=60
for ((i = 0; i < commits; ++i)); do
  commit=$(cksum <<< "commit $i" | cut -d ' ' -f 1)
  listed=$(SHARPI_TEST_TURN=$commit tools/ci/turn.sh --list)
  [[ $listed == "$(SHARPI_TEST_TURN=$commit tools/ci/turn.sh --list)" ]] || fail "not the same twice"
  grep -q ': now$' <<< "$listed" || fail "a commit without a step"
  grep -q "another commit's turn" <<< "$listed" || fail "a commit with every step"
  for step in $(sed -n 's/: now$//p' <<< "$listed"); do
    SHARPI_TEST_TURN=$commit tools/ci/turn.sh "$step" || fail "$step is listed and does not run"
    n[$step]=$((${n[$step]:-0} + 1))
  done
done
steps=$(tools/ci/turn.sh --list | sed 's/:.*//' | sort)
for step in $steps; do
  ((${n[$step]:-0} >= commits / 10)) || fail "$step has its turn ${n[$step]:-0} times in $commits commits"
done
SHARPI_TEST_TURN=all tools/ci/turn.sh --list | grep -v ': now$' && fail "'all' leaves something out"
SHARPI_TEST_TURN=abc tools/ci/turn.sh | grep -qx abc || fail "what was set is not what it says"
status=0
tools/ci/turn.sh none 2> /dev/null || status=$?
((status == 2)) || fail "a step that nobody knows has status $status"
diff <(sed -n 's/^by_turn \([^ ]*\) .*/\1/p' .ci/run | sort) <(echo "$steps") || fail "CI has other steps"
for script in $(sed -n 's/^by_turn [^ ]* \([^ ]*\).*/\1/p' .ci/run); do
  [[ -x $script ]] || fail "$script cannot be run"
done
