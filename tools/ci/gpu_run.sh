#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Whether docs/gpu_run.md, the summary of the last run on a GPU, is of these sources. One line; it
# is no failure if it is not, because CI has no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck disable=SC2016  # backquotes of Markdown
recorded=$(sed -nE 's/^Sources of `cuda\/` and `lib\/`: `([0-9a-f]+)`.*/\1/p' docs/gpu_run.md \
  2> /dev/null || true)
now=$(tools/ci/tree_hash.sh cuda lib)
if [[ -z $recorded ]]; then
  echo "GPU run: none is recorded in docs/gpu_run.md (tools/gpu_check.sh makes it)"
elif [[ $recorded != "$now" ]]; then
  echo "GPU run: cuda/ or lib/ ($now) are newer than the run in docs/gpu_run.md ($recorded)"
else
  echo "GPU run: docs/gpu_run.md is of these sources ($now)"
fi
