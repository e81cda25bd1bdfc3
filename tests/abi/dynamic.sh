#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What the library's dynamic section asks of the host: dynamic.sh readelf library
set -euo pipefail
export LC_ALL=C
readelf=$1 library=$2
dynamic=$("$readelf" -dW "$library")
segments=$("$readelf" -lW "$library")
failed=0
fail() {
  echo "$1"
  failed=1
}

grep -q 'SONAME.*\[libsharpi\.so\.1\]' <<< "$dynamic" || fail "the soname is not libsharpi.so.1"
needed=$(sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' <<< "$dynamic")
[[ -n $needed ]] || fail "no NEEDED entry could be read"
# CUDA libraries are opened at run time, so that the library loads on every machine.
cuda=$(grep -E '^lib(cu|nv|nccl)' <<< "$needed" || true)
[[ -z $cuda ]] || fail "linked against CUDA libraries: ${cuda//$'\n'/ }"
other=$(grep -vE '^(lib(stdc\+\+|c\+\+|c\+\+abi|gcc_s|m|c|dl|rt|pthread|pcre2-8|utf8proc)\.so|ld-linux)' \
        <<< "$needed" || true)
[[ -z $other ]] || fail "linked against libraries that are not agreed: ${other//$'\n'/ }"
! grep -q TEXTREL <<< "$dynamic" || fail "has text relocations"
! grep -qE 'GNU_STACK.*RWE' <<< "$segments" || fail "asks for an executable stack"
grep -qE 'FLAGS_1.*NODELETE' <<< "$dynamic" || fail "can be unloaded under its threads"
! grep -qE '(RPATH|RUNPATH)' <<< "$dynamic" || fail "carries a run path"

((failed)) || echo "needs: ${needed//$'\n'/ }"
exit "$failed"
