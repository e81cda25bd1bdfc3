#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The shared library and the modules beside it:
# modules.sh cc generate library posed-module major model folder
set -euo pipefail
export LC_ALL=C
cc=$1 generate=$2 library=$3 posed=$4 major=$5 model=$6 folder=$7
here=$(cd "$(dirname "$0")" && pwd)
readonly module=libsharpi-cuda.so
rm -rf "$folder"
mkdir -p "$folder/real"
cp "$library" "$folder/real/libsharpi.so.$major"
export LD_LIBRARY_PATH=$folder/real

# One question of some tokens with n layers on the GPU; its own lines (sharpi: ...) come, too.
ask() {
  "$generate" -m "$model" -t 1 -n 12 -c 64 -p "The capital of France" --exact --temp 0 --ignore-env -g "$1" 2>&1
}
# Every run of it is refused, with these words among others.
refused() {
  local text
  if text=$(ask 2); then
    echo "not refused: $1"
    exit 1
  fi
  if ! grep -qF -- "$1" <<< "$text"; then
    echo "these words are missing: $1"
    echo "$text"
    exit 1
  fi
}
answers() {  # the answer alone; as many layers as were asked for are on the GPU
  local text
  text=$(ask "$1") || { echo "$text"; exit 1; }
  grep -q "gpu_layers=$1 " <<< "$text" || { echo "no $1 layers on the GPU: $text"; exit 1; }
  sed '/^tier  *kind/,$d' <<< "$text"
}

# None is beside it: the host alone.
alone=$(answers 0)
refused "no GPU (CUDA: $module is not beside the library)"

# A module that poses as one, also where the library is a link to a file in another folder, and with a
# folder in which nobody else would look.
cp "$posed" "$folder/real/$module"
for n in 1 2; do
  [[ $(answers "$n") == "$alone" ]] || { echo "the answer of $n layers there is another"; exit 1; }
done
mkdir "$folder/links"
ln -s "../real/libsharpi.so.$major" "$folder/links/"
LD_LIBRARY_PATH=$folder/links answers 2 > /dev/null
(cd "$folder" && LD_LIBRARY_PATH=real answers 2 > /dev/null)

# What is no module, or one of another build or tier.
echo "no library" > "$folder/real/$module"
refused "$module cannot be loaded: "
mkdir "$folder/other"
for other in "is of build 0.9.0-0123456789abcdef, this library of build 1." \
             "is no module with the CUDA tier:-DSHARPI_TEST_OTHER_TIER" \
             "is no module with the CUDA tier:-DSHARPI_TEST_NO_TABLE"; do
  flag=
  [[ $other == *:* ]] && flag=${other#*:}
  rm "$folder/real/$module"  # a file that is mapped is not written into
  # shellcheck disable=SC2086
  "$cc" -shared -fPIC $flag -o "$folder/real/$module" "$here/other_module.c"
  refused "$module ${other%%:*}"
  [[ $(answers 0) == "$alone" ]] || { echo "the host alone answers otherwise"; exit 1; }
done
echo "a module that is there, missing, of another build, of another tier, and none at all"
