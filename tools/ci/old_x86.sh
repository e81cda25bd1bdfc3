#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Processors of x86-64 without AVX2, and virtual machines that hide it: old_x86.sh [seconds]
#
# qemu plays five generations. Each answers a question and names the kernels that it has; then suites
# run for the rest of the time, of which the commit's hash says which come first. An instruction that a
# processor does not have ends the program, so nothing of the library may have one for it. Its CPUID is
# the only thing that says what a processor has.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# A name of qemu's, and the set of kernels that runs there: before Haswell (2013) nothing had AVX2.
readonly processors=(qemu64:scalar Conroe:scalar Nehalem:scalar SandyBridge:scalar Haswell:avx2)
# Short ones, which say most about instructions: what is chosen, files, formats, rows, text, the whole.
readonly suites='^(isa|base|os|kv|ops|q4_rows|gguf|golden|api_log)_test$'
limit=${1:-150}

qemu=$(command -v qemu-x86_64-static || command -v qemu-x86_64 || true)
[[ -n $qemu ]] || { echo "skipped: qemu-x86_64 is not on this machine; on Debian: apt-get install qemu-user-static"; exit "$kSkipped"; }
[[ -f build/build.ninja ]] || configure_tested
mapfile -t programs < <(sed -E 's/ .*//' build/tests_suites.txt | grep -E "/(${suites:2:-7})_test\$")
build build generate list_isas "${programs[@]##*/}"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
run_on() {  # processor, command...; what qemu leaves out of a processor is no concern of ours
  local cpu=$1 status=0
  shift
  "$qemu" -cpu "$cpu" "$@" > "$log" 2>&1 < /dev/null || status=$?
  sed -i '/TCG doesn.t support requested feature/d' "$log"
  return "$status"
}
fail() {
  echo "$1"
  grep -v 'TCG doesn.t support requested feature' "$log" | tail -n 20
  failed=1
}

for entry in "${processors[@]}"; do
  cpu=${entry%:*} set=${entry#*:}
  run_on "$cpu" build/tests/list_isas && [[ $(tail -n 1 "$log") == "$set" ]] || { fail "$cpu: the set is not $set"; continue; }
  run_on "$cpu" build/examples/generate -m tests/fixtures/tiny-qwen3-q8_0.gguf \
    -p 'The code of ember is 97697. What is the code of ember?' --chat --temp 0 -n 32 --expect 97697 &&
    grep -q "isa=$set " "$log" || { fail "$cpu: no answer with $set"; continue; }
  echo "$cpu: answers with the kernels of $set"
done

turn=$(tools/ci/turn.sh)
SECONDS=0
while read -r _ cpu program; do
  name=${program##*/}
  left=$((limit - SECONDS))
  if ((left < 5)); then
    echo "$cpu $name: not run"
    continue
  fi
  status=0
  GTEST_BRIEF=1 timeout --kill-after=5 "$left" "$qemu" -cpu "$cpu" "$program" > "$log" 2>&1 < /dev/null || status=$?
  case $status in
    0 | 77) echo "$cpu $name: passed" ;;
    124 | 137) echo "$cpu $name: not run" ;;
    *) fail "$cpu $name: FAILED ($status)" ;;
  esac
done < <(for entry in "${processors[@]}"; do
  for program in "${programs[@]}"; do
    echo "$(cksum <<< "$turn $entry $program" | cut -d ' ' -f 1) ${entry%:*} $program"
  done
done | sort -n)
exit "$failed"
