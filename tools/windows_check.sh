#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The library for Windows on x86-64, compiled here with MinGW-w64 and run under Wine: windows_check.sh
# [build folder]. Installs what it misses, builds sharpi.dll and the example programs, asks the demo's
# questions, with paths and folders that no code page has, and holds exports, imports and the sizes of
# the header's structs against those of Linux.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build-windows}
jobs=$(nproc)
tools/setup/packages.sh windows
tools/setup/windows.sh "$build/root"
cmake --preset release -B "$build/release" --toolchain "$PWD/cmake/toolchains/windows-x64.cmake" \
  -DSHARPI_WINDOWS_ROOT="$(realpath "$build/root")" -DSHARPI_TESTS=OFF -DSHARPI_INSTALL=OFF -DSHARPI_WERROR=ON \
  > "$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 1; }
cmake --build "$build/release" -j "$jobs" --target sharpi generate compact plan > "$build/build.log" 2>&1 ||
  { tail -n 60 "$build/build.log"; exit 1; }

run=$build/run
rm -rf "$run"
mkdir -p "$run"
cp "$build"/release/lib/*.dll "$build"/release/examples/*.exe "$run"
dll=$(basename "$(ls "$run"/*.dll)")
# Nothing to install: only libraries of the system are named.
foreign=$(x86_64-w64-mingw32-objdump -p "$run/$dll" | sed -nE 's/.*DLL Name: (.*)/\1/p' |
  grep -viE '^(kernel32|msvcrt|bcrypt|advapi32|api-ms-win-core-synch-l1-2-0)(\.dll)?$' || true)
[[ -z $foreign ]] || { echo "$dll needs $foreign"; exit 1; }
# It exports what the header declares, and nothing else.
exports() { x86_64-w64-mingw32-objdump -p "$1" | sed -nE '/Ordinal\/Name Pointer/,$ s/^\s*\[ *[0-9]+\]( \+base\[ *[0-9]+\])? ?[0-9a-f]* ([A-Za-z_]\w*)$/\2/p' | sort; }
declared=$(grep -oE '\bsharpi_[a-z0-9_]+\(' <(sed -n '/^SHARPI_API/,/;/p' include/sharpi.h) | tr -d '(' | sort -u)
exported=$(exports "$run/$dll")
missing=$(comm -23 <(grep -xFf <(sed -nE 's/^SHARPI_API.*\b(sharpi_[a-z0-9_]+)\(.*/\1/p' include/sharpi.h) <<< "$declared") \
  <(echo "$exported"))
extra=$(comm -13 <(echo "$declared") <(echo "$exported"))
[[ -z $missing$extra ]] || { echo "not exported: $missing"; echo "exported, not declared: $extra"; exit 1; }
echo "$dll: $(stat -c %s "$run/$dll") bytes, $(wc -l <<< "$exported") functions"

# The facts of the ABI: every size and offset is the one of Linux.
tests/ffi/header_facts.sh include/sharpi.h x86_64-w64-mingw32-gcc-posix "$run/facts" tools/windows/wine.sh |
  tr -d '\r' | sort | diff <(sort tests/abi/sharpi-1.facts) -
echo "sizes and offsets are those of Linux"

wine() { timeout 300 tools/windows/wine.sh "$@"; }
ask() {  # answer, program, arguments...
  local answer=$1 said
  shift
  said=$(wine "$@" 2>&1) || { echo "$said"; echo "FAILED: $*"; exit 1; }
  grep -q "\"$answer\": found" <<< "$said" || { echo "$said"; exit 1; }
}
folder="$run/модель 模型"
mkdir -p "$folder"
cp tests/fixtures/tiny-qwen3-q8_0.gguf "$folder/ключ.gguf"
ask 97697 "$run/generate.exe" -m tests/fixtures/tiny-qwen3-q8_0.gguf -f examples/demo_prompt.txt --chat \
  --temp 0 -n 32 --expect 97697
ask 97697 "$run/generate.exe" -m "$folder/ключ.gguf" -f examples/demo_prompt.txt --chat --temp 0 -n 32 --expect 97697
ask 80293 "$run/compact.exe" -m tests/fixtures/tiny-qwen35-q8_0.gguf -f examples/compact_prompt.txt \
  --budget 256 --expect 80293
# A path of more than 260 characters.
long=$run/$(printf 'a%.0s' {1..120})/$(printf 'b%.0s' {1..120})
mkdir -p "$long"
cp tests/fixtures/tiny-qwen3-q8_0.gguf "$long/model.gguf"
ask 97697 "$run/generate.exe" -m "$long/model.gguf" -f examples/demo_prompt.txt --chat --temp 0 -n 32 --expect 97697
# What is not there, and what is a folder, is said by name.
said=$(wine "$run/generate.exe" -m "$run/none.gguf" -p x 2>&1) && { echo "$said"; exit 1; }
grep -q NOT_FOUND <<< "$said" || { echo "$said"; exit 1; }
said=$(wine "$run/generate.exe" -m "$run" -p x 2>&1) && { echo "$said"; exit 1; }
grep -q 'it is a folder' <<< "$said" || { echo "$said"; exit 1; }
echo "the demo's questions are answered under Wine, from paths in other scripts and of over 260 characters too"
