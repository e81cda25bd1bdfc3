#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The programs with the label `tsan` under ThreadSanitizer.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

configure tsan
build build-tsan tests_tsan
# The run time of older Clangs cannot live with the address randomisation of newer kernels.
plain=()
if setarch "$(uname -m)" -R true 2> /dev/null; then plain=(setarch "$(uname -m)" -R); fi
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
run_labelled build-tsan tsan "${plain[@]}"
