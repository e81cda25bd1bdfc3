#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Checks the rules of the source text that a compiler does not know: house-rules.sh [source tree].
# Sizes of files and functions, line length, licence line, words that mark unfinished work, paths of
# one machine. Prints one line per violation and exits 1 if there is any.
set -euo pipefail
export LC_ALL=C.UTF-8
root=$(cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../..}" && pwd)
cd "$root"

max_header=250 max_source=500 max_kernel=680 max_function=60 max_columns=100
# Files of vector kernels: their functions may be as long as the loop they unroll, and kernels that
# several files instantiate live in headers. Functions of tests may be tables of cases.
# Instruction sets that kernels are written for, as the folders of their processors say.
sets=$(sed -nE 's/^set\(isa_names (.*)\)$/\1/p' lib/cpu/*/kernels.cmake 2> /dev/null | tr '\n ' '||')
isa_names="_(${sets}scalar)"
kernel_files="($isa_names|_kernels?)[_a-z0-9]*\.(h|cc)\$|\.cuh?\$"

violations=0
violation() {
  printf '%s\n' "$1"
  violations=$((violations + 1))
}

mapfile -t gpu_tiers < <(sed -nE 's/^([a-z]+) .*/\1/p' cmake/gpu_tiers.txt 2> /dev/null || true)
mapfile -t folders < <(ls -d include lib "${gpu_tiers[@]}" examples bindings bench tests 2>/dev/null)
mapfile -t code < <(find "${folders[@]}" -type f -regex '.*\.\(h\|c\|cc\|cu\|cuh\)' | sort)
# The public header is a manual, laid out by hand: no limit of size or width holds for it.
mapfile -t limited < <(printf '%s\n' "${code[@]}" | grep -v '^include/sharpi\.h$')
# Programs in other languages: licence line and width only.
mapfile -t foreign < <(find "${folders[@]}" -type f -regex '.*\.\(rs\|go\|cs\)' | sort)
((${#code[@]})) || violation "no source files under $root"

check_size() {  # file
  local lines limit=$max_source
  [[ $1 =~ \.(h|cuh)$ ]] && limit=$max_header
  [[ $1 =~ $kernel_files ]] && limit=$max_kernel
  lines=$(wc -l < "$1")
  ((lines <= limit)) || violation "$1: $lines lines, at most $limit"
}

# A function starts on a line that ends in `{` and begins in the first column, and ends at the next
# `}` in the first column; namespaces, types and tables begin in the first column too.
check_functions() {  # file
  local report
  [[ $1 =~ $kernel_files || $1 == tests/* ]] && return
  report=$(awk -v max="$max_function" -v file="$1" '
    /^[^ \t#}\/].*\{$/ || (/^    +[^ ].*\) (const |noexcept |override )*\{$/ && head) {
      if (!/^(namespace|extern|enum|union|typedef)/ && !/^(class|struct) [A-Za-z0-9_:, <>]*\{$/ &&
          !/=[ ]*\{$/ && !open) { open = NR }
    }
    /^[^ \t#}\/].*[,(]$/ { head = 1 }
    /^}/ {
      if (open && NR - open + 1 > max) print file ":" open ": function of " NR - open + 1 " lines"
      open = 0; head = 0
    }' "$1")
  [[ -z $report ]] || while read -r text; do violation "$text, at most $max_function"; done <<< "$report"
}

for file in "${limited[@]}"; do
  check_size "$file"
  check_functions "$file"
done
for file in "${code[@]}" "${foreign[@]}"; do
  first=$(head -n 1 "$file")
  [[ $first == *"SPDX-License-Identifier: MIT"* ]] || violation "$file:1: no SPDX line"
done

found_in() {  # reason, pattern, files...
  local reason=$1 pattern=$2 line
  shift 2
  while read -r line; do
    violation "$(cut -c 1-120 <<< "$line"): $reason"
  done < <(grep -nHE -- "$pattern" "$@" /dev/null || true)
}

mapfile -t text < <(find . \( -path './.git' -o -path './build*' -o -path ./.dev -o -path './out' -o -path './.cache' \
  -o -path ./tests/fixtures \) -prune -o -type f -regex \
  '.*\(\.\(h\|c\|cc\|cu\|cuh\|rs\|go\|cs\|md\|sh\|py\|cmake\|in\|json\|map\)\|CMakeLists\.txt\|Makefile\)' -print |
  sed 's|^\./||' | grep -v '^tools/ci/house-rules\.sh$' | sort)
found_in "longer than $max_columns columns" "^.{$((max_columns + 1)),}" "${limited[@]}" "${foreign[@]}"
found_in "trailing blank" '[[:blank:]]+$' "${text[@]}"
found_in "marks unfinished work" '\b(TODO|FIXME|XXX|HACK)\b' "${text[@]}"
found_in "code that is switched off" '^[[:space:]]*#[[:space:]]*if[[:space:]]+0\b' "${code[@]}"
# What these read and write is not what every compiler believes: lib/cpu/x86/tiles_amx.h has their like.
found_in "an intrinsic of AMX" '_tile_(loadconfig|storeconfig|(stream_)?loadd|stored|zero|release|dp[a-z0-9]+)\b' "${code[@]}"
# Code of a processor lies in its folder, and code of an instruction set says whose it is.
outside() {  # folder
  find lib "${gpu_tiers[@]}" -type f -regex '.*\.\(h\|cc\)' -not -path "$1/*" 2> /dev/null | sort
}
mapfile -t others < <(outside lib/cpu/x86)
found_in "intrinsics of x86 belong to lib/cpu/x86" '#[[:space:]]*include <([a-z0-9]*intrin|cpuid)\.h>' "${others[@]}"
mapfile -t others < <(outside lib/cpu/arm)
found_in "intrinsics of aarch64 belong to lib/cpu/arm" '#[[:space:]]*include <arm_[a-z0-9]*\.h>' "${others[@]}"
for file in "${code[@]}"; do
  [[ $file =~ ^lib/cpu/(x86|arm)/ && ! ${file##*/} =~ ^(isa_(x86|arm)|kernel_set_(x86|arm)|kernel_tables)\. ]] || continue
  [[ $file =~ $isa_names ]] || violation "$file: does not name its instruction set"
done
found_in "sets have no order: a KernelSet says what it has" '(\bisa[a-z_]*|Isa::k[A-Za-z0-9]+) (<|>|<=|>=) [A-Za-z]' "${limited[@]}"
found_in "path of one machine" '(^|[^[:alnum:]_.])(/work/|/tmp/|/root/|/home/|\.\./shared\b)' "${text[@]}"

if ((violations)); then
  echo "house rules: $violations violations"
  exit 1
fi
echo "house rules: ${#code[@]} source files, no violation"
