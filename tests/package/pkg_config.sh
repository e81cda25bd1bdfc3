#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds and runs the consumer with what pkg-config says:
# pkg_config.sh shared|static cc prefix libdir work-folder model
set -euo pipefail
export LC_ALL=C
kind=$1 cc=$2 prefix=$3 libdir=$4 work=$5 model=$6
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig"
rm -rf "$work"
mkdir -p "$work"

package=sharpi
[[ $kind == shared ]] || package=sharpi-static
read -ra cflags <<< "$(pkg-config --cflags "$package >= 1.0")"
read -ra libs <<< "$(pkg-config --libs "$package")"
if [[ $kind == shared ]]; then
  [[ " ${libs[*]} " != *pcre2* ]] || { echo "the shared library's dependencies leak: ${libs[*]}"; exit 1; }
  run=(env "LD_LIBRARY_PATH=$prefix/$libdir")
else
  run=()
fi
"$cc" -std=c99 -Wall -Wextra -pedantic -Werror "${cflags[@]}" "$here/consumer/main.c" \
  -o "$work/consumer" "${libs[@]}"

needed=$(readelf -dW "$work/consumer" | grep -c 'NEEDED.*libsharpi\.so\.1' || true)
[[ $kind == shared && $needed == 1 || $kind == static && $needed == 0 ]] ||
  { echo "$kind: libsharpi.so.1 is needed $needed times"; exit 1; }
"${run[@]}" "$work/consumer" "$model"
