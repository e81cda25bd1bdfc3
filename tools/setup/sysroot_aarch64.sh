#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A folder with the libraries that a build for aarch64 needs: sysroot_aarch64.sh FOLDER
#
# Debian's packages for arm64 are downloaded and unpacked there, and not installed. Does nothing where the folder is
# whole.
set -euo pipefail
folder=$(realpath -m "$1")
packages=(libpcre2-dev libpcre2-8-0 libpcre2-posix3 libutf8proc-dev libutf8proc2 zlib1g-dev zlib1g
  libgtest-dev)
# Libraries of headers alone, which are the same on every architecture.
headers=(nlohmann-json3-dev libcpp-httplib-dev)
wanted=$(printf '%s\n' "${packages[@]}" "${headers[@]}")
[[ $(cat "$folder/packages" 2> /dev/null) == "$wanted" ]] && exit 0

command -v apt-get > /dev/null && command -v dpkg > /dev/null || {
  echo "this needs Debian's apt-get and dpkg to get libraries for arm64" >&2
  exit 2
}
rm -rf "$folder"
source "$(dirname "${BASH_SOURCE[0]}")/arm64_packages.sh"
echo "Downloading libraries for arm64 to $folder"
arm64_lists "$folder/apt"
mkdir "$folder/apt/packages"
cd "$folder/apt/packages"
apt-get "${arm64[@]}" -qq download "${packages[@]}"
for package in "${headers[@]}"; do
  apt-get "${arm64[@]}" -qq download "$package" || echo "the archive has no $package: done without"
done
for file in *.deb; do dpkg -x "$file" "$folder"; done
rm -rf "$folder/apt"
echo "$wanted" > "$folder/packages"
