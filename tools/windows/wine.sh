#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs a program of Windows: wine.sh program.exe [arguments...]. Debian's package has no `wine` command
# for programs of 64 bits alone. The folder that Wine takes for the system is made by the first call.
set -euo pipefail
export WINEPREFIX=${WINEPREFIX:-${XDG_CACHE_HOME:-$HOME/.cache}/sharpi/wine} WINEDEBUG=${WINEDEBUG:--all}
mkdir -p "$WINEPREFIX"
wine=$(command -v wine64 || command -v wine || echo /usr/lib/wine/wine64)
program=$1
[[ -e $program ]] || program+=.exe  # as the compiler named it
exec "$wine" "$program" "${@:2}"
