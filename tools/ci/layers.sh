#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Checks the include direction between the layers: layers.sh [source tree]. Prints one line per
# violation and exits 1 if there is any.
set -euo pipefail
root=$(cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../..}" && pwd)
cd "$root"

# What each layer may include besides its own headers, lowest layer first.
declare -A allowed=(
  [os]=""
  [base]="os"
  [gguf]="base os"
  [text]="gguf base os"
  [model]="gguf base os"
  [kv]="model gguf base os"
  [plan]="kv model gguf base os"
  [tier]="plan kv model gguf base os"
  [device]="tier plan kv model gguf base os"
  [cpu]="tier plan kv model gguf base os"
  [group]="base os"
  [engine]="group tier plan kv model text gguf base os"
  [api]="engine group tier plan kv model text gguf base os"
)
# The GPU tiers, each a folder beside lib.
mapfile -t gpu_tiers < <(sed -nE 's/^([a-z]+) .*/\1/p' cmake/gpu_tiers.txt 2> /dev/null || true)
for tier in "${gpu_tiers[@]}"; do
  allowed[$tier]="device ${allowed[device]}"
done
# Layers that speak the public vocabulary (parameter structs, status numbers).
public_layers="kv plan engine api"
# The places that name the backends, so that engine can ask one of them for a factory.
backend_files='^lib/api/backends\.(h|cc)$'
cuda_headers='^(cuda|cublas|cusparse|cufft|curand|nccl|nv|cooperative_groups|cub/|thrust/|mma\.h)'
# Calls to the operating system live in the folder of the system that they are made of. Headers of
# lib/os are for every system, and include none of these either.
system_files='^lib/os/(linux|windows|darwin|posix)/'
system_headers='^(sys/|linux/|mach/|windows\.h|unistd\.h|fcntl\.h|pthread\.h|sched\.h|signal\.h|csignal|dlfcn\.h|poll\.h|locale\.h|xlocale\.h|netinet/|arpa/)'

violations=0
violation() {
  printf '%s\n' "$1"
  violations=$((violations + 1))
}

in_list() { [[ " $2 " == *" $1 "* ]]; }

# Prints `file:line:delimiter:name` for every #include of the given files.
includes_of() {
  { grep -nHE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' "$@" || true; } |
    sed -E 's/^([^:]*):([0-9]+):[^"<]*(["<])([^">]*)[">].*/\1:\2:\3:\4/'
}

check_quoted() {  # layer, file, line, name
  local layer=$1 file=$2 line=$3 name=$4 target=${4%%/*}
  if [[ $name =~ ^os/(linux|windows|darwin|posix)/ && ! $file =~ $system_files ]]; then
    violation "$file:$line: \"$name\" is of one system"
  elif [[ $name == */* ]]; then
    [[ $target == "$layer" ]] && return
    in_list "$target" "${allowed[$layer]}" && return
    [[ $target == cpu && $file =~ $backend_files ]] && return
    violation "$file:$line: layer '$layer' may not include \"$name\""
  elif [[ $name != sharpi.h ]]; then
    violation "$file:$line: \"$name\" lacks the name of its layer"
  elif ! in_list "$layer" "$public_layers"; then
    violation "$file:$line: layer '$layer' may not include sharpi.h"
  fi
}

check_angled() {  # layer, file, line, name
  local layer=$1 file=$2 line=$3 name=$4
  if [[ $name == sharpi.h ]]; then
    in_list "$layer" "$public_layers" ||
      violation "$file:$line: layer '$layer' may not include sharpi.h"
  elif [[ $name =~ $cuda_headers && $layer != cuda ]]; then
    violation "$file:$line: <$name> belongs to cuda/"
  elif [[ $name =~ $system_headers && ! $file =~ $system_files ]]; then
    violation "$file:$line: <$name> belongs to lib/os"
  elif [[ $name == iostream ]]; then
    violation "$file:$line: <iostream> brings a static constructor into the host"
  fi
}

check_layer() {  # layer, folder
  local layer=$1 folder=$2 files file line delimiter name seen
  mapfile -t files < <(find "$folder" -type f -regex '.*\.\(h\|cc\|cuh\|cu\)' | sort)
  ((${#files[@]})) || return 0
  while IFS=: read -r file line delimiter name; do
    if [[ $name == ../* || $name == */../* ]]; then
      violation "$file:$line: \"$name\" climbs out of its folder"
    elif [[ $delimiter == '"' ]]; then
      check_quoted "$layer" "$file" "$line" "$name"
    else
      check_angled "$layer" "$file" "$line" "$name"
    fi
  done < <(includes_of "${files[@]}")

  # The build enforces the same list only as long as SEES says no more.
  [[ -f $folder/CMakeLists.txt ]] || return 0
  for seen in $(sed -nE '/\bSEES\b/,/\b(SOURCES|LIBS)\b|\)/p' "$folder/CMakeLists.txt" |
                sed -E 's/.*\bSEES\b//; s/\b(SOURCES|LIBS)\b.*//; s/\).*//'); do
    in_list "$seen" "${allowed[$layer]}" && continue
    [[ $layer == api && $seen == cpu ]] && continue
    violation "$folder/CMakeLists.txt: layer '$layer' may not see '$seen'"
  done
}

n_layers=0
for folder in lib/*/ "${gpu_tiers[@]/%//}"; do
  folder=${folder%/}
  layer=${folder#lib/}
  [[ -d $folder ]] || continue
  if [[ -z ${allowed[$layer]+set} ]]; then
    violation "$folder: not a layer"
    continue
  fi
  check_layer "$layer" "$folder"
  n_layers=$((n_layers + 1))
done
((n_layers > 0)) || violation "no layers under $root"

# Outside the layers: no climbing includes anywhere, and hosts' code sees the public header only.
mapfile -t outside < <(find include examples bench tests -type f -regex '.*\.\(h\|c\|cc\|cu\|cuh\)' \
                       2>/dev/null | sort)
if ((${#outside[@]})); then
  while IFS=: read -r file line delimiter name; do
    [[ $name == ../* || $name == */../* ]] &&
      violation "$file:$line: \"$name\" climbs out of its folder"
    [[ $file == examples/* && $delimiter == '"' && $name == */* ]] &&
      violation "$file:$line: examples use sharpi.h and the standard library only"
    [[ $file == include/* && ! "$name" =~ ^(stdint|stddef)\.h$ ]] &&
      violation "$file:$line: the public header includes stdint.h and stddef.h only"
  done < <(includes_of "${outside[@]}")
fi

if ((violations)); then
  echo "layers: $violations violations"
  exit 1
fi
echo "layers: $n_layers layers, no violation"
