#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything that needs a GPU, for every card that one is taken for: gpu_check.sh [options]
#
# Builds the CUDA tier (PTX of 8.0 and of 8.9, assembled for 9.0, and machine code of 9.0),
# runs every test program that has a part on a GPU, the kernels' check programs, and memcheck on a
# reduced set of both, each as capability 8.0, 8.9, 9.0 and 12.0; then builds the Vulkan tier and runs the
# test programs on it. What came to its end goes into
# docs/gpu_run.tsv.gz and docs/gpu_run.md, a row for each suite; other rows stay. All GPUs
# of the machine are used side by side; what measures free memory has a GPU alone, the last one, where
# there are several. Results are kept in build-gpu, so a run that was cut off goes on where it ended, with
# the programs whose sources are the same. On four H200 with 64 processors, 19 jobs on a GPU take 790 s in
# all. Where tools/isa_package.sh left programs of the oldest compiler in DEPS/isa.tar.xz, the part `cpu` runs
# the suites of the CPU on the host's processor, for docs/isa_run.md.
#
#   --only PARTS      of cpu,build,suites,checks,memcheck (default: all)
#   --profile LIST    of 8.0,8.9,9.0,12.0,vulkan,lavapipe (default: all but lavapipe). The last two are the suites
#                     on the machine's Vulkan devices, and on Mesa's software device, which needs no GPU
#   --suite REGEX     only jobs whose name matches (PROGRAM or PROGRAM.2of4)
#   --limit SECONDS   nothing runs longer than this in all; call again to go on
#   --job-limit S     one job at most (default 1200); longer is a failure
#   --per-gpu N       jobs beside each other on a GPU (default 7)
#   --deps FOLDER     what the machine lacks: lib/, include/, bin/, fixtures/, models/ (default: .gpu)
#   --out FOLDER      the run as a record (gpu_rows.tsv, and isa_rows.tsv of the part cpu), which
#                     `tools/run_record.py merge gpu FILE` takes elsewhere, and the logs of what failed
#   --again           forget the results of earlier calls
#   --list            the jobs, run nothing
#   --host FOLDER     rehearse without a GPU: the programs of this build, which skip what needs one
# Exit status: 0 all passed, 1 something failed, 3 cut off by --limit before the end.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
unset SHARPI_TEST_TURN  # what is recorded of a suite is all of it
root=$PWD

parts=cpu,build,suites,checks,memcheck profiles=8.0,8.9,9.0,12.0,vulkan suite='' limit=0 job_limit=1200
per_gpu=7 deps=$root/.gpu out='' again=0 list=0 host='' state=$root/build-gpu
while (($#)); do
  case $1 in
    --only) parts=$2; shift ;;
    --profile) profiles=$2; shift ;;
    --suite) suite=$2; shift ;;
    --limit) limit=$2; shift ;;
    --job-limit) job_limit=$2; shift ;;
    --per-gpu) per_gpu=$2; shift ;;
    --deps) deps=$(realpath "$2"); shift ;;
    --out) out=$2; shift ;;
    --again) again=1 ;;
    --list) list=1 ;;
    --host) host=$(realpath "$2"); state=$root/build-gpu/rehearsal; shift ;;
    *) sed -n '3,/^set /p' "$0" | sed '$d;s/^# \{0,1\}//' >&2; exit 2 ;;
  esac
  shift
