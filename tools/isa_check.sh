#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# All suites of the CPU, once for every instruction set that this machine has: isa_check.sh [options]
#
# A suite is a program of tests. One that no kernel is linked into runs once, as set `any`; one that
# uses the shared library, which cannot be taken for less than it is, runs on the machine's own set alone.
# Suites of trained models (apart) are left out. Results are kept, so a run that was cut off goes on where
# it ended as long as the programs are the same.
#
#   --build FOLDER     a build of Ninja with tests (default: build)
#   --prebuilt FOLDER  instead, programs that tools/isa_package.sh carried here
#   --run COMMAND      what programs of another processor are started with, qemu and its options
#   --machine TEXT     what the record calls this machine (default: its processor's name)
#   --sets LIST        any, scalar, and what the folders of lib/cpu have, by commas (default: all that there are)
#   --suite REGEX      only suites whose name matches
#   --skip REGEX       no suites whose name matches
#   --jobs N           programs beside each other (default: the processors)
#   --pieces N         every suite that computes in so many pieces (default: 4 with 16 jobs and more, else 1)
#   --limit SECONDS    nothing runs longer than this in all; call again to go on
#   --job-limit S      one program at most (default 1200); longer is a failure
#   --turn TEXT        which suites come first depends on this text, and not on how long they take
#   --share SECONDS    of a suite that takes longer one part, which --turn chooses; how long it takes is read in the
#                      record, or guessed from AVX2's time. Such runs are not recorded
#   --whole REGEX      suites that are run whole all the same
#   --except PATTERNS  no cases that match (as in GTEST_FILTER, separated by colons)
#   --results FOLDER   where results are kept (default: isa-results in the folder of the build)
#   --again            forget the results of earlier calls
#   --out FOLDER       the run as a record (isa_rows.tsv), and the logs of what failed as one archive
#   --record           the run into docs/isa_run.tsv.gz and docs/isa_run.md
#   --list             the jobs, run nothing
# Exit status: 0 all passed, 1 something failed, 3 cut off by --limit before the end.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
root=$PWD

build=build prebuilt='' sets='' suite=. skip='' jobs=$(nproc) pieces='' limit=0 job_limit=1200 turn='' out=''
results='' again=0 record=0 list=0 machine='' share=0 whole='^$' except=''
run=()
while (($#)); do
  case $1 in
    --build) build=$2; shift ;;
    --prebuilt) prebuilt=$2; shift ;;
    --run) read -r -a run <<< "$2"; shift ;;
    --machine) machine=$2; shift ;;
    --sets) sets=${2//,/ }; shift ;;
    --suite) suite=$2; shift ;;
    --skip) skip=$2; shift ;;
    --jobs) jobs=$2; shift ;;
    --pieces) pieces=$2; shift ;;
    --limit) limit=$2; shift ;;
    --job-limit) job_limit=$2; shift ;;
    --turn) turn=$2; shift ;;
    --share) share=$2; shift ;;
    --whole) whole=$2; shift ;;
    --except) except=$2; shift ;;
    --results) results=$2; shift ;;
    --out) out=$2; shift ;;
    --again) again=1 ;;
    --record) record=1 ;;
    --list) list=1 ;;
    *) sed -n '3,/^set /p' "$0" | sed '$d;s/^# \{0,1\}//' >&2; exit 2 ;;
  esac
  shift
done
[[ $turn != all ]] || share=0
# What is recorded of a suite is all of it.
((record)) && unset SHARPI_TEST_TURN
((record && share)) && { echo "a share of a suite is not recorded" >&2; exit 2; }
folder=$(realpath "${prebuilt:-$build}") || exit 2
[[ -x $folder/tests/list_isas ]] || { echo "no tests in $folder" >&2; exit 2; }
results=${results:-$folder/isa-results}
mkdir -p "$results"
results=$(realpath "$results")
if [[ -n $prebuilt ]]; then
  export SHARPI_TEST_SOURCE=$root SHARPI_TEST_BUILD=$folder
  suites=$folder/suites.tsv
