#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A module exports its table, and names no library but those that every system has:
# module_symbols.sh nm readelf module
set -euo pipefail
export LC_ALL=C
nm=$1 readelf=$2 module=$3
exported=$("$nm" -D --defined-only "$module" | awk '$2 != "A" {print $3}')
[[ $exported == "sharpi_tier_module@@SHARPI_TIER_1" ]] || { echo "exported: $exported"; exit 1; }
needed=$("$readelf" -d "$module" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
others=$(grep -vE '^(lib(stdc\+\+|gcc_s|m|c|pthread|dl|rt)\.so\.[0-9]+|ld-linux-.*\.so\.[0-9]+)$' <<< "$needed" || true)
[[ -z $others ]] || { echo "needs: $others"; exit 1; }
"$readelf" -d "$module" | grep -q NODELETE || { echo "a host could unload it under its threads"; exit 1; }
echo "one function; needs $(tr '\n' ' ' <<< "$needed")"
