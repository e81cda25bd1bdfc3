#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What the tutorial tells its readers to do, done with its own text and the installed library:
# tutorial.sh tutorial.md cc prefix libdir work-folder model
set -euo pipefail
export LC_ALL=C
page=$1 cc=$2 prefix=$3 libdir=$4 work=$5 model=$6
export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig"
rm -rf "$work"
mkdir -p "$work"
cd "$work"

blocks() {  # language: the text of its code blocks
  awk -v open="\`\`\`$1" '$0 == open { inside = 1; next } $0 == "```" { inside = 0 } inside' "$page"
}
blocks c > chat.c
blocks sh | grep '^printf' > sources.sh
bash sources.sh
read -ra flags <<< "$(pkg-config --cflags --libs sharpi)"
"$cc" -std=c99 -Wall -Wextra -pedantic -Werror chat.c "${flags[@]}" -o chat

# The model of the tests answers questions about codes that stand in its prompt.
answers=$(printf 'What is the code of ember?\nWhat is the code of ember?\n' |
  LD_LIBRARY_PATH="$prefix/$libdir" ./chat "$model" ember.txt olive.txt)
[[ $(grep -c 97697 <<< "$answers") == 2 ]] || { echo "the answers were: $answers"; exit 1; }
