#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the wheel of the Python package: wheel.sh build-folder [library]
# Without a library it is of the one that `make wheel` built there, and no other wheel is then in
# build-folder/dist; with one, its wheel is there too, for the platform that the library is for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
library=${2:-$build/bundled/libsharpi.so.1}
[[ -e $library ]] || { echo "there is no $library: build the target sharpi_bundled"; exit 1; }

[[ -x $build/wheel-env/bin/pip ]] || python3 -m venv "$build/wheel-env"
(($# > 1)) || rm -f "$build"/dist/sharpi-*.whl
SHARPI_WHEEL_LIBRARY=$(realpath "$library") "$build/wheel-env/bin/pip" wheel --quiet \
  --disable-pip-version-check --no-deps --wheel-dir "$build/dist" bindings/python
ls "$build"/dist/*.whl
