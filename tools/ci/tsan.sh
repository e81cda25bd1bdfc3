#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The programs with the label `tsan` under ThreadSanitizer, and the server with load from outside.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

configure tsan
build build-tsan tests_tsan
if has_server build-tsan > /dev/null; then build build-tsan server; fi
# The run time of older Clangs cannot live with the address randomisation of newer kernels.
plain=()
if setarch "$(uname -m)" -R true 2> /dev/null; then plain=(setarch "$(uname -m)" -R); fi
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
status=0
run_labelled build-tsan tsan "${plain[@]}" || status=1
# The HTTP library and the C++ library are not instrumented: what they do inside cannot be judged.
TSAN_OPTIONS+=:ignore_noninstrumented_modules=1
sanitized_server build-tsan "${plain[@]}" || status=1
exit "$status"
