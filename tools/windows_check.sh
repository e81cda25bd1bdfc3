#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The library for Windows on x86-64, compiled here with MinGW-w64 and run under Wine: windows_check.sh
# [options]. Installs what it misses, builds sharpi.dll, the example programs and the test programs, asks
# the demo's questions, with paths and folders that no code page has, holds exports, imports and the sizes
# of the header's structs against those of Linux, passes saved sessions from one system to the other, asks the
# server what its tests ask, makes the wheel and looks into it, and runs suites of tests. Host sources of the CUDA
# tier are compiled where CUDA's headers are.
#
#   --build FOLDER   build folder (default: build-windows)
#   --suite REGEX    suites whose name matches (default: those that SUITES names)
#   --limit SECONDS  suites run no longer than this in all (default: 3600)
#   --turn TEXT      which suites come first depends on this text
# Exit status: 0 all passed, 1 something failed, 3 cut off by --limit before the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/ci/common.sh
# What asks most of a system, rows and formats, kernels, texts and grammars, plans, the fixtures' goldens, and
# sessions that are saved and forked.
readonly SUITES='^(os|base|isa|kv|ops|q4_rows|matmul|attention|delta_net|golden|gguf|model|plan|text|grammar|parity|save|fork)_test$'
build=build-windows suite=$SUITES limit=3600 turn=''
while (($#)); do
  case $1 in
    --build) build=$2 ;;
    --suite) suite=$2 ;;
    --limit) limit=$2 ;;
    --turn) turn=$2 ;;
    *) sed -n '3,/^set /p' "$0" | sed '$d;s/^# \{0,1\}//' >&2; exit 2 ;;
  esac
  shift 2
done
tools/setup/packages.sh windows
tools/setup/windows.sh "$build/root"
cmake --preset release -B "$build/release" --toolchain "$PWD/cmake/toolchains/windows-x64.cmake" \
  -DSHARPI_WINDOWS_ROOT="$(realpath "$build/root")" -DSHARPI_TESTS=ON -DSHARPI_WERROR=ON \
  > "$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 1; }
# Another processor is refused by name.
printf 'include("%s")\nset(CMAKE_SYSTEM_PROCESSOR ARM64)\n' "$PWD/cmake/toolchains/windows-x64.cmake" > "$build/arm64.cmake"
said=$(cmake --preset release -B "$build/arm64" --toolchain "$(realpath "$build/arm64.cmake")" \
  -DSHARPI_WINDOWS_ROOT="$(realpath "$build/root")" 2>&1) && { echo "Windows on arm64 is not refused"; exit 1; }
