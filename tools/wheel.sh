#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the wheel of the Python package from the library that `make wheel` built: wheel.sh build-folder
# The wheel, and no other, is then in build-folder/dist.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
library=$build/bundled/libsharpi.so.1
[[ -e $library ]] || { echo "there is no $library: build the target sharpi_bundled"; exit 1; }

[[ -x $build/wheel-env/bin/pip ]] || python3 -m venv "$build/wheel-env"
rm -f "$build"/dist/sharpi-*.whl
SHARPI_WHEEL_LIBRARY=$(realpath "$library") "$build/wheel-env/bin/pip" wheel --quiet \
  --disable-pip-version-check --no-deps --wheel-dir "$build/dist" bindings/python
ls "$build"/dist/*.whl
