#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A wheel for another machine is installed by that machine's pip in a fresh folder, and the demo's question is asked
# through it alone: wheel_elsewhere.sh windows-x64|linux-aarch64 WHEEL WORK-FOLDER
# Exits 77, with the reason, where no Python for that machine can be had.
set -euo pipefail
platform=$1 wheel=$(realpath "$2") work=$(realpath -m "$3")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
unset PYTHONPATH PYTHONHOME SHARPI_LIBRARY LD_LIBRARY_PATH
fetched=${XDG_CACHE_HOME:-$HOME/.cache}/sharpi/python-$platform-$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
rm -rf "$work"
mkdir -p "$work"

case $platform in
  windows-x64)
    tools/setup/python_windows.sh "$fetched"
    # Standard streams are pipes: Wine knows nothing of files that a program of Linux opened for another.
    python() { echo | PYTHONPATH=$1 timeout 1800 tools/windows/wine.sh "$fetched/python.exe" "${@:2}" 2>&1 | cat; }
    pip=''
    ;;
  linux-aarch64)
    tools/setup/python_aarch64.sh "$fetched"
    python() { PYTHONPATH=$1 timeout 1800 qemu-aarch64-static -cpu max,sve=off -L "$fetched" "$fetched/usr/bin/python3" "${@:2}" 2>&1; }
    pip=$fetched/pip
    ;;
  *) echo "no such platform: $platform"; exit 2 ;;
esac
python "$pip" -m pip -q --disable-pip-version-check install --no-index --no-compile --target "$work/site" "$wheel" > "$work/log" ||
  { cat "$work/log"; echo "$platform: pip does not install ${wheel##*/}"; exit 1; }
[[ -d $work/site/sharpi ]] || { cat "$work/log"; echo "$platform: pip installed nothing"; exit 1; }
# The package is the one that was installed, with its own library.
python "$work/site" -c 'import pathlib, sharpi
from sharpi import _library
print("from", pathlib.Path(sharpi.__file__).parent.as_posix(), _library._path())' > "$work/log" || { cat "$work/log"; exit 1; }
grep -q "from .*${work##*/}/site/sharpi .*lib" "$work/log" || { cat "$work/log"; echo "$platform: another package answers"; exit 1; }
said=$(python "$work/site" tests/dist/ask.py tests/fixtures/tiny-qwen3-q8_0.gguf examples/demo_prompt.txt) ||
  { echo "$said"; echo "$platform: the wheel does not answer"; exit 1; }
[[ $said == *97697* ]] || { echo "$platform: the answer was: $said"; exit 1; }
echo "$platform: the wheel answers from a fresh folder: $said"
