#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The layout program of Go compares every struct of the header; needs no Go: go_structs.sh header layout.go
set -euo pipefail
diff <(sed -nE 's/^typedef struct (sharpi_[a-z_]+) \{.*/\1/p' "$1" | sort) \
  <(sed -nE 's/^\t\tC\.(sharpi_[a-z_]+)\{\},$/\1/p' "$2" | sort) ||
  { echo "$2 does not list the structs of $1"; exit 1; }
