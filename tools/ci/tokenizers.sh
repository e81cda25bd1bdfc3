#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The tokenizers against HF `tokenizers`, over generated strings and every vocabulary that is here.
# The packages are fetched once, into .cache, which git ignores; without network the step is skipped
# and says so.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

python=.cache/python/bin/python3
if ! "$python" -c 'import tokenizers, gguf' 2> /dev/null; then
  if ! { python3 -m venv .cache/python && .cache/python/bin/pip -q install 'tokenizers>=0.20' 'gguf>=0.17'; }; then
    echo "skipped: tokenizers and gguf could not be fetched"
    exit "$kSkipped"
  fi
fi
configure release -DSHARPI_TESTS=ON
build build sharpi
models=${SHARPI_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/sharpi/models}
shopt -s nullglob
"$python" tools/compare_tokenizers.py build/lib/libsharpi.so --strings 2000 \
  --also qwen35,olmo,llama-bpe,smollm tests/fixtures/tiny-qwen3-q8_0.gguf
"$python" tools/compare_tokenizers.py build/lib/libsharpi.so --strings 2000 \
  tests/fixtures/tiny-gemma4kv-q8_0.gguf tests/fixtures/tiny-qwen35-q8_0.gguf "$models"/*.gguf