done
wants() { [[ ,$2, == *,$1,* ]]; }
for p in ${profiles//,/ }; do
  wants "$p" 8.0,8.9,9.0,12.0,vulkan,lavapipe || { echo "no profile $p" >&2; exit 2; }
done

# What the machine may lack (libraries with their headers, pkg-config, trained models).
export PATH=$deps/bin:/usr/local/cuda/bin:$PATH
export PKG_CONFIG_PATH=$deps/lib/pkgconfig:${PKG_CONFIG_PATH:-}
export LD_LIBRARY_PATH=$deps/lib:${LD_LIBRARY_PATH:-}
[[ -d $deps/fixtures ]] && export SHARPI_FIXTURES=$deps/fixtures
[[ -d $deps/models ]] && export SHARPI_MODELS=$deps/models
# PTX is compiled once a build, not once a process.
export CUDA_CACHE_PATH=$root/build-gpu/ptx CUDA_CACHE_MAXSIZE=4294967296
export GTEST_BRIEF=1

deadline=0
((limit)) && deadline=$((SECONDS + limit))
left() {  # Seconds that a command may still take, at most $1.
  local n=$1
  ((deadline && deadline - SECONDS < n)) && n=$((deadline - SECONDS))
  echo "$n"
}

sources=$(tools/ci/tree_hash.sh cuda vulkan lib include tests cmake CMakeLists.txt)
((again)) && rm -rf "$state/results"
mkdir -p "$state/results" "$CUDA_CACHE_PATH"

# A profile is a card that the tests take the GPU for, on the code that such a card would run. 12.0
# cannot run on a 9.0 device as such; its decisions can, on code of 9.0.
folder_of() {  # profile
  local name=$1
  [[ -n $host ]] && { echo "$host"; return; }
  case $name in 8.0) name=80 ;; 8.9) name=89 ;; vulkan | lavapipe) name=vulkan ;; *) name=90 ;; esac
  echo "$root/build-gpu-$name"
}
architecture_of() { case $1 in *-80) echo 80-virtual ;; *-89) echo 89-virtual ;; *-90) echo 90 ;; *) echo vulkan ;; esac; }
tier_of() { case $1 in vulkan | lavapipe) echo vulkan ;; *) echo cuda ;; esac; }  # profile

# Code of an older card is assembled for the GPU here while the build has all processors; the driver
# would assemble it with one, when the first test asks for it.
assembled_of() {  # folder
  case $1 in
    *-80) echo -gencode=arch=compute_80,code=sm_90 ;;
    *-89) echo -gencode=arch=compute_89,code=sm_90 ;;
  esac
}

