#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Sessions that are saved on this machine and on another one are read by the other, which saves them again
# with the same bytes: same_blobs.sh folder command...
# The command runs the program move_blob of the other machine (under qemu, under Wine); this machine's is
# built in `build`. Blobs lie in the folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$1
shift
mkdir -p "$folder"
here=$folder/here there=$folder/there native=build/tests/api/move_blob
{ [[ -f build/CMakeCache.txt ]] || cmake --preset release -DSHARPI_TESTS=ON; } > "$folder/native.log" 2>&1 &&
  cmake --build build -j "$(nproc)" --target move_blob >> "$folder/native.log" 2>&1 ||
  { tail -n 20 "$folder/native.log"; exit 1; }
for model in tests/fixtures/tiny-qwen3-q8_0.gguf tests/fixtures/tiny-qwen35-q8_0.gguf; do
  for codec in f32 bf16 q8_0 q4; do
    export SHARPI_KV_DTYPE=$codec
    "$native" save "$model" "$here" && "$@" pass "$model" "$here" "$here.copy" && cmp "$here" "$here.copy" &&
      "$@" save "$model" "$there" && "$native" pass "$model" "$there" "$there.copy" && cmp "$there" "$there.copy" ||
      { echo "blobs differ: $model, rows in $codec"; exit 1; }
  done
done
