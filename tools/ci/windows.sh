#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The library for Windows, compiled by MinGW-w64 and run under Wine (`make check-windows`), where both can be
# had. Which suites come first in the time that there is follows from the commit's hash, so that every one has its
# turn; the rest is named. windows.sh [seconds]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

quietly tools/setup/packages.sh windows && tools/setup/windows.sh build-windows/root ||
  { echo "skipped: MinGW-w64, Wine or the libraries' sources cannot be had here"; exit "$kSkipped"; }
turn=$(tools/ci/turn.sh)
export SHARPI_TEST_TURN=$turn
status=0
tools/windows_check.sh --turn "$turn" --limit "${1:-150}" || status=$?
((status != 3)) || { echo "What did not run is left to \`make check-windows\`."; status=0; }
exit "$status"