build_one() {  # folder
  local folder=$1 log=$state/build-${1##*-}.log
  [[ $(cat "$folder/gpu_check.stamp" 2> /dev/null) == "$sources" ]] && return 0
  echo "building ${folder##*/} ($(architecture_of "$folder"))"
  local seconds
  seconds=$(left 3600)
  ((seconds > 5)) || return 3
  # shellcheck disable=SC2016  # the inner shell expands them
  timeout --kill-after=5 "$seconds" bash -c '
    shared="-DCMAKE_BUILD_TYPE=Release -DSHARPI_TESTS=ON -DSHARPI_EXAMPLES=OFF -DSHARPI_BENCH=OFF -DSHARPI_INSTALL=OFF"
    if [[ $2 == vulkan ]]; then
      cmake -S . -B "$1" -G Ninja $shared -DSHARPI_CUDA=OFF -DSHARPI_VULKAN=ON || exit
      targets="tests_vulkan list_fixtures"
    else
      cmake -S . -B "$1" -G Ninja $shared -DSHARPI_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$2" -DCMAKE_CUDA_FLAGS="$3" || exit
      targets="tests_cuda cuda_checks list_fixtures"
    fi
    cmake --build "$1" -j "$(nproc)" --target $targets' \
    build "$folder" "$(architecture_of "$folder")" "$(assembled_of "$folder")" > "$log" 2>&1
  local status=$?
  ((status == 124 || status == 137)) && return 3
  if ((status)); then
    grep -E 'error|FAILED|Error' "$log" | head -n 20
    echo "${folder##*/} was not built: $log" >&2
    return 1
  fi
  [[ $folder == *-vulkan ]] || warm_up "$folder" "$log" || return
  echo "$sources" > "$folder/gpu_check.stamp"
}
# The first process of a build waits for the driver, which compiles PTX; the others find it done.
warm_up() {  # folder log
  local seconds
  seconds=$(left 600)
  ((seconds > 5)) || return 3
  timeout --kill-after=5 "$seconds" "$1/tests/cuda/turn_test" >> "$2" 2>&1
  return 0
}

# Long ones go in pieces, first.
declare -A pieces=([splits_test]=7 [settings_test]=7 [oracle_test]=6 [experts_test]=4 [keep_set_test]=4
  [needles_test]=4 [compact_test]=3 [fault_settings_test]=4 [tiers_test]=3 [vulkan_test]=6)

jobs_of_suites() {  # profile folder
  local program name n i kind tier
  while read -r program; do
    program=$2/tests/${program##*/tests/} name=${program##*/} n=${pieces[${program##*/}]:-1}
    kind=shared tier=
    grep -qx "$name" "$2/tests_alone.txt" && kind=alone
    [[ $program == */tests/engine/* || $program == */tests/models/* ]] && tier=SHARPI_TEST_TIER=$(tier_of "$1")
    for ((i = 0; i < n; ++i)); do
      printf '%s|%s|%s|env %s GTEST_TOTAL_SHARDS=%d GTEST_SHARD_INDEX=%d %s\n' "$1" \
        "$name$( ((n > 1)) && printf '.%dof%d' $((i + 1)) "$n")" "$kind" "$tier" "$n" "$i" "$program"
    done
  done < <(awk -F/ '{ long = $NF ~ /^(splits|settings|oracle|experts|keep_set)_test$/
                      print (long ? 0 : 1), $0 }' "$2/tests_$(tier_of "$1").txt" | sort -s -n | cut -d ' ' -f 2-)
}
jobs_of_checks() {  # profile folder
  local what
  [[ $(tier_of "$1") == cuda && -x $2/tests/cuda/matrix_check ]] || return 0
  for what in 'attention_check attention' 'matrix_check moe' 'chain_check test' 'attention_check rooms' \
    'attention_check states' 'matrix_check test' 'matrix_check gemm'; do
    printf '%s|%s|shared|%s\n' "$1" "${what/ /.}" "$2/tests/cuda/$what"
  done
}
jobs_of_memcheck() {  # profile folder
  local tool='compute-sanitizer --tool memcheck --error-exitcode 9 --launch-timeout 0' what
  [[ $(tier_of "$1") == cuda && -x $2/tests/cuda/matrix_check ]] || return 0
  for what in 'matrix_check quick' 'matrix_check moe-quick' 'attention_check test least' \
    'chain_check quick'; do
    printf '%s|memcheck.%s|shared|%s %s\n' "$1" "${what// /.}" "$tool" "$2/tests/cuda/$what"
  done
  printf '%s|memcheck.parity_test|shared|env SHARPI_TEST_TIER=cuda %s %s %s\n' "$1" "$tool" \
    "$2/tests/engine/parity_test" '--gtest_filter=*GreedyContinuation*/*'
}
# The kernels' own checks come first on every card: where a call is cut off, they are what it should have
# had time for.
# What each program is built from; what programs of other sources did is forgotten.
note_sources() {
  local p folder at name tier
  for p in ${profiles//,/ }; do
    folder=$(folder_of "$p") at=$state/results/$p
    tier=$(tier_of "$p")
    [[ -f $folder/tests_$tier.txt ]] || continue
    mkdir -p "$at"
    touch "$at/suites.tsv"
    { sed -n 's|.*/tests/|tests/|p' "$folder/tests_$tier.txt"
      [[ $tier != cuda ]] || printf 'tests/cuda/%s\n' matrix_check attention_check chain_check; } |
      xargs tools/suite_sources.py "$folder" > "$at/suites.new" 2> "$at/suites.said" ||
      { tail -n 1 "$at/suites.said" >&2; return 1; }
    while IFS=$'\t' read -r name _; do
      rm -f "$at/$name".* "$at/memcheck.$name".*
    done < <(comm -13 <(sort "$at/suites.new") <(sort "$at/suites.tsv"))
    mv "$at/suites.new" "$at/suites.tsv"
  done
}
all_jobs() {
  local part p folder
  for part in checks suites memcheck; do
    wants "$part" "$parts" || continue
    for p in ${profiles//,/ }; do
      folder=$(folder_of "$p")
      [[ -f $folder/tests_$(tier_of "$p").txt ]] || { echo "$p: no build in $folder" >&2; continue; }
      "jobs_of_$part" "$p" "$folder"
    done
  done
}

cut=0 broken=0
# Programs that were built elsewhere, on this machine's processor.
run_cpu() {
  local seconds=() status
  [[ -f $deps/isa.tar.xz ]] || { echo "cpu: no programs in $deps/isa.tar.xz (tools/isa_package.sh makes them)"; return; }
  rm -rf "$state/isa"
  python3 -m tarfile -e "$deps/isa.tar.xz" "$state/isa" || { broken=1; return; }
  ((deadline)) && seconds=(--limit "$(left 36000)")
  tools/isa_check.sh --prebuilt "$state/isa" --results "$state/isa-results" --record "${seconds[@]}" \
    ${out:+--out "$out"}
  status=$?
  case $status in 0) ;; 3) cut=1 ;; *) broken=1 ;; esac
}
wants cpu "$parts" && ((!list)) && [[ -z $host ]] && run_cpu
[[ $parts == cpu ]] && { ((broken)) && exit 1; ((cut)) && exit 3; exit 0; }
n_gpus=$( { nvidia-smi -L 2> /dev/null || true; } | grep -c '^GPU ')
if [[ -z $host ]]; then
  ((n_gpus || list)) || [[ $profiles == @(vulkan|lavapipe) ]] || { echo "no GPU on this machine; --host FOLDER rehearses" >&2; exit 2; }
  export SHARPI_TEST_REQUIRE_GPU=1
  if wants build "$parts" && ((!list)); then
    # Beside each other: at the end of a build a few long compilations are all that is left of it.
    builders=()
    for folder in $(for p in ${profiles//,/ }; do folder_of "$p"; done | sort -u); do
      build_one "$folder" &
      builders+=($!)
    done
    for builder in "${builders[@]}"; do
      wait "$builder"
      case $? in 0) ;; 3) cut=1 ;; *) broken=1 ;; esac
    done
  fi
  for folder in "$root"/build-gpu-*/; do
    absent=$("$folder/tests/list_fixtures" 2> /dev/null)
    [[ -z $absent ]] || { echo "$absent" >&2; ((list)) || exit 2; }
  done
fi
((n_gpus)) || n_gpus=1
note_sources || { echo "what the programs are built from is not known" >&2; exit 1; }

# run_job GPU LINE: one job; a result only if it came to its end or to its own limit.
run_job() {
  local gpu=$1 profile name kind command at seconds status start=$SECONDS card=
  IFS='|' read -r profile name kind command <<< "$2"
  at=$state/results/$profile
  mkdir -p "$at"
  at+=/$name
  seconds=$(left "$job_limit")
  ((seconds > 5)) || return 0
  [[ -z $host && $profile != 9.0 && $(tier_of "$profile") == cuda ]] && card=$profile
  rm -f "$at".*
  local -a words
  read -ra words <<< "$command"
  [[ $name == @(several_devices_test|host_contexts_test)* ]] && gpu=$(seq -s, 0 $((n_gpus - 1)))  # they are about several
  local -a software=()
  [[ $profile != lavapipe ]] || software=("VK_DRIVER_FILES=$(printf '%s' /usr/share/vulkan/icd.d/lvp_icd*.json)" SHARPI_CACHE=off)
  env "${software[@]}" CUDA_VISIBLE_DEVICES=$gpu SHARPI_TEST_CARD=$card GTEST_OUTPUT=json:$at.json \
    timeout --kill-after=5 "$seconds" "${words[@]}" > "$at.log" 2>&1 < /dev/null
  status=$?
  if ((status == 124 || status == 137)) && ((seconds < job_limit)); then
    return 0  # the call's limit, not the job's
  fi
  # A program that takes the GPU for what it is would pass without saying anything of the card.
  if [[ -n $card ]] && ! grep -q "is taken for compute capability $card" "$at.log"; then
    echo "the GPU was not taken for a card of capability $card" >> "$at.log"
    ((status)) || status=90
    rm -f "$at.json"
  fi
  printf '%s %s\n' "$status" $((SECONDS - start)) > "$at.status"
  case $status in 0) status=ok ;; 77) status=skipped ;; *) status="FAILED ($status)" ;; esac
  printf '%-4s %-34s %s, %d s\n' "$profile" "$name" "$status" $((SECONDS - start))
}

