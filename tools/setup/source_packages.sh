# SPDX-License-Identifier: MIT
# PCRE2 and utf8proc from the system's own source packages, compiled static for another system, so that a
# user has nothing to install. Sourced by those who know the compiler.

# source_libraries <folder> <cmake arguments...>: libraries, headers and pkg-config files in a folder.
source_libraries() {
  local root=$1 work=$1/work
  shift
  mkdir -p "$work" "$root/lib/pkgconfig" "$root/include"
  if [[ ! -f $root/lib/libpcre2-8.a || ! -f $root/lib/libutf8proc.a ]]; then
    download_sources "$work" pcre2 utf8proc
    unpack_source "$work" pcre2
    compile_source "$root" pcre2 "$work/pcre2" "$@" -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF \
      -DPCRE2_SUPPORT_JIT=ON -DPCRE2_STATIC_PIC=ON
    unpack_source "$work" utf8proc
    compile_source "$root" utf8proc "$work/utf8proc" "$@" -DUTF8PROC_ENABLE_TESTING=OFF
  fi
  static_package "$root" libpcre2-8 10.42 -DPCRE2_STATIC -lpcre2-8
  static_package "$root" libutf8proc 2.8.0 -DUTF8PROC_STATIC -lutf8proc
}

# download_sources <folder> <package...>: the source packages of the system's own archive, without a change
# to the system's lists.
download_sources() {
  local work=$1 lists=$1/lists file
  shift
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

# unpack_source <folder> <package>: into folder/package.
unpack_source() {
  local work=$1 archive
  archive=$(find "$work" -maxdepth 1 -name "$2_*.orig.tar.*" ! -name '*.asc' | head -n 1)
  [[ -n $archive ]] || { cat "$work/apt.log"; echo "the source package $2 could not be fetched"; exit 1; }
  mkdir -p "$work/$2"
  tar -xf "$archive" -C "$work/$2" --strip-components=1
}

# compile_source <folder> <name> <sources> <cmake arguments...>: installs a static library in the folder.
compile_source() {
  local root=$1 name=$2 sources=$3 log=$1/work/$2.log
  shift 3
  cmake -S "$sources" -B "$root/work/build-$name" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_INSTALL_PREFIX="$root" -DCMAKE_INSTALL_LIBDIR=lib "$@" > "$log" 2>&1 &&
    cmake --build "$root/work/build-$name" -j "$(nproc)" >> "$log" 2>&1 &&
    cmake --install "$root/work/build-$name" >> "$log" 2>&1 || { cat "$log"; exit 1; }
}

# static_package <folder> <name> <version> <cflags> <libs>: a pkg-config file that names the archive and how
# its headers are told that it is one.
static_package() {
  printf 'Name: %s\nDescription: %s, static\nVersion: %s\nCflags: -I%s/include %s\nLibs: -L%s/lib %s\n' \
    "$2" "$2" "$3" "$1" "$4" "$1" "$5" > "$1/lib/pkgconfig/$2.pc"
}
