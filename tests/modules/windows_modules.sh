#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What sharpi.dll says of a module beside it that is missing, that is none, or that is of another build or tier
# (no module is made for Windows): windows_modules.sh cc run-command model folder. The folder has sharpi.dll and
# generate.exe; tools/windows_check.sh runs this under Wine.
set -euo pipefail
export LC_ALL=C.UTF-8
cc=$1 run=$2 model=$3 folder=$4
here=$(cd "$(dirname "$0")" && pwd)
readonly module=sharpi-cuda.dll
rm -f "$folder/$module"

ask() {  # layers on the GPU
  "$run" "$folder/generate.exe" -m "$model" -t 1 -n 12 -c 64 -p "The capital of France" --exact --temp 0 --ignore-env -g "$1" 2>&1
}
refused() {  # words that stand in the refusal
  local text
  if text=$(ask 2); then
    echo "not refused: $1"
    exit 1
  fi
  grep -qF -- "$1" <<< "$text" || { echo "these words are missing: $1"; echo "$text"; exit 1; }
}
alone=$(ask 0 | sed '/^tier  *kind/,$d')
refused "no GPU (CUDA: $module is not beside the library)"
echo "no library" > "$folder/$module"
refused "$module cannot be loaded: "
for other in "is of build 0.9.0-0123456789abcdef, this library of build 1." \
             "is no module with the CUDA tier:-DSHARPI_TEST_OTHER_TIER" \
             "is no module with the CUDA tier:-DSHARPI_TEST_NO_TABLE"; do
  flag=
  [[ $other == *:* ]] && flag=${other#*:}
  rm -f "$folder/$module"
  # shellcheck disable=SC2086
  "$cc" -shared -static-libgcc $flag -o "$folder/$module" "$here/other_module.c"
  refused "$module ${other%%:*}"
  [[ $(ask 0 | sed '/^tier  *kind/,$d') == "$alone" ]] || { echo "the host alone answers otherwise"; exit 1; }
done
# A module that only the current folder has is not looked at.
mkdir -p "$folder/elsewhere"
mv "$folder/$module" "$folder/elsewhere/"
model=$(realpath "$model") run=$(realpath "$run") folder=$(realpath "$folder")
cd "$folder/elsewhere"
refused "$module is not beside the library"
echo "a module that is missing, of another build, of another tier, and none at all is refused by name"
