#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The library on aarch64, cross-built and run under qemu: what there is time for is chosen by the commit's
# hash, so that every suite has its turn on every processor, long ones in parts. The rest is named, and `make check-arm` runs it.
# arm.sh [seconds]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

command -v apt-get > /dev/null || { echo "skipped: the libraries for arm64 are Debian's packages"; exit "$kSkipped"; }
turn=$(tools/ci/turn.sh)
export SHARPI_TEST_TURN=$turn
status=0
tools/arm_check.sh --turn "$turn" --limit "${1:-240}" --share 40 --whole '^$' --again || status=$?
case $status in
  2) echo "skipped: a compiler for aarch64 or qemu cannot be had here"; exit "$kSkipped" ;;
  3) echo "What did not run is left to \`make check-arm\`." ;;
  *) exit "$status" ;;
esac
