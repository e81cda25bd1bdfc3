#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What foreign-function interfaces need of the header: header_rules.sh header
set -euo pipefail
export LC_ALL=C
header=$1
code=$(sed -E ':all; N; $!ball; s#/\*([^*]|\*+[^*/])*\*+/##g' "$header")  # Without comments.
failed=0
fail() {
  echo "$1"
  failed=1
}

includes=$(grep -oE '#[[:space:]]*include.*' "$header" | sort -u)
[[ $includes == $'#include <stddef.h>\n#include <stdint.h>' ]] || fail "includes: $includes"

# Types and constructs whose layout or calling convention differs between languages or machines.
forbidden='\b(bool|_Bool|enum|union|long|short|unsigned|wchar_t|time_t|FILE|inline|va_list|int)\b'
hits=$(grep -vE '^#' <<< "$code" | grep -nE "$forbidden|\.\.\.|:[[:space:]]*[0-9]+;|\[\]" || true)
[[ -z $hits ]] || fail "not for foreign functions: $hits"

# Every function is exported, noexcept for C++, and documents threads and first version.
flat=$(grep -vE '^#' <<< "$code" | tr '\n' ' ')
declarations=$(grep -oE 'SHARPI_API [^;]*;' <<< "$flat" || true)
n=$(wc -l <<< "$declarations")
all=$(grep -oE '\bsharpi_[a-z0-9_]+ *\(' <<< "$flat" | wc -l)
((n == all)) || fail "$all functions, $n with SHARPI_API"
without=$(grep -vE 'SHARPI_NOEXCEPT;$' <<< "$declarations" || true)
[[ -z $without ]] || fail "without SHARPI_NOEXCEPT: $without"
for tag in @thread @since; do
  n_tag=$({ grep -oE -- "$tag\b" "$header" || true; } | wc -l)
  ((n_tag == n)) || fail "$n functions, $n_tag with $tag"
done
n_results=$(grep -cvE '^SHARPI_API void ' <<< "$declarations" || true)
n_return=$(awk '/@return/ { n += gsub(/@return/, "") } END { print n + 0 }' "$header")
n_callbacks=$(grep -cE 'typedef int32_t \(\*' "$header" || true)
((n_return >= n_results && n_return <= n_results + n_callbacks)) ||
  fail "$n_results functions with a result, $n_return with @return"

((failed)) || echo "$n functions, every rule holds"
exit "$failed"
