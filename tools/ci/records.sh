#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What docs/isa_run.md and docs/gpu_run.md know of these sources: which instruction sets this machine
# has, and which suites have changed since they ran. No failure, because a machine of CI has not
# every processor and no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
echo "recorded runs (tools/isa_check.sh --record, tools/gpu_check.sh):"
[[ -x build/tests/list_isas ]] && echo "this machine's sets: $(build/tests/list_isas | xargs)"
tools/run_record.py stale isa
tools/run_record.py stale gpu
