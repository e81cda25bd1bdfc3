#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One number for the contents of folders: tree_hash.sh FOLDER|FILE.. The same wherever the same files
# lie, with or without a repository around them.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
find "$@" -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-16
