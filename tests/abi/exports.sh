#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The library exports exactly the functions that the header declares: exports.sh cc nm header library
set -euo pipefail
export LC_ALL=C
cc=$1 nm=$2 header=$3 library=$4

# A declaration is a name before an opening parenthesis; callback types have theirs before `)`.
declared=$("$cc" -E -P -x c "$header" | grep -oE '\bsharpi_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u)
exported=$("$nm" -D --defined-only "$library" | awk '$2 != "A" { print $2 " " $3 }')
names=$(sed -E 's/^. //; s/@.*//' <<< "$exported" | sort -u)
failed=0
fail() {
  echo "$1"
  failed=1
}

missing=$(comm -23 <(echo "$declared") <(echo "$names"))
extra=$(comm -13 <(echo "$declared") <(echo "$names"))
[[ -n $declared ]] || fail "no declaration found in $header"
[[ -z $missing ]] || fail "declared, not exported: ${missing//$'\n'/ }"
[[ -z $extra ]] || fail "exported, not declared: ${extra//$'\n'/ }"

# Functions only (data would be copied into the program), all under the version node of this major.
odd=$(grep -vE '^T [a-z0-9_]+@@SHARPI_1$' <<< "$exported" || true)
[[ -z $odd ]] || fail "not a function under SHARPI_1: ${odd//$'\n'/, }"

((failed)) || echo "$(wc -l <<< "$declared") functions declared and exported"
exit "$failed"
