#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compiles a binding's example and its layout program against the installed library, and runs both:
# binding.sh rust|go|csharp bindings header cc prefix libdir work-folder model [C example]
# Exits 77 when the language's compiler is not on this machine.
set -euo pipefail
export LC_ALL=C.UTF-8
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
language=$1 examples=$2 header=$3 cc=$4 prefix=$5 libdir=$6 work=$7 model=$8 reference=${9:-}
mkdir -p "$work"
work=$(cd "$work" && pwd)

need() {  # what it is for, command and arguments that show that it works...
  "${@:2}" > /dev/null 2>&1 && return
  echo "skipped: $2 is not on this machine; on Debian: apt-get install $1"
  exit 77
}
export LD_LIBRARY_PATH="$prefix/$libdir"
case $language in
  rust)
    rustc=${RUSTC:-rustc}
    need rustc "$rustc" --version
    # Every edition that this compiler knows; what the newest one made runs.
    for edition in 2021 2024; do
      "$rustc" --edition "$edition" --crate-name known - -o "$work/known" <<< 'fn main() {}' 2> "$work/log" ||
        { grep -q "$edition" "$work/log" && echo "this rustc does not know edition $edition" && continue; }
      "$rustc" --edition "$edition" -D warnings -O --crate-type rlib --crate-name sharpi_sys \
        "$examples/rust/sharpi-sys/src/lib.rs" -o "$work/libsharpi_sys.rlib"
      "$rustc" --edition "$edition" -D warnings -O --extern "sharpi_sys=$work/libsharpi_sys.rlib" \
        "$examples/rust/sharpi-sys/examples/generate.rs" -o "$work/generate"
      "$rustc" --edition "$edition" -D warnings "$here/layout.rs" -o "$work/layout"
    done
    run=("$work/generate") layout=("$work/layout") kinds='.'
    ;;
  go)
    need golang-go go version
    export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig" CGO_ENABLED=1 CC=$cc
    export GOCACHE="$work/cache" GOPATH="$work/path" GOPROXY=off GOFLAGS=-buildvcs=false
    (cd "$examples/go" && go vet -tags sharpi_system ./... &&
      go build -tags sharpi_system -o "$work/generate" ./examples/generate)
    (cd "$here/go" && go build -o "$work/layout" .)
    # cgo takes functions and constants from the header itself; the structs' layout is compared.
    run=("$work/generate") layout=("$work/layout") kinds='^(struct|field) '
    ;;
  csharp)
    need mono-mcs mcs --version
    need mono-runtime mono --version
    mcs -unsafe -warnaserror -out:"$work/generate.exe" "$examples"/csharp/{Sharpi,examples/Generate}.cs
    mcs -unsafe -warnaserror -out:"$work/layout.exe" "$examples/csharp/Sharpi.cs" "$here/Layout.cs"
    run=(mono "$work/generate.exe") layout=(mono "$work/layout.exe") kinds='.'
    ;;
esac

"$here/header_facts.sh" "$header" "$cc" "$work" | grep -E "$kinds" > "$work/header.facts"
"${layout[@]}" | LC_ALL=C sort > "$work/binding.facts"
diff -U 0 "$work/header.facts" "$work/binding.facts" ||
  { echo "$language lays the ABI out otherwise than C"; exit 1; }

prompt='def f(x):' n=24
"${run[@]}" "$model" "$prompt" "$n" | tee "$work/out"
expect() {  # what, pattern of a whole line
  grep -qxE "$2" "$work/out" || { echo "$1: no line '$2'"; exit 1; }
}
version=$(sed -nE 's/^#define SHARPI_VERSION_(MAJOR|MINOR) +//p' "$header" | paste -sd .)
expect "version" "library: $version"
expect "plan" 'plan: context 256, KV bf16/bf16 of 1048576 bytes, [1-9][0-9]* rows'
expect "progress" 'prompt: [1-9][0-9]* tokens, progress told [1-9][0-9]* times'
expect "text" 'text: .*f\(x\).*'
expect "session" 'session: [1-9][0-9]* tokens, KV bf16/bf16'
if [[ -n $reference ]]; then
  text=$("$reference" -m "$model" -p "$prompt" -n "$n" -c 256 -g 0 -t 2 --kv-type bf16 --temp 0 \
    --ignore-env --quiet 2> /dev/null)
  [[ $(sed -n 's/^text://p' "$work/out") == "$text" ]] || { echo "C writes: $text"; exit 1; }
fi

status=0
"${run[@]}" "$work/no-such-file.gguf" "$prompt" > "$work/out" 2> "$work/err" || status=$?
[[ $status == 1 ]] && grep -q 'SHARPI_E_NOT_FOUND: .*no-such-file\.gguf' "$work/err" ||
  { echo "a missing file gave status $status:"; cat "$work/err"; exit 1; }
echo "$language: layout, generation and error text as from C"
