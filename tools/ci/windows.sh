#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The library for Windows, compiled by MinGW-w64 and run under Wine (`make check-windows`), where both can be had.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

quietly tools/setup/packages.sh windows && tools/setup/windows.sh build-windows/root ||
  { echo "skipped: MinGW-w64, Wine or the libraries' sources cannot be had here"; exit "$kSkipped"; }
exec tools/windows_check.sh
