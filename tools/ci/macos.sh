#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The library for macOS, compiled and linked, for one of two processors: the commit's hash says which. Both:
# `make check-macos`.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
turn=$(cksum <<< "$(tools/ci/turn.sh)" | cut -d ' ' -f 1)
processors=(arm64 x86_64)
exec tools/macos_check.sh "${processors[turn % 2]}"