grep -q 'Windows on ARM64 is not supported yet' <<< "$said" || { echo "$said"; exit 1; }
mapfile -t programs < <(sed -E 's/ .*//' "$build/release/tests_suites.txt" |
  while read -r path; do name=${path##*/}; [[ ! ${name%.exe} =~ $suite ]] || echo "$path"; done)
targets=(sharpi sharpi_bundled generate chat compact plan move_blob)
! cmake --build "$build/release" --target help | grep '^server: ' > /dev/null || targets+=(server)
for program in "${programs[@]}"; do name=${program##*/} && targets+=("${name%.exe}"); done
cmake --build "$build/release" -j "$jobs" --target "${targets[@]}" > "$build/build.log" 2>&1 ||
  { tail -n 60 "$build/build.log"; exit 1; }

run=$build/run
rm -rf "$run"
mkdir -p "$run"
cp "$build"/release/lib/*.dll "$build"/release/examples/*.exe "$run"
[[ " ${targets[*]} " != *" server "* ]] || cp "$build/release/examples/server/server.exe" "$run"
dll=$(basename "$(ls "$run"/*.dll)")
# Nothing to install: only libraries of the system are named, and ours.
for file in "$run"/*.dll "$run"/*.exe; do
  foreign=$(x86_64-w64-mingw32-objdump -p "$file" | sed -nE 's/.*DLL Name: (.*)/\1/p' |
    grep -viE '^(kernel32|msvcrt|bcrypt|advapi32|shell32|psapi|ws2_32|api-ms-win-core-synch-l1-2-0|sharpi)(\.dll)?$' || true)
  [[ -z $foreign ]] || { echo "$file needs $foreign"; exit 1; }
done
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
# A talk whose lines come from a file, and end as Windows writes them.
said=$({ printf '%s\r\n' "The code of ember is 97697. What is the code of ember?" "/exit" |
  wine "$run/chat.exe" -m tests/fixtures/tiny-qwen3-q8_0.gguf --temp 0 -n 32; } 2>&1) || { echo "$said"; exit 1; }
grep -q 'The code of ember is 97697' <<< "$said" || { echo "chat says: $said"; exit 1; }
ask 80293 "$run/compact.exe" -m tests/fixtures/tiny-qwen35-q8_0.gguf -f examples/compact_prompt.txt \
  --budget 256 --expect 80293
# A path of more than 260 characters.
long=$run/$(printf 'a%.0s' {1..120})/$(printf 'b%.0s' {1..120})
mkdir -p "$long"
cp tests/fixtures/tiny-qwen3-q8_0.gguf "$long/model.gguf"
ask 97697 "$run/generate.exe" -m "$long/model.gguf" -f examples/demo_prompt.txt --chat --temp 0 -n 32 --expect 97697
# A share of another machine: Wine takes a folder for it.
share=${WINEPREFIX:-${XDG_CACHE_HOME:-$HOME/.cache}/sharpi/wine}/dosdevices/unc/machine
mkdir -p "$share"
ln -sfn "$PWD/$folder" "$share/share"
ask 97697 "$run/generate.exe" -m '\\machine\share\ключ.gguf' -f examples/demo_prompt.txt --chat --temp 0 -n 32 --expect 97697
said=$(wine "$run/generate.exe" -m '\\machine\share\none.gguf' -p x 2>&1) && { echo "$said"; exit 1; }
grep -q NOT_FOUND <<< "$said" || { echo "$said"; exit 1; }
# A console whose code page has none of the path's letters.
if command -v script > /dev/null; then
  printf '%s\r\n' '@echo off' 'chcp 437' \
    'generate.exe -m "%SHARPI_ASKED%" -p "The code of ember is 97697. What is the code of ember?" --chat --temp 0 -n 32 --expect 97697' > "$run/ask.bat"
  said=$(cd "$run" && SHARPI_ASKED=${folder##*/}/ключ.gguf timeout 300 script -qec "$OLDPWD/tools/windows/wine.sh cmd /c ask.bat" /dev/null < /dev/null |
    sed 's/\x1b\[[?0-9;]*[a-zA-Z]//g')
  grep -q '"97697" *: *found' <<< "$said" || { echo "in a console of code page 437: $said"; exit 1; }
else
  echo "skipped: a console of another code page: script is not on this machine; on Debian: apt-get install bsdutils"
fi
# What is not there, and what is a folder, is said by name.
said=$(wine "$run/generate.exe" -m "$run/none.gguf" -p x 2>&1) && { echo "$said"; exit 1; }
grep -q NOT_FOUND <<< "$said" || { echo "$said"; exit 1; }
said=$(wine "$run/generate.exe" -m "$run" -p x 2>&1) && { echo "$said"; exit 1; }
grep -q 'it is a folder' <<< "$said" || { echo "$said"; exit 1; }
echo "the demo's questions are answered under Wine, from paths in other scripts, of over 260 characters,"
echo "on another machine's share, and in a console of code page 437"
# What is saved on one system is read on the other, and saved again with the same bytes.
tools/same_blobs.sh "$build/blobs" tools/windows/wine.sh "$build/release/tests/api/move_blob.exe"
echo "saved sessions are the same bytes on Windows and on Linux"

# No GPU tier is made for Windows: what lies there under its name is refused by name.
tests/modules/windows_modules.sh x86_64-w64-mingw32-gcc-posix tools/windows/wine.sh tests/fixtures/tiny-qwen3-q8_0.gguf "$run"

# The server is asked what the tests of the server ask; limits of POSIX on stacks and descriptors are none there.
ask_server() {
  local clients
  [[ -e $run/server.exe ]] || { echo "skipped: the server: it needs libboost-dev, nlohmann-json3-dev and libz-mingw-w64-dev"; return; }
  clients=$(server_clients) || return 0
  SHARPI_SERVER=$PWD/tools/windows/serve.sh SHARPI_SERVER_EXE=$PWD/$run/server.exe quietly timeout 600 \
    "$clients/bin/python3" -m pytest -q -rs -p no:cacheprovider tests/server/test_http.py tests/server/windows_server.py \
    tests/server/test_hostile.py -k 'not long_paths and not all_connections_that_the_system_has'
  echo "the server answers under Wine what its tests ask of HTTP, beside 300 slow connections, too, and ends when it is asked to"
}
ask_server

# A host of .NET: its run-time for Windows comes from the Python package index.
dotnet_host() {
  local fetched=${XDG_CACHE_HOME:-$HOME/.cache}/sharpi/dotnet-windows app=$run/dotnet version said
  command -v mcs > /dev/null || { echo "skipped: a .NET host: mcs is not on this machine; on Debian: apt-get install mono-mcs"; return; }
  if [[ ! -f $fetched/dotnetcore2/bin/dotnet.exe ]]; then
    mkdir -p "$fetched"
    python3 -m pip download -q --no-deps --only-binary=:all: --platform win_amd64 --python-version 3.8 -d "$fetched" dotnetcore2 &&
      python3 -m zipfile -e "$fetched"/dotnetcore2-*.whl "$fetched" ||
      { echo "skipped: a .NET host: the package dotnetcore2 could not be fetched"; return; }
  fi
  version=$(basename "$(ls -d "$fetched"/dotnetcore2/bin/shared/Microsoft.NETCore.App/*)")
  mkdir -p "$app"
  mcs -unsafe -target:library -define:SHARPI_PACKAGE -out:"$app/LibSharpi.dll" bindings/csharp/*.cs
  mcs -r:"$app/LibSharpi.dll" -out:"$app/Ask.dll" bindings/csharp/examples/Ask.cs
  cp "$run/$dll" "$app/"
  printf '{"runtimeOptions": {"tfm": "netcoreapp%s", "framework": {"name": "Microsoft.NETCore.App", "version": "%s"}}}' \
    "${version%.*}" "$version" > "$app/Ask.runtimeconfig.json"
  said=$(DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1 wine "$fetched/dotnetcore2/bin/dotnet.exe" exec "$app/Ask.dll" \
    tests/fixtures/tiny-qwen3-q8_0.gguf examples/demo_prompt.txt 2>&1) || { echo "$said"; exit 1; }
  [[ $said == *97697* ]] || { echo "a .NET host says: $said"; exit 1; }
  echo "a host of .NET $version asks through the DLL"
}
dotnet_host

# The wheel is made, looked into, and installed in a fresh folder by a Python for Windows, which asks through it.
wheel() {
  python3 -c 'import ensurepip, venv' 2> /dev/null || { echo "skipped: the wheel: it needs python3-venv"; return; }
  rm -f "$build"/release/dist/*.whl
  tools/wheel.sh "$build/release" "$build/release/bundled/$dll" > "$build/wheel.log" 2>&1 ||
    { echo "skipped: the wheel: $(tail -n 1 "$build/wheel.log")"; return; }
  tests/dist/wheel_contents.py "$build"/release/dist/sharpi-*-win_amd64.whl "$run/wheel"
  local status=0
  tests/dist/wheel_elsewhere.sh windows-x64 "$(ls "$build"/release/dist/sharpi-*-win_amd64.whl)" "$run/wheel-installed" || status=$?
  ((status == 0 || status == kSkipped)) || exit 1
}
wheel

# Of the CUDA tier what a C++ compiler can take: kernels need NVIDIA's compiler on Windows.
cuda=$(ls -d /usr/local/cuda*/include /usr/include 2> /dev/null | while read -r folder; do
  [[ ! -f $folder/cublasLt.h ]] || { echo "$folder"; break; }; done)
if [[ -n $cuda ]]; then
  compile_host() {
    x86_64-w64-mingw32-g++-posix -std=c++20 -fsyntax-only -Wall -Wextra -Werror -D_WIN32_WINNT=0x0A00 \
      -D__USE_MINGW_ANSI_STDIO=1 -DSHARPI_BUILD -DSHARPI_CUDA_CODE='"90"' -I. -Ilib -Iinclude -I"$3" -isystem "$1" "$2"
  }
  export -f compile_host
  mapfile -t sources < <(ls cuda/*.cc cuda/kernels/*.cc cuda/kernels/*/*.cc | grep -v '_check\.cc$')
  printf '%s\n' "${sources[@]}" | xargs -P "$jobs" -I '{}' bash -c 'compile_host "$1" "$2" "$3"' compile "$cuda" '{}' "$build/release/lib/interface"
  echo "${#sources[@]} host sources of the CUDA tier compile"
else
  echo "skipped: host sources of the CUDA tier: there is no cublasLt.h"
fi

SECONDS=0 status=0
log=$build/suite.log
# Wine's own server can lose a program ("wine client error"), which says nothing of the suite: it runs once more.
run_suite() {  # seconds program
  local try got=0
  for try in 1 2; do
    got=0
    GTEST_BRIEF=1 timeout --kill-after=5 "$1" tools/windows/wine.sh "$2" > "$log" 2>&1 < /dev/null || got=$?
    if ((got == 0)) || ((try == 2)) || ! grep -q '^wine client error:' "$log"; then break; fi
    echo "$(basename "$2" .exe): $(grep -m 1 '^wine client error:' "$log"); once more"
  done
  return "$got"
}
while read -r _ program; do
  name=${program##*/} name=${name%.exe} left=$((limit - SECONDS)) got=0 start=$SECONDS
  if ((left < 5)); then
    echo "$name: not run"
    ((status)) || status=3
    continue
  fi
  run_suite "$left" "$program" || got=$?
  case $got in
    0) echo "$name: passed, $((SECONDS - start)) s" ;;
    77) echo "$name: skipped" ;;
    124 | 137)
      echo "$name: not run"
      ((status)) || status=3
      ;;
    *)
      echo "$name: FAILED ($got)"
      tail -n 40 "$log"
      status=1
      ;;
  esac
done < <(for program in "${programs[@]}"; do echo "$(cksum <<< "$turn ${program##*/}" | cut -d ' ' -f 1) $program"; done | sort -n)
exit "$status"
