#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The programs of tests as one archive, to run on another machine's processor:
# isa_package.sh BUILD ARCHIVE.tar.xz
#
# There, in a checkout of the same sources:
#   python3 -m tarfile -e ARCHIVE.tar.xz FOLDER && tools/isa_check.sh --prebuilt FOLDER --out OUT
# and here, of what lies in OUT:
#   tools/run_record.py merge isa OUT/isa_rows.tsv
# Programs are stripped; the libraries that they name travel with them, but for those of the compiler and
# of the C library, of which the other machine needs the same or newer ones.
set -euo pipefail
(($# == 2)) || { sed -n '3,/^set /p' "$0" | sed '$d;s/^# \{0,1\}//' >&2; exit 2; }
build=$(realpath "$1") archive=$(realpath -m "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

mkdir -p "$stage/lib" "$stage/examples"
tools/suite_sources.py "$build" > "$stage/suites.tsv"
sed "s|^$build/||" "$build/tests_suites.txt" > "$stage/tests_suites.txt"
programs=(tests/list_isas tests/list_fixtures)
for program in chat compact generate move plan; do programs+=("examples/$program"); done
while read -r program _ where; do
  [[ $where == apart ]] || programs+=("$program")
done < "$stage/tests_suites.txt"
for program in "${programs[@]}"; do
  mkdir -p "$stage/${program%/*}"
  strip -o "$stage/$program" "$build/$program"
done
mapfile -t libraries < <(cd "$stage" && LD_LIBRARY_PATH=$build/lib ldd "${programs[@]}" |
  sed -nE 's/^\s+\S+ => (\S+) .*/\1/p' | sort -u |
  grep -vE '/(libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|librt|libresolv)\.so')
for library in "${libraries[@]}"; do
  strip -o "$stage/lib/${library##*/}" "$(realpath "$library")"
done
# A window as wide as many programs: what they share is packed once.
(cd "$stage" && find . -type f -printf '%s %p\n' | sort -n | cut -d ' ' -f 2- |
  tar -cf - -T - | xz -c --lzma2=preset=1,dict=96MiB > "$archive")
echo "$archive: ${#programs[@]} programs, $(du -sm "$stage" | cut -f 1) MB packed in $(du -m "$archive" | cut -f 1)"
