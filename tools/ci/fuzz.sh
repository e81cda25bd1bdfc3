#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every libFuzzer target (its test carries the name of the target, which ends in _fuzz) for as long
# as its test says, in the folder of the sanitizers.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

configure sanitize
mapfile -t targets < <(ctest --test-dir build-sanitize -N -R '_fuzz$' |
                       sed -nE 's/.*Test +#[0-9]+: ([a-z0-9_]+_fuzz)$/\1/p')
((${#targets[@]})) || { echo "no libFuzzer target in the tree"; exit 1; }
build build-sanitize "${targets[@]}"
ctest --test-dir build-sanitize --output-on-failure -j "$jobs" -R '_fuzz$'
