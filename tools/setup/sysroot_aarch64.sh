#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A folder with the libraries that a build for aarch64 needs: sysroot_aarch64.sh FOLDER
#
# Debian's packages for arm64 are downloaded and unpacked there. They are not installed: the machine's own
# packages and the list of its architectures stay what they are. Does nothing where the folder is whole.
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
state=$folder/apt
mkdir -p "$state"/{lists/partial,cache/archives/partial,packages}
touch "$state/status"
options=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$state" -o Dir::State::lists="$state/lists"
  -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" -o APT::Sandbox::User=root
  -o Acquire::Languages=none)
echo "Downloading libraries for arm64 to $folder"
# A source that has nothing for arm64, or does not answer, is not one of these packages'.
apt-get "${options[@]}" -qq update || true
cd "$state/packages"
apt-get "${options[@]}" -qq download "${packages[@]}"
for package in "${headers[@]}"; do
  apt-get "${options[@]}" -qq download "$package" || echo "the archive has no $package: done without"
done
for file in *.deb; do dpkg -x "$file" "$folder"; done
rm -rf "$state"
echo "$wanted" > "$folder/packages"
