#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The tokenizers against HF `tokenizers`, over generated strings and every vocabulary that is here.
# The packages are fetched once, into the user's cache; without network the step is skipped and says
# so.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

venv=$(fetched_python tokenizers-venv tokenizers,gguf 'tokenizers>=0.20' 'gguf>=0.17') || exit "$kSkipped"
python=$venv/bin/python3
configure_tested
build build sharpi
models=${SHARPI_MODELS:-$kFetched/models}
shopt -s nullglob
"$python" tools/compare_tokenizers.py build/lib/libsharpi.so --strings 2000 \
  --also qwen35,olmo,llama-bpe,smollm,gpt-2,tekken,gpt-4o,deepseek-v3,dbrx,default,falcon,deepseek-llm,deepseek-coder,seed-coder \
  tests/fixtures/tiny-qwen3-q8_0.gguf
"$python" tools/compare_tokenizers.py build/lib/libsharpi.so --strings 2000 \
  tests/fixtures/tiny-gemma4kv-q8_0.gguf tests/fixtures/tiny-qwen35-q8_0.gguf "$models"/*.gguf
