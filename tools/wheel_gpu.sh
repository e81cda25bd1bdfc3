#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The Python wheel where a GPU computes: wheel_gpu.sh build-folder [options]
#
# Builds the target sharpi_bundled in that folder (configured here for the CUDA tier, if it is not),
# makes the wheel of it, installs that into an empty folder, and runs bindings/python/tests/test_gpu.py
# on it, outside the tree. Nothing is asked of the network: hatchling, pytest and numpy are the
# interpreter's own, or wheels in DEPS/wheels.
#
#   --deps FOLDER     what the machine lacks: lib/, include/, wheels/ (default: .gpu)
#   --python PROGRAM  the interpreter (default: python3)
#   --all             then the package's other tests too, with blocks on the GPU
#   --rehearse        on a machine without a GPU: the wheel as elsewhere, its tests on the CPU
# Exit status: 0 all passed, 77 skipped, because there is no GPU, anything else failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tree=$PWD build='' deps=$tree/.gpu python=python3 all=0 rehearse=0
usage() { sed -n '3,/^set /p' "$0" | sed '$d;s/^# \{0,1\}//' >&2; exit 2; }
while (($#)); do
  case $1 in
    --deps) deps=$(realpath "$2"); shift ;;
    --python) python=$2; shift ;;
    --all) all=1 ;;
    --rehearse) rehearse=1 ;;
    -*) usage ;;
    *) build=$1 ;;
  esac
  shift
done
[[ -n $build ]] || usage
if ! nvidia-smi -L > /dev/null 2>&1 && ((!rehearse)); then
  echo "skipped: no NVIDIA driver on this machine; --rehearse tests the wheel on the CPU"
  exit 77
fi
unset PYTHONPATH SHARPI_LIBRARY SHARPI_WHEEL_LIBRARY
export PATH=/usr/local/cuda/bin:$PATH PKG_CONFIG_PATH=$deps/lib/pkgconfig:${PKG_CONFIG_PATH:-}
export PIP_DISABLE_PIP_VERSION_CHECK=1

architecture=90
((rehearse)) || architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
if [[ ! -f $build/build.ninja ]]; then
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSHARPI_TESTS=OFF -DSHARPI_EXAMPLES=OFF \
    -DSHARPI_INSTALL=OFF -DSHARPI_CUDA="$( ((rehearse)) && echo OFF || echo ON)" \
    -DCMAKE_CUDA_ARCHITECTURES="$architecture"
fi
# A folder that was configured where the archives were not is asked once more.
cmake -S . -B "$build" > /dev/null
cmake --build "$build" -j "$(nproc)" --target sharpi_bundled

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONPYCACHEPREFIX=$work/bytecode
# What only makes and tests the wheel lies beside it, and counts only where the interpreter lacks it.
mkdir "$work/tools" "$work/installed" "$work/empty"
missing=()
for wheel in "$deps"/wheels/*.whl; do
  [[ -e $wheel ]] || continue
  name=$(basename "$wheel" | sed 's/-.*//')
  "$python" -c "import importlib.metadata as m; m.version('$name')" > /dev/null 2>&1 || missing+=("$wheel")
done
((${#missing[@]} == 0)) ||
  "$python" -m pip install --quiet --no-index --no-deps --target "$work/tools" "${missing[@]}"

rm -rf "$build/dist"
pack() {  # variable=library package: its wheel
  env PYTHONPATH="$work/tools" "$1" "$python" -m pip wheel --quiet --no-index --no-deps --no-build-isolation \
    --wheel-dir "$build/dist" "$2"
}
pack SHARPI_WHEEL_LIBRARY="$(realpath "$build/bundled/libsharpi.so.1")" bindings/python
((rehearse)) ||
  pack SHARPI_WHEEL_MODULE="$(realpath "$build/bundled/libsharpi-cuda.so")" bindings/python/cuda
wheels=("$build"/dist/*.whl)
stat -c '%n: %s bytes' "${wheels[@]}"
"$python" -m pip install --quiet --no-index --no-deps --target "$work/installed" "${wheels[@]}"
export PYTHONPATH=$work/installed:$work/tools
cd "$work/empty"
"$python" - "$work/installed" << 'PROGRAM'
import sys
import sharpi
from sharpi import _library
assert sharpi.__file__.startswith(sys.argv[1]), sharpi.__file__
assert _library._path().startswith(sys.argv[1]), _library._path()
print("Python", sys.version.split()[0] + ",", sharpi.build_info())
for device in sharpi.default_context().devices():
    print(device.tier.name, device.name)
PROGRAM

tests=$tree/bindings/python/tests
if ((rehearse)); then
  export SHARPI_TEST_TIER=cpu
else
  export SHARPI_TEST_REQUIRE_GPU=1
fi
status=0
"$python" -m pytest -q -rs -p no:cacheprovider "$tests/test_gpu.py" || status=$?
if ((all)); then
  "$python" -m pytest -q -rs -p no:cacheprovider "$tests" --ignore "$tests/test_gpu.py" || status=$?
fi
exit "$status"
