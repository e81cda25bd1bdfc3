# SPDX-License-Identifier: MIT
# What the steps of CI share; sourced by them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly kSkipped=77  # Exit status of a step that this machine cannot run.
jobs=$(nproc)

# Runs a command and shows its output only if it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" > "$log" 2>&1 || status=$?
  ((status == 0)) || cat "$log"
  rm -f "$log"
  return "$status"
}

# configure <preset> [cmake arguments]: into the preset's folder, which is build-<preset>.
configure() { quietly cmake --preset "$1" "${@:2}"; }
# build <folder> [targets...]
build() {
  local folder=$1
  shift
  quietly cmake --build "$folder" -j "$jobs" ${1:+--target "$@"}
}

# Runs the test programs that carry a label in the given build folder, as many at a time as there are
# cores: run_labelled folder label command... The command is put before the program. What a program
# says is shown if it fails.
run_labelled() {
  local list=$1/tests_$2.txt
  shift 2
  [[ -s $list ]] || { echo "no test program in $list"; return 1; }
  export -f run_one
  grep . "$list" | xargs -P "$jobs" -I '{}' bash -c 'run_one "$@"' run_one '{}' "$@"
}
run_one() {  # program, command before it...
  local program=$1 log status=0
  shift
  log=$(mktemp)
  "$@" "$program" --gtest_brief=1 < /dev/null > "$log" 2>&1 || status=$?
  if ((status == 0)); then
    echo "${program##*/}: passed"
  else
    echo "${program##*/}: FAILED ($status)"
    cat "$log"
  fi
  rm -f "$log"
  return $((status != 0))
}
