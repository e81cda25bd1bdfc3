#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The libraries that a build for Windows needs, in a folder: windows.sh folder. They are
# compiled from the system's own source packages, static, so that a user has nothing to install.
set -euo pipefail
root=$(mkdir -p "${1:?usage: windows.sh folder}" && cd "$1" && pwd)
work=$root/work
jobs=$(nproc)

# The source packages of the system's own archive, without a change to the system's lists.
sources() {  # package...
  local lists=$work/lists file
  mkdir -p "$work/parts" "$lists/partial"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [[ ! -f $file ]] ||
      sed -E 's/^Types:.*/Types: deb-src/; s/^deb(-src)? /deb-src /' "$file" > "$work/parts/${file##*/}"
  done
  local options=(-o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$work/parts"
    -o "Dir::State::Lists=$lists")
  apt-get "${options[@]}" update > "$work/apt.log" 2>&1 || true
  # The text of a package and its patches are files of their own; ours needs the first.
  (cd "$work" && apt-get "${options[@]}" source --download-only "$@" >> "$work/apt.log" 2>&1) || true
}
unpack() {  # package: into $work/package
  local archive
  archive=$(find "$work" -maxdepth 1 -name "$1_*.orig.tar.*" ! -name '*.asc' | head -n 1)
  [[ -n $archive ]] || { cat "$work/apt.log"; echo "the source package $1 could not be fetched"; exit 1; }
  mkdir -p "$work/$1"
  tar -xf "$archive" -C "$work/$1" --strip-components=1
}
compile() {  # name, source folder, cmake arguments...
  cmake -S "$2" -B "$work/build-$1" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_SYSTEM_NAME=Windows -DCMAKE_C_COMPILER=x86_64-w64-mingw32-gcc-posix \
    -DCMAKE_CXX_COMPILER=x86_64-w64-mingw32-g++-posix -DCMAKE_RC_COMPILER=x86_64-w64-mingw32-windres \
    -DCMAKE_INSTALL_PREFIX="$root" -DCMAKE_INSTALL_LIBDIR=lib "${@:3}" > "$work/$1.log" 2>&1 &&
    cmake --build "$work/build-$1" -j "$jobs" >> "$work/$1.log" 2>&1 &&
    cmake --install "$work/build-$1" >> "$work/$1.log" 2>&1 || { cat "$work/$1.log"; exit 1; }
}

mkdir -p "$work" "$root/lib/pkgconfig" "$root/include"
if [[ ! -f $root/lib/libpcre2-8.a || ! -f $root/lib/libutf8proc.a ]]; then
  sources pcre2 utf8proc
  unpack pcre2
  compile pcre2 "$work/pcre2" -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF -DPCRE2_SUPPORT_JIT=ON \
    -DPCRE2_STATIC_PIC=ON
  unpack utf8proc
  compile utf8proc "$work/utf8proc" -DUTF8PROC_ENABLE_TESTING=OFF
fi
[[ -f $root/lib/libgtest.a ]] || compile googletest /usr/src/googletest -DBUILD_GMOCK=ON

# pkg-config files that name the archives and how their headers are told that they are archives.
package() {  # name, version, cflags, libs
  printf 'Name: %s\nDescription: %s, static\nVersion: %s\nCflags: -I%s/include %s\nLibs: -L%s/lib %s\n' \
    "$1" "$1" "$2" "$root" "$3" "$root" "$4" > "$root/lib/pkgconfig/$1.pc"
}
package libpcre2-8 10.42 -DPCRE2_STATIC -lpcre2-8
package libutf8proc 2.8.0 -DUTF8PROC_STATIC -lutf8proc
package zlib 1.2 '' /usr/x86_64-w64-mingw32/lib/libz.a
package nlohmann_json 3 '' ''
ln -sfn /usr/include/boost "$root/include/boost"
ln -sfn /usr/include/nlohmann "$root/include/nlohmann"
