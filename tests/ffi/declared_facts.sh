#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a binding declares, read from its text alone, in the form of header_facts.sh. No compiler of
# its language is needed; offsets follow from C's rules for a plain struct:
# declared_facts.sh rust|csharp file
set -euo pipefail
export LC_ALL=C
language=$1 file=$2

# One line each: struct NAME | field NAME TYPE [LENGTH] | constant NAME VALUE |
# function/callback NAME RESULT ARGUMENT-TYPES...; types have no blanks.
rust() {
  sed -E 's#//.*##' "$file" | tr '\n' ' ' | sed -E 's/[[:space:]]+/ /g
    s/(callbacks|constants|structs|functions)! \{/\n&/g' | awk '
    function type(t) { gsub(/^ +| +$/, "", t); sub(/^\*(const|mut) .*/, "*", t); return t }
    function signature(what, text,   name, list, result, n, i, line) {
      name = text; sub(/\(.*/, "", name); sub(/^ *fn /, "", name)
      result = text; sub(/.*-> /, "", result)
      list = text; sub(/^[^(]*\(/, "", list); sub(/\) -> .*/, "", list)
      line = what " " name " " type(result)
      n = split(list, args, ",")
      for (i = 1; i <= n; ++i) { sub(/^[^:]*: /, "", args[i]); line = line " " type(args[i]) }
      print line
    }
    /^(callbacks|functions)! / {
      what = /^callbacks/ ? "callback" : "function"
      sub(/^[a-z]+! \{/, "")
      n = split($0, parts, ";")
      for (i = 1; i < n; ++i) if (parts[i] ~ /fn /) signature(what, parts[i])
    }
    /^constants! / {
      n = split($0, parts, ";")
      for (i = 1; i <= n; ++i) if (parts[i] ~ / = /) {
        split(parts[i], pair, " = "); name = pair[1]; sub(/.* /, "", name)
        value = pair[2]; if (value ~ /^0x/) gsub(/_/, "", value)
        print "constant", name, value
      }
    }
    /^structs! / {
      n = split($0, parts, "struct ")
      for (i = 2; i <= n; ++i) {
        name = parts[i]; sub(/ .*/, "", name); print "struct", name
        body = parts[i]; sub(/^[^{]*\{/, "", body); sub(/\}.*/, "", body)
        m = split(body, fields, ",")
        for (j = 1; j <= m; ++j) if (fields[j] ~ /: /) {
          split(fields[j], pair, ": "); gsub(/ /, "", pair[1]); t = type(pair[2])
          if (t ~ /^\[c_char; /) { gsub(/[^0-9]/, "", t); print "field", pair[1], "char", t }
          else print "field", pair[1], t
        }
      }
    }'
}
csharp() {
  # An @ lets a keyword be a name.
  sed -E '/^#/d; s#//.*##; s/@//g; s/^ *\[.*\]( |$)/ /' "$file" | tr '\n' ' ' |
    sed -E 's/[[:space:]]+/ /g; s/[;{}]/&\n/g' | sed -E 's/^ +//' | awk '
    function type(t) { gsub(/^ +| +$/, "", t); return t ~ /\*/ ? "*" : t }
    function signature(what, text,   name, list, result, n, i, line) {
      list = text; sub(/^[^(]*\(/, "", list); sub(/\) *;.*/, "", list)
      sub(/\(.*/, "", text); name = text; sub(/.* /, "", name); result = text; sub(/ [^ ]*$/, "", result)
      line = what " " name " " type(result)
      n = split(list, args, ",")
      for (i = 1; i <= n; ++i) { sub(/ [^ ]* *$/, "", args[i]); line = line " " type(args[i]) }
      print line
    }
    /public unsafe struct / { name = $0; sub(/.*struct /, "", name); sub(/ .*/, "", name); print "struct", name; inside = 1; next }
    /^\}/ { inside = 0 }
    / delegate / { sub(/.* delegate /, ""); signature("callback", $0); next }
    / extern / { sub(/.* extern /, ""); signature("function", $0); next }
    /public const string / { next }
    /public const / {
      sub(/public const [a-z]+ /, ""); sub(/;.*/, ""); n = split($0, parts, ",")
      for (i = 1; i <= n; ++i) { split(parts[i], pair, " = "); gsub(/ /, "", pair[1]); print "constant", pair[1], pair[2] }
      next
    }
    inside && /public fixed byte / {
      sub(/public fixed byte /, ""); split($0, pair, /[][]/); print "field", pair[1], "char", pair[2]; next
    }
    inside && /public / {
      sub(/public /, ""); sub(/ *;.*/, ""); t = $0; sub(/ .*/, "", t); sub(/^[^ ]* /, ""); n = split($0, parts, ",")
      for (i = 1; i <= n; ++i) { gsub(/ /, "", parts[i]); print "field", parts[i], type(t) }
    }'
}

"$language" | while read -r what name rest; do
  [[ $what == constant && $rest == 0x* ]] && rest=$(printf '%u' "$rest")
  echo "$what $name $rest"
done | awk '
  BEGIN {
    split("u32 uint|i32 int|u64 ulong|u64 usize|u64 UIntPtr|f32 float|f64 double|void ()|p *|p IntPtr", pairs, "|")
    for (i in pairs) { split(pairs[i], pair, " "); kind[pair[2]] = pair[1]; kind[pair[1]] = pair[1] }
    split("u32 4|i32 4|f32 4|u64 8|f64 8|p 8", pairs, "|")
    for (i in pairs) { split(pairs[i], pair, " "); size[pair[1]] = pair[2] }
  }
  function kind_of(t) { if (t ~ /^sharpi_.*_fn$/) return "p"; return (t in kind) ? kind[t] : "?" t }
  function up(n, to) { return int((n + to - 1) / to) * to }
  function close_struct() { if (current != "") print "struct", current, up(at, widest) }
  $1 == "struct" { close_struct(); current = $2; at = 0; widest = 1; next }
  $1 == "field" {
    k = $3 == "char" ? "a" : kind_of($3); n = $3 == "char" ? $4 : size[k]
    align = k == "a" ? 1 : n
    if (align > widest) widest = align
    at = up(at, align); print "field", current "." $2, at, n, k; at += n
    next
  }
  $1 == "constant" { print; next }
  {
    line = ""
    for (i = 4; i <= NF; ++i) line = line (i > 4 ? "," : "") kind_of($i)
    print $1, $2, kind_of($3) "(" line ")"
  }
  END { close_struct() }' | sort
