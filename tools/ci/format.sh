#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Sources are laid out by clang-format: format.sh checks, format.sh --fix rewrites. Version 14 it
# must be, because versions differ in what they make of one .clang-format.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
wanted=14

tool=
for candidate in "clang-format-$wanted" clang-format; do
  if "$candidate" --version 2> /dev/null | grep -q "version $wanted\."; then
    tool=$candidate
    break
  fi
done
if [[ -z $tool ]]; then
  echo "clang-format $wanted is not on this machine"
  [[ ${1:-} == --fix ]] && exit 2
  exit "$kSkipped"
fi

mapfile -t gpu_tiers < <(sed -nE 's/^([a-z]+) .*/\1/p' cmake/gpu_tiers.txt)
# The public header is laid out by hand: its columns are part of the manual.
mapfile -t files < <(find include lib "${gpu_tiers[@]}" examples bench tests -type f \
  -regex '.*\.\(h\|c\|cc\|cu\|cuh\)' -not -path include/sharpi.h 2> /dev/null | sort)
if [[ ${1:-} == --fix ]]; then
  "$tool" -i "${files[@]}"
  echo "${#files[@]} files formatted"
else
  bad=$("$tool" --dry-run "${files[@]}" 2>&1 | sed -nE 's/^([^:]+):[0-9]+:.*/\1/p' | uniq -c)
  if [[ -n $bad ]]; then
    echo "places that 'make format' would change, by file:"
    echo "$bad"
    exit 1
  fi
  echo "${#files[@]} files, all as clang-format lays them out"
fi
