#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The ABI against its dump: abi.sh [--renew | --try]
#   sharpi-1.facts  what the C compiler makes of the header: sizes, offsets, functions, constants
#                   (tests/ffi/header_facts.sh)
#   sharpi-1.abi.gz its types in full, by libabigail, of a library that defines every function of the
#                   header and does nothing; abi.exports_equal_declarations holds the real one against
#                   the header
# Any difference fails, an addition too: --renew writes the dumps again, and the commit says what
# changed. --try breaks copies of the header on purpose and fails unless each is noticed.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export LC_ALL=C

readonly kDumps=$PWD/tests/abi kHeader=$PWD/include/sharpi.h
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# stub header library: functions that do nothing, with all their types.
stub() {
  {
    printf '#include "sharpi.h"\n'
    sed -E ':all; N; $!ball; s#/\*([^*]|\*+[^*/])*\*+/##g' "$1" | grep -v '^[[:space:]]*#' | tr '\n' ' ' |
      sed -E 's/[[:space:]]+/ /g; s/;/;\n/g' | sed -nE 's/.*SHARPI_API (.*) ?SHARPI_NOEXCEPT;.*/\1/p' |
      sed -E 's/^(void sharpi_[a-z0-9_]+\(.*)$/\1 {}/; t; s/$/ { return 0; }/'
  } > "$work/stub.c"
  "${CC:-gcc}" -std=c11 -g -O0 -shared -fPIC -w -I"$(dirname "$1")" "$work/stub.c" -o "$2"
}
# dump header folder
dump() {
  mkdir -p "$2"
  tests/ffi/header_facts.sh "$1" "${CC:-gcc}" "$work/facts" > "$2/sharpi-1.facts"
  stub "$1" "$work/libstub.so"
  abidw --no-show-locs --no-corpus-path --no-comp-dir-path --no-elf-needed "$work/libstub.so" |
    sed -E "s/ path='[^']*'//g; s/ soname='[^']*'//g" | gzip -9n > "$2/sharpi-1.abi.gz"
}
# compare folder: what differs is printed
compare() {
  local status=0
  diff -U0 "$kDumps/sharpi-1.facts" "$1/sharpi-1.facts" || status=1
  gunzip -c "$kDumps/sharpi-1.abi.gz" > "$work/promised.abi"
  gunzip -c "$1/sharpi-1.abi.gz" > "$work/present.abi"
  abidiff --no-show-locs "$work/promised.abi" "$work/present.abi" || status=1
  return "$status"
}
# broken what sed-program: a header with this change must be noticed
broken() {
  local folder=$work/broken status=0
  rm -rf "$folder"
  mkdir -p "$folder"
  sed -E "$2" "$kHeader" > "$folder/sharpi.h"
  if cmp -s "$folder/sharpi.h" "$kHeader"; then
    echo "the trial \"$1\" changes nothing of the header"
    return 1
  fi
  dump "$folder/sharpi.h" "$folder/dump"
  compare "$folder/dump" > "$folder/log" 2>&1 || status=$?
  if ((status == 0)); then
    echo "not noticed: $1"
    return 1
  fi
  echo "noticed: $1: $(grep -m1 -E '^[-+](function|field|constant|struct|callback)|parameter [0-9]+ of type' "$folder/log")"
}

command -v abidw > /dev/null || { echo "libabigail (abigail-tools) is not installed"; exit "$kSkipped"; }
case ${1:-} in
  --renew)
    dump "$kHeader" "$kDumps"
    exit
    ;;
  '' | --try) ;;
  *) echo "abi.sh [--renew | --try]"; exit 2 ;;
esac

dump "$kHeader" "$work/now"
compare "$work/now" || {
  echo "the ABI is not the one of tests/abi/sharpi-1.*; if that is meant, tools/ci/abi.sh --renew"
  exit 1
}
status=0
broken 'a function is removed' '/^SHARPI_API uint32_t sharpi_version/d' || status=1
broken 'a field is moved' '/^  uint32_t n_layers;  *\/\*\*< Of the model/{h;d}; /^  uint32_t n_gpu_layers;  *\/\*\*< With/{p;x}' || status=1
broken 'a constant has another number' 's/^(#define SHARPI_E_BUSY +\()-13/\1-18/' || status=1
broken 'an argument points to another type' 's/uint64_t \*out_len, sharpi_error/uint32_t *out_len, sharpi_error/; s/^( +)uint64_t \*out_len,$/\1uint32_t *out_len,/' || status=1
broken 'a field is added' 's/^(  uint32_t n_checkpoints;  *\/\*\*< Taken)/  uint32_t more;\n\1/' || status=1
exit "$status"
