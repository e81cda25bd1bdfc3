#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The library on aarch64 Linux, built here and run under qemu: arm_check.sh [options]
#
# What is missing is installed (a cross compiler and qemu) or downloaded into the build folder (libraries
# for arm64). Then library, tests, examples and server are built, the header is held against the facts of
# the ABI, the demo's questions are answered, blobs go from here to there and back, some suites run with larger
# pages, and suites of tests run on four processors that qemu plays. Suites that were not asked for, or not reached, are named.
#
#   --build FOLDER      build folder (default: build-arm)
#   --limit SECONDS     suites run no longer than this in all (default: 3600); call again to go on
#   --share SECONDS     of a suite that takes longer one part, which --turn chooses (default: 150; 0: all of it)
#   --whole REGEX       suites that are run whole all the same, once for each set of kernels (default: the fixtures'
#                       goldens)
#   --processors LIST   of cortex-a72,neoverse-n1,max,a64fx (default: all)
#   --suite REGEX       only suites whose name matches (default: those that SUITES names)
#   --turn TEXT         which suites come first depends on this text, and which part of a long one runs
#   --jobs N            programs beside each other (default: the processors)
#   --again             forget the results of earlier calls
#   --record            the run into docs/isa_run.tsv.gz and docs/isa_run.md; of suites all (--share 0)
# Exit status: 0 all passed, 1 something failed, 3 cut off by --limit before the end.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# Suites that say most about a port in the time that qemu takes: base, files, formats and kernels, the
# fixtures' goldens, and that a row's bits do not depend on how it was computed.
readonly SUITES='^(isa|base|os|gguf|golden|kv|ops|q4_rows|matmul|attention|delta_net|expert_host|parity|invariance|split|save|fork)_test$'
# The fixtures' goldens run whole.
whole='^(golden|parity)_test$'
# Four processors: NEON alone, dot products, products of matrices, and SVE without dot products.
readonly PROCESSORS=cortex-a72,neoverse-n1,max,a64fx

build=build-arm limit=3600 processors=$PROCESSORS suite=$SUITES jobs=$(nproc) share=150 options=()
while (($#)); do
  case $1 in
    --build) build=$2; shift ;;
    --limit) limit=$2; shift ;;
    --processors) processors=$2; shift ;;
    --suite) suite=$2; shift ;;
    --share) share=$2; shift ;;
    --whole) whole=$2; shift ;;
    --turn) options+=(--turn "$2"); shift ;;
    --jobs) jobs=$2; shift ;;
    --again) options+=("$1") ;;
    --record) share=0 && options+=("$1") ;;
    *) sed -n '3,/^set /p' "$0" | sed '$d;s/^# \{0,1\}//' >&2; exit 2 ;;
  esac
  shift
done
mkdir -p "$build"
build=$(realpath "$build")

tools/setup/packages.sh arm || exit
tools/setup/sysroot_aarch64.sh "$build/sysroot" || exit
# Boost is headers alone, which are the same everywhere; with the rest of the machine's headers they
# would come before the cross compiler's.
boost=$(echo '#include <boost/version.hpp>' | g++ -x c++ -M - 2> /dev/null | grep -o '[^ ]*/boost/version.hpp')
[[ -z $boost ]] || ln -sfn "${boost%/version.hpp}" "$build/sysroot/usr/include/boost"
cmake --preset release -B "$build/build" --toolchain "$PWD/cmake/toolchains/aarch64-linux.cmake" \
  -DSHARPI_SYSROOT="$build/sysroot" -DSHARPI_TESTS=ON -DSHARPI_WERROR=ON > "$build/configure.log" 2>&1 ||
  { cat "$build/configure.log"; exit 1; }
targets=(sharpi sharpi_static generate chat compact list_isas move_blob)
while read -r target; do targets+=("$target"); done < <(
  sed -E 's/ .*//; s|.*/||' "$build/build/tests_suites.txt" | grep -E "$suite")
