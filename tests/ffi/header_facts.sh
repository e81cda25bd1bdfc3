#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a foreign-function interface must know of the header, as the C compiler lays it out:
# header_facts.sh header cc work-folder [command that runs programs]. One line each,
# sorted:
#   struct NAME SIZE | field STRUCT.NAME OFFSET SIZE KIND | function NAME KIND(KIND,...)
#   callback NAME KIND(KIND,...) | constant NAME VALUE
# A kind is u32, i32, u64 (also size_t), f32, f64, p (any pointer), a (array of char) or void.
set -euo pipefail
export LC_ALL=C
header=$1 cc=$2 work=$3
mkdir -p "$work"

# Statements of the header, one a line, without comments and preprocessor lines.
statements() {
  sed -E ':all; N; $!ball; s#/\*([^*]|\*+[^*/])*\*+/##g' "$header" |
    awk '/^[[:space:]]*#/ { more = /\\$/; next } more { more = /\\$/; next } { print }' |
    tr '\n' ' ' | sed -E 's/extern "C" \{//; s/[[:space:]]+/ /g' |
    sed -E 's/;/;\n/g' | sed -E 's/^ +//'
}

{
  cat << 'HEAD'
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "sharpi.h"
#define KIND(T) _Generic((T){0}, uint32_t: "u32", int32_t: "i32", uint64_t: "u64", \
                         float: "f32", double: "f64", default: "p")
#define FIELD(S, F, KIND_OF) printf("field %s.%s %zu %zu %s\n", #S, #F, offsetof(S, F), \
                                    sizeof(((S *)0)->F), KIND_OF)
#define CONSTANT(C) ((C) < 0 ? printf("constant %s %lld\n", #C, (long long)(C)) \
                             : printf("constant %s %llu\n", #C, (unsigned long long)(C)))
int main(void) {
HEAD
  sed -nE 's/^#define (SHARPI_[A-Z0-9_]+)[[:space:]]+[-(0-9].*/  CONSTANT(\1);/p' "$header" |
    grep -v '(SHARPI_VERSION'
  statements | awk '
    function kinds_of(list,   n, i, arg, text) {
      if (list ~ /^ *(void)? *$/) return ""
      n = split(list, args, ",")
      for (i = 1; i <= n; ++i) {
        arg = args[i]
        sub(/[A-Za-z0-9_]+ *$/, "", arg)
        printf "  printf(\"%%s%%s\", \"%s\", KIND(%s));\n", (i > 1 ? "," : ""), arg
      }
    }
    function signature(what, name, result, list) {
      printf "  printf(\"%s %s \");\n", what, name
      if (result ~ /^ *void *$/) print "  printf(\"void\");"
      else printf "  printf(\"%%s\", KIND(%s));\n", result
      print "  printf(\"(\");"
      kinds_of(list)
      print "  puts(\")\");"
    }
    /SHARPI_API/ {
      sub(/.*SHARPI_API /, ""); sub(/ *SHARPI_NOEXCEPT.*/, "")
      left = index($0, "("); head = substr($0, 1, left - 1)
      match(head, /sharpi_[a-z0-9_]+ *$/)
      name = substr(head, RSTART); sub(/ +$/, "", name)
      list = substr($0, left + 1); sub(/\) *$/, "", list)
      signature("function", name, substr(head, 1, RSTART - 1), list)
      next
    }
    /^typedef [^{]*\(\*/ {
      sub(/^typedef /, "")
      result = $0; sub(/ *\(\*.*/, "", result)
      # A result that is a pointer keeps its star: "void *(*name)(...)".
      if ($0 ~ /\*\(\*/) { result = $0; sub(/\(\*.*/, "", result) }
      name = $0; sub(/.*\(\*/, "", name); sub(/\).*/, "", name)
      list = $0; sub(/^[^(]*\([^)]*\)\(/, "", list); sub(/\) *;.*/, "", list)
      signature("callback", name, result, list)
      next
    }
    /^typedef struct [a-z_0-9]+ \{/ {
      current = $3
      printf "  printf(\"struct %%s %%zu\\n\", \"%s\", sizeof(%s));\n", current, current
      sub(/^[^{]*\{ */, "")
    }
    /^\}/ { current = ""; next }
    current != "" {
      sub(/ *; *$/, "")
      n = split($0, parts, ",")
      type = parts[1]
      sub(/[A-Za-z0-9_]+(\[[^]]*\])? *$/, "", type)
      for (i = 1; i <= n; ++i) {
        name = parts[i]
        array = sub(/\[[^]]*\] *$/, "", name)
        match(name, /[A-Za-z0-9_]+ *$/)
        name = substr(name, RSTART); sub(/ +$/, "", name)
        printf "  FIELD(%s, %s, %s);\n", current, name, (array ? "\"a\"" : "KIND(" type ")")
      }
    }'
  printf '  return 0;\n}\n'
} > "$work/facts.c"
"$cc" -std=c11 -Wall -Werror -Wno-type-limits -I"$(dirname "$header")" "$work/facts.c" -o "$work/facts"
"${@:4}" "$work/facts" | sort
