#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The server for Windows as tests of the server want one, under Wine: SHARPI_SERVER=tools/windows/serve.sh with
# SHARPI_SERVER_EXE=FOLDER/server.exe. What asks it to end reaches it as Ctrl-C, which Wine makes of SIGINT alone.
set -uo pipefail
set -m  # or the background would ignore it
"$(dirname "${BASH_SOURCE[0]}")/wine.sh" "$SHARPI_SERVER_EXE" "$@" &
program=$!
trap 'kill -INT "$program" 2> /dev/null' TERM INT
status=0
wait "$program" || status=$?
while kill -0 "$program" 2> /dev/null; do
  status=0
  wait "$program" || status=$?
done
exit "$status"