# Slots are numbers of GPUs in a pipe: a job takes one and puts it back.
open_slots() {  # descriptor
  mkfifo "$state/slots.$$"
  eval "exec $1<> '$state/slots.$$'"
  rm "$state/slots.$$"
}
add_slots() {  # descriptor, slots of each GPU, first and last GPU
  local slot gpu
  for ((slot = 0; slot < $2; ++slot)); do
    for ((gpu = $3; gpu <= $4; ++gpu)); do echo "$gpu" >&"$1"; done
  done
}
# Jobs of a kind, as many beside each other as there are slots.
run_all() {  # kind, descriptor
  local kind=$1 slots=$2 line profile name rest gpu jobs=()
  while IFS= read -r line; do
    IFS='|' read -r profile name rest <<< "$line"
    [[ $rest == "$kind|"* ]] || continue
    [[ -z $suite || $name =~ $suite ]] || continue
    [[ -f $state/results/$profile/$name.status ]] && continue
    read -r gpu <&"$slots"
    (($(left "$job_limit") > 5)) || break
    {
      run_job "$gpu" "$line"
      echo "$gpu" >&"$slots"
    } &
    jobs+=($!)
  done <<< "$all"
  wait "${jobs[@]}" 2> /dev/null  # the shell forgets the oldest of many
}

