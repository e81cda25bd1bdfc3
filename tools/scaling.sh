#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# How speed changes with length, for each file: scaling.sh [options] FILE...
# Prompts up to a length and tokens behind every doubling of it (bench/scaling_bench), then the plots
# of docs/plot_scaling.py. Lines of other files, and of other engines, stay in the table.
#
#   --build FOLDER   build folder with the benches (default: build)
#   --out FOLDER     where scaling.csv and the plots are (default: docs/plots)
#   --kv LIST        KV types, each a run (default: bf16,q8_0)
#   --to, --chunk, --decode, --threads N, --gpu: as scaling_bench takes them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build out=docs/plots kv=bf16,q8_0 options=() files=()
while (($#)); do
  case $1 in
    --build) build=$2; shift ;;
    --out) out=$2; shift ;;
    --kv) kv=$2; shift ;;
    --gpu) options+=("$1") ;;
    --to | --chunk | --decode | --threads) options+=("$1" "$2"); shift ;;
    -*) sed -n '3,/^set /p' "$0" | sed '$d;s/^# \{0,1\}//' >&2; exit 2 ;;
    *) files+=("$1") ;;
  esac
  shift
done
((${#files[@]})) || { echo "no file is named" >&2; exit 2; }
table=$out/scaling.csv
mkdir -p "$out"
[[ -f $table ]] || echo "engine,model,kv,kind,depth,tokens,seconds,flop,bytes" > "$table"
for file in "${files[@]}"; do
  name=$(basename "$file" .gguf)
  for type in ${kv//,/ }; do
    echo "== $name, $type rows"
    "$build/bench/scaling_bench" "$file" --name "$name" --kv "$type" "${options[@]}" > "$table.new"
    { grep -v "^libsharpi,$name,$type," "$table"; tail -n +2 "$table.new"; } > "$table.all"
    mv "$table.all" "$table"
    rm "$table.new"
  done
done
docs/plot_scaling.py "$out"
