#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Objects compiled for one instruction set define no symbol that the linker may pick for the whole
# library (an inline function of a header, say): such a copy would run on machines without that
# instruction set. vector_objects.sh nm archive
set -euo pipefail
export LC_ALL=C
nm=$1 archive=$2
sets=$(sed -nE 's/^set\(isa_names (.*)\)$/\1/p' "$(dirname "${BASH_SOURCE[0]}")"/../../lib/cpu/*/kernels.cmake |
  tr '\n ' '||' | sed 's/|$//')
# House rules see to it that whatever is compiled so has the set in its name.
symbols=$("$nm" -A -C --defined-only "$archive" |
          sed -nE "s/^[^:]*:([^:]*_($sets)[^:]*\.o):[[:space:]]*[0-9a-f]* ([A-Za-z]) (.*)\$/\3 \1 \4/p")
[[ -n $symbols ]] || { echo "no object of a vector instruction set in $archive"; exit 1; }
shared=$(grep -E '^[WVu] ' <<< "$symbols" || true)
if [[ -n $shared ]]; then
  echo "symbols that other objects may end up calling:"
  sed 's/^/  /' <<< "$shared"
  exit 1
fi
echo "$(wc -l <<< "$symbols") symbols, none shared"
