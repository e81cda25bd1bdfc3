#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The checks of the source text find what they are for, in a small tree made wrong on purpose:
# source_checks_test.sh folder-of-the-checks
set -euo pipefail
checks=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fresh_tree() {
  rm -rf "$work/tree"
  mkdir -p "$work/tree"/{lib/{os/linux,base,gguf,cpu/{x86,arm},api},include,examples}
  cd "$work/tree"
  printf '// SPDX-License-Identifier: MIT\n#pragma once\n#include "os/pages.h"\n' > lib/base/memory.h
  printf '// SPDX-License-Identifier: MIT\n#include <sys/mman.h>\n' > lib/os/linux/pages.cc
  printf '// SPDX-License-Identifier: MIT\n#include "base/memory.h"\n' > lib/gguf/file.cc
  printf '// SPDX-License-Identifier: MIT\n#include "cpu/tier.h"\n' > lib/api/backends.cc
  printf '// SPDX-License-Identifier: MIT\n#include "gguf/file.h"\n' > lib/cpu/tier.cc
  printf 'set(isa_names avx2 amx)\n' > lib/cpu/x86/kernels.cmake
  printf 'set(isa_names neon)\n' > lib/cpu/arm/kernels.cmake
  printf '/* SPDX-License-Identifier: MIT */\n#include <stdint.h>\n' > include/sharpi.h
  printf '/* SPDX-License-Identifier: MIT */\n#include "sharpi.h"\n' > examples/plan.c
  printf 'sharpi_layer(gguf DIR "x"\n  SEES base\n  SOURCES file.cc)\n' > lib/gguf/CMakeLists.txt
}

expect_refusal() {  # check, text, file, line to append to the file
  local check=$1 text=$2 file=$3 line=$4 output
  fresh_tree
  printf '%b\n' "$line" >> "$file"
  if output=$("$checks/$check" . 2>&1); then
    echo "$check accepted in $file: $line"
  elif ! grep -qF -- "$text" <<< "$output"; then
    printf '%s refused without "%s":\n%s\n' "$check" "$text" "$output"
  else
    return 0
  fi
  failures=$((failures + 1))
}

fresh_tree
"$checks/layers.sh" .
"$checks/house-rules.sh" .

up='..'
expect_refusal layers.sh "layer 'gguf' may not include \"cpu/tier.h\"" lib/gguf/file.cc '#include "cpu/tier.h"'
expect_refusal layers.sh "layer 'api' may not include \"cpu/tier.h\"" lib/api/other.cc '#include "cpu/tier.h"'
expect_refusal layers.sh "layer 'cpu' may not include \"engine/model.h\"" lib/cpu/tier.cc ' # include "engine/model.h"'
expect_refusal layers.sh "climbs out of its folder" lib/gguf/file.cc "#include \"$up/base/memory.h\""
expect_refusal layers.sh "climbs out of its folder" examples/plan.c "#include \"$up/lib/base/memory.h\""
expect_refusal layers.sh "lacks the name of its layer" lib/gguf/file.cc '#include "file.h"'
expect_refusal layers.sh "may not include sharpi.h" lib/gguf/file.cc '#include "sharpi.h"'
expect_refusal layers.sh "may not include sharpi.h" lib/gguf/file.cc '#include <sharpi.h>'
expect_refusal layers.sh "belongs to cuda/" lib/cpu/tier.cc '#include <cuda_runtime.h>'
expect_refusal layers.sh "belongs to lib/os" lib/gguf/file.cc '#include <sys/mman.h>'
expect_refusal layers.sh "belongs to lib/os" lib/base/memory.h '#include <unistd.h>'
expect_refusal layers.sh "belongs to lib/os" lib/os/pages.h '#include <sys/mman.h>'
expect_refusal layers.sh "is of one system" lib/base/memory.h '#include "os/linux/pages.h"'
expect_refusal layers.sh "layer 'os' may not include \"base/memory.h\"" lib/os/linux/pages.cc '#include "base/memory.h"'
expect_refusal layers.sh "static constructor" lib/gguf/file.cc '#include <iostream>'
expect_refusal layers.sh "may not see 'cpu'" lib/gguf/CMakeLists.txt 'sharpi_layer(gguf2 SEES cpu SOURCES x.cc)'
expect_refusal layers.sh "stdint.h and stddef.h only" include/sharpi.h '#include <stdbool.h>'
expect_refusal layers.sh "examples use sharpi.h" examples/plan.c '#include "base/memory.h"'

long_body=$(printf 'x();\\n%.0s' {1..70})
expect_refusal house-rules.sh "function of 72 lines" lib/gguf/file.cc "void f() {\\n$long_body}"
expect_refusal house-rules.sh "at most 250" lib/base/memory.h "$(printf '// x\\n%.0s' {1..260})"
expect_refusal house-rules.sh "at most 500" lib/gguf/file.cc "$(printf '// x\\n%.0s' {1..510})"
expect_refusal house-rules.sh "longer than 100 columns" lib/gguf/file.cc "// $(printf 'x%.0s' {1..100})"
expect_refusal house-rules.sh "no SPDX line" lib/gguf/new.cc 'int x;'
expect_refusal house-rules.sh "trailing blank" lib/gguf/file.cc 'int x; '
expect_refusal house-rules.sh "unfinished work" lib/gguf/file.cc "// TO""DO: finish"
expect_refusal house-rules.sh "switched off" lib/gguf/file.cc '#if 0'
expect_refusal house-rules.sh "belong to lib/cpu/x86" lib/cpu/tier.cc '#include <immintrin.h>'
expect_refusal house-rules.sh "belong to lib/cpu/arm" lib/cpu/x86/vec_avx2.h '#include <arm_neon.h>'
expect_refusal house-rules.sh "does not name its instruction set" lib/cpu/arm/attention.cc '// SPDX-License-Identifier: MIT'
expect_refusal house-rules.sh "does not name its instruction set" lib/cpu/x86/attention_q8.cc '// SPDX-License-Identifier: MIT'
expect_refusal house-rules.sh "sets have no order" lib/cpu/tier.cc 'bool f(Isa isa) { return isa >= Isa::kAvx512; }'
expect_refusal house-rules.sh "sets have no order" lib/cpu/tier.cc 'bool f() { return config.isa < Isa::kAvx2; }'
expect_refusal house-rules.sh "path of one machine" lib/gguf/file.cc '// see /ho''me/me/x'

((failures == 0)) || exit 1
echo "every check caught its violation"
