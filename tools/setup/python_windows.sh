#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A Python for Windows to try wheels with, in a folder: python_windows.sh FOLDER
#
# The wheel of panda3d for Windows brings CPython's own libraries for Windows. The modules of the standard library
# that are written in Python are those of this machine's Python, which has the same version, and so has pip. Does
# nothing where the folder is whole; exits 77, with the reason, where the wheel cannot be had.
set -euo pipefail
folder=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[[ ! -e $folder/whole ]] || exit 0
skip() { echo "skipped: no Python for Windows: $*"; exit 77; }

read -r version standard < <(python3 -c 'import sys, sysconfig
print("%d.%d" % sys.version_info[:2], sysconfig.get_path("stdlib"))')
python3 -c 'import ensurepip, venv' 2> /dev/null || skip "pip comes from python3-venv"
compiler=x86_64-w64-mingw32-gcc-posix
command -v "$compiler" > /dev/null || skip "there is no $compiler"
rm -rf "$folder"
mkdir -p "$folder/work" "$folder/DLLs"
python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --platform win_amd64 \
  --implementation cp --python-version "$version" --abi "cp${version/./}" -d "$folder/work" panda3d 2> "$folder/work/log" ||
  skip "the wheel of panda3d for it and Python $version could not be fetched"
python3 -m zipfile -e "$folder/work"/panda3d-*.whl "$folder/work/unpacked"
from=$folder/work/unpacked/deploy_libs
dll=python${version/./}.dll
[[ -e $from/$dll ]] || skip "the wheel of panda3d has no $dll"
cp "$from/$dll" "$folder/"
find "$from" -maxdepth 1 -iname 'vcruntime140*.dll' -exec cp -t "$folder" {} +
cp "$from"/*.pyd "$from"/lib{ffi,crypto,ssl}-*.dll "$folder/DLLs/"
"$compiler" -municode -O1 -DPYTHON_DLL="L\"$dll\"" -o "$folder/python.exe" tools/windows/python.c
cp -rL "$standard" "$folder/Lib"
rm -rf "$folder"/Lib/{EXTERNALLY-MANAGED,test,lib-dynload,dist-packages,site-packages,config-*}
find "$folder/Lib" -name __pycache__ -prune -exec rm -rf {} +
python3 -m venv "$folder/work/env"
mkdir -p "$folder/Lib/site-packages"
cp -r "$folder/work"/env/lib/python*/site-packages/pip* "$folder/Lib/site-packages/"
rm -rf "$folder/work"
# Standard streams are pipes: Wine knows nothing of files that a program of Linux opened for another.
said=$(echo | tools/windows/wine.sh "$folder/python.exe" -c 'import ctypes, sys; print(sys.platform)' 2>&1 | cat)
[[ $said == *win32* ]] || { echo "Python for Windows does not start: $said"; exit 1; }
touch "$folder/whole"
