#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# examples/cluster.c with two and with three ranks: cluster.sh MPIRUN CLUSTER MODEL
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
answer() { timeout 120 "$1" -n "$4" "$2" "$3" 'Once upon a time' 12; }
two=$(answer "$@" 2)
three=$(answer "$@" 3)
[[ -n $two && $two == "$three" ]] || { printf 'two ranks: %s\nthree ranks: %s\n' "$two" "$three"; exit 1; }
if answer "$@" 1 2> /dev/null; then echo 'one rank is no cluster'; exit 1; fi
