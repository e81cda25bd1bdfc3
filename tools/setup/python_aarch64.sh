#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A Python for aarch64 Linux to try wheels with under qemu, in a folder: python_aarch64.sh FOLDER
#
# Debian's python3 for arm64 and all that it depends on, its C library among them, are unpacked there and not
# installed; pip is this machine's. Does nothing where the folder is whole; exits 77, with the reason, where the
# packages cannot be had.
set -euo pipefail
folder=$(realpath -m "$1")
[[ ! -e $folder/whole ]] || exit 0
skip() { echo "skipped: no Python for aarch64: $*"; exit 77; }

command -v apt-get > /dev/null && command -v dpkg > /dev/null || skip "it comes from Debian's packages"
command -v qemu-aarch64-static > /dev/null || skip "there is no qemu-aarch64-static"
python3 -c 'import ensurepip, venv' 2> /dev/null || skip "pip comes from python3-venv"
source "$(dirname "${BASH_SOURCE[0]}")/arm64_packages.sh"
rm -rf "$folder"
arm64_lists "$folder/apt"
apt-get "${arm64[@]}" -qq -y --no-install-recommends --download-only install python3 > "$folder/log" 2>&1 ||
  skip "Debian's python3 for arm64 could not be fetched: $(tail -n 1 "$folder/log")"
for file in "$folder"/apt/cache/archives/*.deb; do dpkg -x "$file" "$folder"; done
rm -rf "$folder/apt"
python3 -m venv "$folder/env"
mkdir -p "$folder/pip"
cp -r "$folder"/env/lib/python*/site-packages/pip* "$folder/pip/"
rm -rf "$folder/env"
said=$(qemu-aarch64-static -L "$folder" "$folder/usr/bin/python3" -c 'import ctypes, platform; print(platform.machine())' 2>&1) || true
[[ $said == aarch64 ]] || { echo "Python for aarch64 does not start: $said"; exit 1; }
touch "$folder/whole"
