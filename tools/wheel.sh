#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the wheel of the Python package: wheel.sh build-folder [library [module]]
# Without a library it is of the one that `make wheel` built there, and no other wheel is then in
# build-folder/dist; with one, its wheel is there too, for the platform that the library is for. The
# module with the CUDA tier, the one that `make wheel` built or the one named, becomes a wheel of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
library=${2:-$build/bundled/libsharpi.so.1}
[[ -e $library ]] || { echo "there is no $library: build the target sharpi_bundled"; exit 1; }

[[ -x $build/wheel-env/bin/pip ]] || python3 -m venv "$build/wheel-env"
(($# > 1)) || rm -f "$build"/dist/sharpi-*.whl
SHARPI_WHEEL_LIBRARY=$(realpath "$library") "$build/wheel-env/bin/pip" wheel --quiet \
  --disable-pip-version-check --no-deps --wheel-dir "$build/dist" bindings/python
module=${3:-}
if (($# < 2)); then
  module=$build/bundled/libsharpi-cuda.so
  rm -f "$build"/dist/sharpi_cuda-*.whl
fi
if [[ -n $module && -e $module ]]; then
  SHARPI_WHEEL_MODULE=$(realpath "$module") "$build/wheel-env/bin/pip" wheel --quiet \
    --disable-pip-version-check --no-deps --wheel-dir "$build/dist" bindings/python/cuda
fi
ls "$build"/dist/*.whl
