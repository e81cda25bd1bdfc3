#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Prints the oldest glibc that a library can be loaded with, and fails if that is newer than 2.28 (Debian 10,
# RHEL 8, Ubuntu 18.10), with the symbols that are: glibc_floor.sh library [newest allowed]
set -euo pipefail
export LC_ALL=C
library=$1 allowed=${2:-2.28}
versions=$(readelf -VW "$library" | sed -nE 's/.*Name: GLIBC_([0-9.]+) .*/\1/p' | sort -Vu)
[[ -n $versions ]] || { echo "$library names no version of glibc"; exit 1; }
oldest=$(tail -n 1 <<< "$versions")
if [[ $(printf '%s\n' "$oldest" "$allowed" | sort -V | tail -n 1) != "$allowed" ]]; then
  echo "$library asks for glibc $oldest, at most $allowed:"
  readelf --dyn-syms -W "$library" | grep -oE '[A-Za-z_0-9]+@GLIBC_[0-9.]+' | sort -u |
    while IFS=@ read -r name version; do
      [[ $(printf '%s\n' "${version#GLIBC_}" "$allowed" | sort -V | tail -n 1) == "$allowed" ]] ||
        echo "  $name, of ${version#GLIBC_}"
    done
  exit 1
fi
echo "glibc $oldest or later"
