#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Asks the demo's question through the archives of other machines, of which nothing else is in reach: a C program is
# compiled against what is in the archive, and run under qemu or Wine: other_machines.sh dist-folder work-folder
# Wheels are installed by a Python of the other machine, and asked, too. A machine whose archive or wheel was not
# made, or for which a compiler, an emulator or a Python lacks, is skipped by name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dist=$(realpath "$1") work=$(realpath -m "$2")

unpacked() {  # platform: the folder of its archive
  local archive
  archive=$(ls "$dist"/libsharpi-[0-9]*-"$1".tar.gz 2> /dev/null | head -n 1) || true
  [[ -n $archive ]] || { echo "skipped: $1: its archive was not made" >&2; return 1; }
  rm -rf "${work:?}/$1"
  mkdir -p "$work/$1"
  tar xzf "$archive" -C "$work/$1"
  ls -d "$work/$1"/*
}
there() {  # platform, program...
  local program
  for program in "${@:2}"; do
    command -v "$program" > /dev/null || [[ -x $program ]] || { echo "skipped: $1: there is no $program" >&2; return 1; }
  done
}
# platform, system's sources, compiler, libraries, what runs a program
ask() {
  local platform=$1 system=$2 compiler=$3 libraries=$4 at said
  shift 4
  there "$platform" "$compiler" "$1" && at=$(unpacked "$platform") || return 0
  # shellcheck disable=SC2086
  mkdir -p "$at/bin"
  "$compiler" -std=c11 -O1 -I"$at/include" -o "$at/bin/generate.exe" examples/generate.c examples/util.c \
    "examples/system_$system.c" -L"$at/lib" -lsharpi $libraries -lm
  said=$(cd "$at/bin" && timeout 600 "$@" ./generate.exe -m "$OLDPWD/tests/fixtures/tiny-qwen3-q8_0.gguf" \
    -p 'The code of ember is 97697. What is the code of ember?' --chat --temp 0 -n 32 --expect 97697 2>&1) ||
    { echo "$said"; echo "$platform: no answer"; return 1; }
  grep -q '"97697": found' <<< "$said" || { echo "$said"; return 1; }
  echo "$platform: answers from the archive alone"
}
mkdir -p "$work"
ask linux-aarch64 posix aarch64-linux-gnu-gcc "-Wl,-rpath,\$ORIGIN/../lib" qemu-aarch64-static -cpu max,sve=off -L /usr/aarch64-linux-gnu
ask windows-x64 windows x86_64-w64-mingw32-gcc-posix "-lpsapi -lshell32" "$PWD/tools/windows/wine.sh"
ask_wheel() {  # platform, the end of its wheel's name
  local wheel status=0
  # shellcheck disable=SC2086  # a pattern
  wheel=$(ls "$dist"/sharpi-[0-9]*-$2.whl 2> /dev/null | head -n 1) || true
  [[ -n $wheel ]] || { echo "skipped: $1: its wheel was not made"; return 0; }
  tests/dist/wheel_elsewhere.sh "$1" "$wheel" "$work/$1-wheel" || status=$?
  ((status == 0 || status == 77))
}
ask_wheel linux-aarch64 'manylinux*_aarch64'
ask_wheel windows-x64 win_amd64
