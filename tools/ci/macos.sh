#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The library for macOS on arm64, compiled and linked. `make check-macos` does x86-64, too.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec tools/macos_check.sh arm64