all=$(all_jobs)
if ((list)); then
  cut -d '|' -f 1-3 <<< "$all" | { grep -E "[|]${suite:-.}" || true; } | tr '|' '\t'
  exit 0
fi
# Several GPUs: the last one is for the jobs that want a GPU alone, and joins the others when these are
# done; the others help with what is left of them when they are done themselves, so that the processors do
# not wait for a few small programs.
open_slots 8
open_slots 9
if ((n_gpus > 1)); then
  add_slots 8 1 $((n_gpus - 1)) $((n_gpus - 1))
  add_slots 9 "$per_gpu" 0 $((n_gpus - 2))
  { run_all alone 8; add_slots 9 "$per_gpu" $((n_gpus - 1)) $((n_gpus - 1)); } &
  loners=$!
  run_all shared 9
  add_slots 8 1 0 $((n_gpus - 2))
  wait "$loners"
else
  add_slots 8 1 0 0
  add_slots 9 "$per_gpu" 0 0
  run_all shared 9
  run_all alone 8
fi

while IFS='|' read -r profile name _; do
  [[ -n $profile && ( -z $suite || $name =~ $suite ) ]] || continue
  [[ -f $state/results/$profile/$name.status ]] || { echo "$profile $name: not run yet"; cut=1; }
done <<< "$all"

{ nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null || echo "software device on $(sed -n 's/^model name.*: //p;T;q' /proc/cpuinfo)"; } | sort |
  uniq -c | sed -E 's/^ *([0-9]+) (.*)/\1 x \2/' | paste -sd ';' > "$state/results/machine.txt"
rows=$state/gpu_rows.tsv
tools/run_record.py summarize "$state/results" > "$rows"
status=$?
[[ -z $host ]] && tools/run_record.py merge gpu "$rows"
if [[ -n $out ]]; then
  mkdir -p "$out"
  cp "$rows" "$out/"
  (cd "$state" && find results -name '*.status' -print0 | xargs -0 grep -LZE '^(0|77) ' |
    sed -z 's/status$/log/' | tar --null -czf "$out/failed_gpu_logs.tar.gz" -T - 2> /dev/null)
fi
awk -F '\t' '$1 == "row" { suites[$2]++; for (i = 7; i <= 10; ++i) sum[$2, i] += $i }
  $1 == "failed" { print "FAILED " $2 " " $3 " " $4 ": " $5 }
  END { for (on in suites) printf "%-5s %d suites: %d passed, %d failed, %d skipped, %d s\n", on,
          suites[on], sum[on, 7], sum[on, 8], sum[on, 9], sum[on, 10] }' "$rows"
((broken || status)) && exit 1
((cut)) && exit 3
exit 0
