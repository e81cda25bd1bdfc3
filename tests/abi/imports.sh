#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The library's own code calls nothing that ends, prints to or hooks into the host, throws nothing,
# and registers nothing that runs at the host's exit: imports.sh nm archive
# Objects of CUDA sources (.cu) have two calls that nvcc writes: atexit, by which the runtime lets go
# of their kernels (the library is never unloaded), and exit, in the host's copy of device functions,
# which nothing calls.
set -euo pipefail
export LC_ALL=C
nm=$1 archive=$2
undefined=$("$nm" -A --undefined-only "$archive" | sed -E 's/^[^:]*:([^:]*):.* ([^ ]+)$/\2 \1/')
failed=0
forbid() {  # reason, pattern of symbols
  local hits
  hits=$(grep -E "^($2) " <<< "$undefined" | sort -u || true)
  [[ -z $hits ]] && return
  echo "$1:"
  sed 's/^/  /' <<< "$hits"
  failed=1
}

undefined=$(grep -vE '^(exit|atexit) [^ ]*\.cu\.o$' <<< "$undefined" || true)
[[ -n $undefined ]] || { echo "no undefined symbol could be read from $archive"; exit 1; }
forbid "ends the process" \
  'abort|exit|_exit|_Exit|quick_exit|raise|kill|__assert_fail|_ZSt21__glibcxx_assert_failPKciS0_S0_'
forbid "prints" '(__)?v?f?printf(_chk)?|puts|putchar|fputs|fputc|perror|stdout|stderr|_ZSt4c(out|err|log)|syslog'
forbid "hooks into the process" 'signal|sigaction|atexit|at_quick_exit|on_exit|pthread_atfork|setenv|putenv|setlocale'
forbid "throws" '__cxa_throw'
forbid "has an object whose destructor runs at exit" '__cxa_atexit|__cxa_thread_atexit'

((failed)) || echo "$(wc -l <<< "$undefined") imports, none forbidden"
exit "$failed"
