#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every libFuzzer target for long, or those that are named:
#   fuzz_long.sh [SECONDS for each target, default 3600 [TARGET...]]
# Inputs that reach new code are kept in build-sanitize/fuzz_long/TARGET and used again; an input that
# breaks something lies in the same folder and its name begins with crash-, leak-, oom- or timeout-.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-3600}

shift || true
targets=("$@")

cmake --preset sanitize > /dev/null
((${#targets[@]})) ||
  mapfile -t targets < <(ctest --test-dir build-sanitize -N -R '_fuzz$' |
                         sed -nE 's/.*Test +#[0-9]+: ([a-z0-9_]+_fuzz)$/\1/p')
((${#targets[@]})) || { echo "no libFuzzer target in the tree"; exit 1; }
cmake --build build-sanitize --target "${targets[@]}"
export ASAN_OPTIONS=allocator_may_return_null=1
status=0
for target in "${targets[@]}"; do
  kept=build-sanitize/fuzz_long/$target
  mkdir -p "$kept"
  seeds=(tests/fuzz/corpus/"${target%_fuzz}")
  [[ -d ${seeds[0]} ]] || seeds=()
  [[ -f tests/fuzz/${target%_fuzz}.dict ]] && seeds+=("-dict=tests/fuzz/${target%_fuzz}.dict")
  echo "$target for $seconds s"
  "build-sanitize/tests/fuzz/$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 \
    -artifact_prefix="$kept/" -print_final_stats=1 "$kept" "${seeds[@]}" 2>&1 | tail -n 12 || status=1
done
exit "$status"