else
  suites=$results/suites.new
  if ! tools/suite_sources.py "$folder" > "$suites" 2> "$results/suites.log"; then
    cat "$results/suites.log" >&2
    exit 1
  fi
  # What is not built is named where it was asked for.
  while read -r line; do
    name=${line%% *}
    [[ ${name##*/} =~ $suite ]] && echo "$line" >&2
  done < "$results/suites.log"
fi
# What programs of other sources did is forgotten.
((again)) && rm -f "$results/suites.tsv"
touch "$results/suites.tsv"
while IFS=$'\t' read -r name _; do
  rm -f "$results"/*/"$name".*
done < <(comm -13 <(sort "$suites") <(sort "$results/suites.tsv"))
# So is what programs did that were asked for other cases.
[[ ! -f $results/except.txt || $(< "$results/except.txt") == "$except" ]] || rm -rf "${results:?}"/*/
echo "$except" > "$results/except.txt"
((again)) && rm -rf "${results:?}"/*/
cp "$suites" "$results/suites.tsv"
((pieces)) || pieces=$((jobs >= 16 ? 4 : 1))

# The libraries that were carried here are for the programs of tests, not for Python.
libraries=${prebuilt:+$folder/lib:}${LD_LIBRARY_PATH:-}
mapfile -t has < <(LD_LIBRARY_PATH=$libraries "${run[@]}" "$folder/tests/list_isas")
widest=${has[-1]}
[[ -n $sets ]] || sets="any ${has[*]}"
for set in $sets; do
  [[ " any ${has[*]} " == *" $set "* ]] || { echo "this machine has no $set (${has[*]})" >&2; exit 2; }
done
processor=${machine:-$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)}
echo "${processor:-unknown processor}, whose own set is $widest" > "$results/machine.txt"

declare -A kernels
while IFS=$'\t' read -r name kind _; do kernels[$name]=$kind; done < <(grep -v '^#' "$suites")

# Seconds that a suite takes, and cases that it has: of the record, or guessed from AVX2's (an emulator takes
# some thirty times as long).
expect() {  # set suite
  local slower=1
  [[ ${#run[@]} == 0 ]] || slower=30
  seconds=${expected[$1/$2]:-$((slower * ${expected[avx2/$2]:-100}))}
  cases=${cases_of[$1/$2]:-${cases_of[avx2/$2]:-1}}
}
# Lines `expected-seconds set job program pieces piece`, longest first.
jobs_of() {  # set
  local set=$1 path shards where program name kind seconds cases n i parts
  while read -r path shards where; do
    path=/$path name=${path##*/} program=tests/${path##*/tests/}
    kind=${kernels[$name]:-}
    [[ $where == here && $name =~ $suite && ( -z $skip || ! $name =~ $skip ) ]] || continue
    case $kind in
      '') [[ $set == "$widest" ]] && echo "0 - $name"; continue ;;
      none) [[ $set == any ]] || continue ;;
      shared) [[ $set == "$widest" ]] || continue ;;
      narrowed) [[ $set != any ]] || continue ;;
    esac
    n=$shards
    [[ $kind == narrowed ]] && n=$((shards * pieces))
    expect "$set" "$name"
    parts=1
    if ((share)) && [[ ! $name =~ $whole ]]; then
      # A part has three cases and more, also where some are left out.
      parts=$(((seconds + share - 1) / share))
      ((parts <= cases / 6)) || parts=$((cases / 6))
    fi
    if ((parts > 1)); then
      i=$(($(cksum <<< "${turn:-$(tools/ci/turn.sh)} $machine $set $name" | cut -d ' ' -f 1) % parts))
      echo "$((seconds / parts)) $set $name.$((i + 1))of$parts $program $parts $i"
      continue
    fi
    for ((i = 0; i < n; ++i)); do
      echo "$((seconds / n)) $set $name$( ((n > 1)) && echo ".$((i + 1))of$n") $program $n $i"
    done
  done < "$folder/tests_suites.txt"
}
declare -A expected cases_of
if [[ -f docs/isa_run.tsv.gz ]]; then
  while IFS=$'\t' read -r _ set name _ _ _ passed failed skipped seconds; do
    expected[$set/$name]=$seconds
    cases_of[$set/$name]=$((passed + failed + skipped))
  done < <(zcat docs/isa_run.tsv.gz | grep -P '^row\t')
