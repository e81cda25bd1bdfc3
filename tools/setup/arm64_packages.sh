# SPDX-License-Identifier: MIT
# Sourced by what unpacks Debian's packages for arm64: arm64_lists FOLDER reads what the archive has into a
# folder, and sets `arm64`, the options with which apt-get then knows that folder's packages and none of the
# machine's. They are not installed: the machine's own packages and the list of its architectures stay what they are.
arm64_lists() {
  local state=$1
  mkdir -p "$state"/{lists/partial,cache/archives/partial}
  touch "$state/status"
  arm64=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$state" -o Dir::State::lists="$state/lists"
    -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" -o APT::Sandbox::User=root
    -o Acquire::Languages=none -o Debug::NoLocking=true)
  # A source that has nothing for arm64, or does not answer, is not one of these packages'.
  apt-get "${arm64[@]}" -qq update || true
}
