#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The documentation builds without a warning.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[[ -f build/build.ninja ]] || configure_tested
build build docs
echo "$(find build/docs/html -name '*.html' | wc -l) pages"