fi
all=$(for set in $sets; do jobs_of "$set"; done | sort -s -n -r)
if [[ -n $turn ]]; then
  all=$(while read -r line; do
    read -r _ set job _ <<< "$line"
    echo "$(cksum <<< "$turn $set $job" | cut -d ' ' -f 1) $line"
  done <<< "$all" | sort -n | cut -d ' ' -f 2-)
fi
if ((list)); then
  printf '%s\n' "$all"
  exit 0
fi

deadline=0
((limit)) && deadline=$(($(date +%s) + limit))
# One job; a result only if it came to its end or to its own limit.
run_job() {  # expected set job program pieces piece
  local set=$2 job=$3 at=$results/$2/$3 seconds=$job_limit start status card=$2
  [[ -f $at.status ]] && return 0
  start=$(date +%s)
  ((deadline && deadline - start < seconds)) && seconds=$((deadline - start))
  ((seconds > 2)) || return 0
  mkdir -p "$results/$set"
  rm -f "$at".*
  [[ $set == any || ${kernels_of_job:-} == shared ]] && card=
  GTEST_BRIEF=1 GTEST_FILTER=*${except:+-$except} GTEST_TOTAL_SHARDS=$5 GTEST_SHARD_INDEX=$6 GTEST_OUTPUT=json:$at.json \
    LD_LIBRARY_PATH=$libraries SHARPI_TEST_ISA=$card timeout --kill-after=5 "$seconds" "${run[@]}" "$folder/$4" > "$at.log" 2>&1 < /dev/null
  status=$?
  if ((status == 124 || status == 137)) && ((seconds < job_limit)); then
    return 0  # the call's limit, not the job's
  fi
  # A program that takes the processor for what it is would pass without saying anything of the set.
  if [[ -n $card ]] && ! grep -q "is taken for one with $card at most" "$at.log"; then
    echo "the processor was not taken for one with $card" >> "$at.log"
    ((status)) || status=90
    rm -f "$at.json"
  fi
  printf '%s %s\n' "$status" $(($(date +%s) - start)) > "$at.status"
  case $status in 0) status=ok ;; 77) status=skipped ;; *) status="FAILED ($status)" ;; esac
  printf '%-12s %-34s %s, %d s\n' "$set" "$job" "$status" $(($(date +%s) - start))
}
running=0
while read -r -a job; do
  [[ -n ${job[3]:-} ]] || continue
  [[ -f $results/${job[1]}/${job[2]}.status ]] && continue
  ((deadline && $(date +%s) + 2 >= deadline)) && break
  if ((running >= jobs)); then
    wait -n
    running=$((running - 1))
  fi
  kernels_of_job=${kernels[${job[3]##*/}]}
  run_job "${job[@]}" &
  running=$((running + 1))
done <<< "$all"
wait

cut=0
while read -r _ set job _; do
  [[ -n $job && ! -f $results/$set/$job.status ]] || continue
  echo "$set $job: not run$([[ $set == - ]] && echo ", because it is not built")"
  cut=1
done <<< "$all"

tools/run_record.py summarize "$results" > "$results/rows.tsv"
status=$?
if [[ -n $out ]]; then
  mkdir -p "$out"
  cp "$results/rows.tsv" "$out/isa_rows.tsv"
  (cd "$results" && find . -name '*.status' -print0 | xargs -0 grep -LZE '^(0|77) ' |
    sed -z 's/status$/log/' | tar --null -czf "$out/failed_logs.tar.gz" -T - 2> /dev/null)
fi
((record)) && tools/run_record.py merge isa "$results/rows.tsv"
awk -F '\t' '$1 == "row" { suites[$2]++; for (i = 7; i <= 10; ++i) sum[$2, i] += $i }
  $1 == "failed" { print "FAILED " $2 " " $3 " " $4 ": " $5 }
  END { for (set in suites) printf "%-12s %d suites: %d passed, %d failed, %d skipped, %d s\n", set,
          suites[set], sum[set, 7], sum[set, 8], sum[set, 9], sum[set, 10] }' "$results/rows.tsv"
((status)) && exit 1
((cut)) && exit 3
exit 0
