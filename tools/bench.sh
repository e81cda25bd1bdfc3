#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Decode and prefill of models with the real geometry of published ones, cut to a few layers and with
# random weights: bench.sh [build folder]. The files (3.9 GB) are made once, in the build folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build}
models=$build/bench/models
mkdir -p "$models"
# The system's Python has the system's NumPy; another one may come first on the path.
python=python3
"$python" -c 'import numpy' 2> /dev/null || python=/usr/bin/python3

run() {  # model, quantisation, layers
  local file=$models/$1-$2-$3.gguf
  if [[ ! -f $file ]]; then
    "$python" tools/synth_gguf.py "$1" "$2" "$file.part" --layers "$3"
    mv "$file.part" "$file"
  fi
  echo
  echo "== $1 $2, $3 layers, ${SHARPI_BENCH_THREADS:-$(nproc)} threads"
  SHARPI_BENCH_MODEL=$file SHARPI_BENCH_THREADS=${SHARPI_BENCH_THREADS:-$(nproc)} \
    "$build/bench/model_bench"
}
run qwen3-8b q4_k_m 8
run qwen3-8b q8_0 4
