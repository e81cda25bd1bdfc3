#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# declared.sh fails when the header changes and a binding does not, and the other way round:
# declared_test.sh bindings header cc work-folder
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
examples=$1 header=$2 cc=$3 work=$4
rm -rf "$work"
mkdir -p "$work/include" "$work/facts"
rust=$examples/rust/sharpi-sys/src/lib.rs csharp=$examples/csharp/Sharpi.cs
failed=0

expect_failure() {  # name, language, file, header, its facts
  if "$here/declared.sh" "$2" "$3" "$4" "$cc" "$work/facts" "$5" > "$work/log" 2>&1; then
    echo "$1: declared.sh does not notice it ($2)"
    failed=1
  elif ! grep -q 'does not declare what the header does' "$work/log"; then
    echo "$1: declared.sh fails for another reason ($2)"
    cat "$work/log"
    failed=1
  fi
}
header_change() {  # name, sed script
  sed -E "$2" "$header" > "$work/include/sharpi.h"
  ! cmp -s "$header" "$work/include/sharpi.h" || { echo "$1: changes nothing"; exit 1; }
  "$here/header_facts.sh" "$work/include/sharpi.h" "$cc" "$work/include" > "$work/changed"
  expect_failure "$1" rust "$rust" "$work/include/sharpi.h" "$work/changed"
  expect_failure "$1" csharp "$csharp" "$work/include/sharpi.h" "$work/changed"
}
header_change "a field at the end" 's/^\} sharpi_session_params;/  uint32_t extra;\n&/'
header_change "a field in the middle" 's/^  uint32_t rewind; /  uint32_t extra;\n&/'
header_change "a wider field" 's/^  uint32_t sinks; /  uint64_t sinks; /'
header_change "another type of the same size" 's/^  float top_p; /  uint32_t top_p; /'
header_change "a longer text" 's/^  char paths\[256\]/  char paths[264]/'
header_change "fields that change places" 's/k_dtype, v_dtype; /v_dtype, k_dtype; /'
header_change "a new struct" 's/^typedef struct sharpi_text_stream \{/typedef struct sharpi_x {\n  uint32_t y;\n} sharpi_x;\n&/'
header_change "a new function" 's/^SHARPI_API uint32_t sharpi_version.*/&\nSHARPI_API void sharpi_extra(void) SHARPI_NOEXCEPT;/'
header_change "an argument more" 's/(sharpi_session_decode\(sharpi_session \*session, int32_t token,)/\1 uint32_t extra,/'
header_change "an argument of another type" 's/(sharpi_session_cancel\()sharpi_session \*session/\1uint32_t session/'
header_change "another result" 's/^SHARPI_API uint32_t sharpi_version/SHARPI_API uint64_t sharpi_version/'
header_change "another callback" 's/(\*sharpi_progress_fn\)\(void \*user_data, uint32_t phase, uint64_t)/\1 extra, uint64_t/'
header_change "another value" 's/^(#define SHARPI_ROW_KV_CHUNK +)15u/\116u/'

"$here/header_facts.sh" "$header" "$cc" "$work/include" > "$work/unchanged"
binding_change() {  # name, language, file, sed script
  sed -E "$4" "$3" > "$work/binding"
  ! cmp -s "$3" "$work/binding" || { echo "$1: changes nothing"; exit 1; }
  expect_failure "$1" "$2" "$work/binding" "$header" "$work/unchanged"
}
binding_change "a field left out" rust "$rust" 's/ rewind: u32,//'
binding_change "a field left out" csharp "$csharp" 's/ rewind,//'
binding_change "a wrong value" rust "$rust" 's/SHARPI_KV_BF16 = 2/SHARPI_KV_BF16 = 3/'
binding_change "a wrong value" csharp "$csharp" 's/SHARPI_KV_BF16 = 2/SHARPI_KV_BF16 = 3/'
binding_change "a function left out" rust "$rust" '/fn sharpi_version/d'
binding_change "a function left out" csharp "$csharp" '/ sharpi_version\(/d'
((failed)) || echo "every change is noticed"
exit "$failed"
