#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The safe layers' embedders against the installed library: the example "rank" of a language over an encoder
# and a reranker, whose vectors and scores another implementation has computed:
# ranks.sh rust|go|csharp bindings cc prefix libdir work-folder fixtures
# Exits 77 when the language's compiler is not on this machine.
set -euo pipefail
export LC_ALL=C.UTF-8
language=$1 bindings=$2 cc=$3 prefix=$4 libdir=$5 work=$6 fixtures=$7
mkdir -p "$work"
need() {  # package, command and arguments that show that it works...
  "${@:2}" > /dev/null 2>&1 && return
  echo "skipped: $2 is not on this machine; on Debian: apt-get install $1"
  exit 77
}
need python3 python3 --version
export LD_LIBRARY_PATH="$prefix/$libdir" SHARPI_LIBRARY="$prefix/$libdir/libsharpi.so.1"
case $language in
  rust)
    need cargo cargo --version
    cp -r "$bindings/rust/." "$work/"  # cargo writes beside the sources
    (cd "$work" && RUSTFLAGS="-D warnings" cargo build --quiet --offline -p sharpi --example rank)
    run=("$work/target/debug/examples/rank")
    ;;
  go)
    need golang-go go version
    export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig" CGO_ENABLED=1 CC=$cc
    export GOCACHE="$work/cache" GOPATH="$work/path" GOPROXY=off GOFLAGS=-buildvcs=false
    (cd "$bindings/go" && go vet -tags sharpi_system . ./cmd/rank &&
      go build -tags sharpi_system -o "$work/rank" ./cmd/rank)
    run=("$work/rank")
    ;;
  csharp)
    need mono-mcs mcs --version
    need mono-runtime mono --version
    mcs -unsafe -warnaserror -out:"$work/rank.exe" "$bindings"/csharp/*.cs "$bindings/csharp/examples/Rank.cs"
    run=(mono "$work/rank.exe")
    ;;
esac

python3 - "$fixtures" "${run[@]}" <<'PYTHON'
import json
import math
import subprocess
import sys

fixtures, run = sys.argv[1], sys.argv[2:]


def golden(name):
    with open(f"{fixtures}/{name}.golden.json", encoding="utf-8") as f:
        return json.load(f)


def scores(name, query, documents):
    out = subprocess.run(run + [f"{fixtures}/{name}.gguf", query] + documents, stdout=subprocess.PIPE, check=True,
                         text=True).stdout.splitlines()
    assert [line.split(" ", 1)[1] for line in out] == documents, out
    return [float(line.split(" ", 1)[0]) for line in out]


def same(what, got, expected):
    assert len(got) == len(expected) and len(got) > 1
    for i, (a, b) in enumerate(zip(got, expected)):
        assert abs(a - b) < 4e-3, f"{what}, document {i}: {a}, and {b} was expected"


cases = golden("rand-bert")["cases"]
cases = [c for c in cases if "text" in c and "\n" not in c["text"]]
units = [[x / math.hypot(*c["vector"]) for x in c["vector"]] for c in cases]
same("cosine", scores("rand-bert", cases[0]["text"], [c["text"] for c in cases[1:]]),
     [sum(a * b for a, b in zip(units[0], u)) for u in units[1:]])
pairs = [p for p in golden("rand-bert-rank")["pairs"] if "\n" not in p["text"]]
query = pairs[0]["query"]
pairs = [p for p in pairs if p["query"] == query]
same("score", scores("rand-bert-rank", query, [p["text"] for p in pairs]),
     [1 / (1 + math.exp(-p["score"])) for p in pairs])

missing = subprocess.run(run + ["no-such-file.gguf", "a", "b"], stderr=subprocess.PIPE, text=True)
assert missing.returncode == 1 and "SHARPI_E_NOT_FOUND" in missing.stderr, missing
chat = subprocess.run(run + [f"{fixtures}/tiny-qwen35-q8_0.gguf", "", "b"], stderr=subprocess.PIPE, text=True)
assert chat.returncode == 1 and "SHARPI_E_" in chat.stderr, chat
PYTHON
echo "$language: vectors and scores as another implementation has them, error texts as from C"
