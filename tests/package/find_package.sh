#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Configures, builds and runs the consumer project against an installed package:
# find_package.sh shared|static|refused cc prefix cmake generator work-folder model
set -euo pipefail
export LC_ALL=C
kind=$1 cc=$2 prefix=$3 cmake=$4 generator=$5 work=$6 model=$7
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
rm -rf "$work"
configure=("$cmake" -S "$here/consumer" -B "$work" -G "$generator" "-DCMAKE_C_COMPILER=$cc"
           "-DCMAKE_PREFIX_PATH=$prefix" "-DCONSUMER_KIND=$kind")

if [[ $kind == refused ]]; then
  if output=$("${configure[@]}" -DCONSUMER_VERSION=2.0 2>&1); then
    echo "version 2.0 was accepted"
    exit 1
  fi
  grep -q 'requested version "2.0"' <<< "$output" || { echo "$output"; exit 1; }
  exit 0
fi
"${configure[@]}" > /dev/null
"$cmake" --build "$work" > /dev/null
"$work/consumer" "$model"
