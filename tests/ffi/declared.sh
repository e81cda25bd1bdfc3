#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A binding declares what the header declares: every struct with its fields, offsets and sizes, every
# function and callback with its types, every constant with its value:
# declared.sh rust|csharp file header cc work-folder [what header_facts.sh says of the header]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
language=$1 file=$2 header=$3 cc=$4 work=$5 facts=${6:-}
rm -rf "$work"
mkdir -p "$work"
if [[ -z $facts ]]; then
  facts=$work/header
  "$here/header_facts.sh" "$header" "$cc" "$work" > "$facts"
fi
"$here/declared_facts.sh" "$language" "$file" > "$work/declared"
if ! diff -U 0 --label "$header" --label "$file" "$facts" "$work/declared"; then
  echo "$file does not declare what the header does"
  exit 1
fi
for what in struct field function callback constant; do
  n=$(grep -c "^$what " "$facts" || true)
  ((n > 0)) || { echo "no $what was found in $header"; exit 1; }
  printf '%s %ss, ' "$n" "$what"
done
echo "all as in the header"