cmake --build "$build/build" --target help | grep '^server: ' > /dev/null && targets+=(server)
cmake --build "$build/build" -j "$jobs" --target "${targets[@]}" > "$build/build.log" 2>&1 ||
  { tail -n 60 "$build/build.log"; exit 1; }

status=0
qemu() {  # processor, command...
  local cpu=$1
  shift
  qemu-aarch64-static -cpu "$cpu" -L /usr/aarch64-linux-gnu "$@"
}
# name, command...
check() {
  local name=$1 start=$SECONDS
  shift
  if "$@"; then
    echo "$name: ok, $((SECONDS - start)) s"
  else
    echo "$name: FAILED"
    status=1
  fi
}
same_facts() {
  local folder=$build/facts
  tests/ffi/header_facts.sh include/sharpi.h aarch64-linux-gnu-gcc "$folder" \
    qemu-aarch64-static -L /usr/aarch64-linux-gnu > "$folder.txt" && diff tests/abi/sharpi-1.facts "$folder.txt"
}
answers() {
  qemu max "$build/build/examples/generate" -m tests/fixtures/tiny-qwen3-q8_0.gguf -f examples/demo_prompt.txt \
    --chat --temp 0 -n 32 --expect 97697 > /dev/null
}
same_blobs() {
  tools/same_blobs.sh "$build/blobs" qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu "$build/build/tests/api/move_blob"
}
check "ABI facts" same_facts
check "blobs from machine to machine" same_blobs
check "demo" answers
# Pages of 16 and 64 KiB, as far as qemu can say so: programs are told that size, what lies below has the machine's.
with_pages() {  # bytes
  local name status=0
  for name in os base kv; do
    [[ -x $build/build/tests/$name/${name}_test ]] || continue
    GTEST_BRIEF=1 timeout 300 qemu-aarch64-static -p "$1" -cpu max -L /usr/aarch64-linux-gnu \
      "$build/build/tests/$name/${name}_test" > "$build/pages.log" 2>&1 < /dev/null || { tail -n 20 "$build/pages.log"; status=1; }
  done
  return "$status"
}
check "pages of 16 KiB" with_pages 16384
check "pages of 64 KiB" with_pages 65536

SECONDS=0 cut=0 sets_before=' '
read -r -a played_processors <<< "${processors//,/ }"
for ((i = 0; i < ${#played_processors[@]}; ++i)); do
  cpu=${played_processors[i]}
  case $cpu in
    max) played=max,sve=off ;;
    *) played=$cpu ;;
  esac
  got=0
  # Each processor has its share of what is left; suites without kernels run on the first one.
  left=$(((limit - SECONDS) / (${#played_processors[@]} - i)))
  ((left > 5)) || left=5
  set=$(qemu "$played" "$build/build/tests/list_isas" | tail -n 1)
  # What an earlier processor has computed with the same kernels is not computed again, and cases of kernels that
  # this one lacks are in no part of a suite: a part could have nothing else.
  case $cpu in
    max) except='*/neon:*/neon_*' ;;
    *) except='*/i8mm:*/i8mm_*' ;;
  esac
  # A processor with an earlier one's kernels computes a part of what they were asked.
  whole_here=$whole
  [[ $sets_before != *" $set "* ]] || whole_here='^$'
  sets_before+="$set "
  if ((i)); then
    except+=':*/scalar:*/scalar_*'
  else
    set=any,$set
  fi
  echo "--- $cpu"
  tools/isa_check.sh --build "$build/build" --results "$build/results-$cpu" --suite "$suite" --jobs "$jobs" \
    --run "qemu-aarch64-static -cpu $played -L /usr/aarch64-linux-gnu" --machine "qemu $played" \
    --sets "$set" --except "$except" --share "$share" --whole "$whole_here" --limit "$left" --job-limit 3600 "${options[@]}" || got=$?
  case $got in
    0) ;;
    3) cut=1 ;;
    *) status=1 ;;
  esac
done
((status)) && exit 1
((cut)) && exit 3
exit 0
