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

# Runs every test program that carries a label in the given build folder: run_labelled folder label
# command... The command is put before the program.
run_labelled() {
  local folder=$1 label=$2 program n=0
  shift 2
  while read -r program; do
    [[ -n $program ]] || continue
    echo "${program##*/}"
    "$@" "$program" --gtest_brief=1
    n=$((n + 1))
  done < "$folder/tests_$label.txt"
  ((n > 0)) || { echo "no test program has the label $label"; return 1; }
}
