#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the packages from what `make dist` built: dist.sh build-folder
# They are then in build-folder/dist. A package whose tools are not on this machine is skipped by name.
#   libsharpi-VERSION-PLATFORM.tar.gz    header, library, pkg-config and CMake files, licences, SBOM
#   libsharpi-cuda-VERSION-PLATFORM.tar.gz, libsharpi-cuda1_*.deb, sharpi_cuda-VERSION-*.whl
#                                        the CUDA tier for each, where it was built
#   libsharpi1_*.deb, libsharpi-dev_*.deb  for this system, with its own PCRE2 and utf8proc
#   sharpi-VERSION-*.whl                 Python, one for each platform
#   LibSharpi.VERSION.nupkg              .NET: assembly and libraries of all platforms
#   sharpi-sys-VERSION.crate, sharpi-VERSION.crate   Rust: declarations and libraries; the safe layer
#   sharpi-go-VERSION.tar.gz             Go: a module with libraries and header
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export LC_ALL=C
tree=$PWD
build=$(cd "$1" && pwd)
out=$build/dist work=$build/dist-work
version=$(sed -nE 's/^project\(sharpi VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
epoch=$(git log -1 --format=%ct 2> /dev/null || date +%s)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$epoch}
rm -rf "$work"
mkdir -p "$out" "$work"
rm -f "$out"/{*.tar.gz,*.deb,*.nupkg,*.crate,*.whl}

# The same files give the same archive: pack folder-above name file.
pack() {
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$1" -c "$2" |
    gzip -n -9 > "$3"
}
licences() {  # folder: ours, and of what is linked into the library
  mkdir -p "$1/licenses"
  cp LICENSE "$1/LICENSE"
  cp bindings/python/licenses/*.txt "$1/licenses/"
}

platforms=()
declare -A module_of library_of file_of rid_of netfile_of target_of go_of
while IFS=$'\t' read -r platform folder library rid netfile target go; do
  [[ $platform == \#* || -z $platform ]] && continue
  [[ $folder == native ]] && folder=$build
  if [[ ! -e $folder/bundled/$library ]]; then
    echo "skipped: $platform: there is no $folder/bundled/$library"
    continue
  fi
  platforms+=("$platform")
  name=libsharpi-$version-$platform root=$work/archives/libsharpi-$version-$platform
  cmake --install "$folder" --component Package --prefix "$root" > "$work/log" || { cat "$work/log"; exit 1; }
  # Where a system keeps what programs load: beside them on Windows.
  at=$root/lib/$library
  [[ -e $at ]] || at=$root/bin/$library
  library_of[$platform]=$(realpath "$at")
  file_of[$platform]=$library rid_of[$platform]=$rid netfile_of[$platform]=$netfile target_of[$platform]=$target go_of[$platform]=$go
  [[ $platform != linux-* ]] || tools/dist/glibc_floor.sh "${library_of[$platform]}" > /dev/null
  mkdir -p "$root/lib/pkgconfig" "$root/share/doc/sharpi"
  sed '/^Libs\.private/d; s|^prefix=.*|prefix=${pcfiledir}/../..|; s|^libdir=.*|libdir=${prefix}/lib|
    s|^includedir=.*|includedir=${prefix}/include|' "$folder/sharpi.pc" > "$root/lib/pkgconfig/sharpi.pc"
  cp README.md CHANGELOG.md "$root/share/doc/sharpi/"
  licences "$root/share/doc/sharpi"
  tools/dist/sbom.py "$platform" "$version" "${library_of[$platform]}" "$root/share/doc/sharpi/sbom.spdx.json"
  pack "$work/archives" "$name" "$out/$name.tar.gz"
  [[ -e $folder/bundled/libsharpi-cuda.so ]] || continue
  name=libsharpi-cuda-$version-$platform root=$work/archives/libsharpi-cuda-$version-$platform
  cmake --install "$folder" --component PackageCuda --prefix "$root" > /dev/null
  [[ $platform != linux-* ]] || tools/dist/glibc_floor.sh "$root/lib/libsharpi-cuda.so" > /dev/null
  mkdir -p "$root/share/doc/sharpi-cuda"
  cp LICENSE "$root/share/doc/sharpi-cuda/"
  tools/dist/sbom.py "$platform" "$version" "$root/lib/libsharpi-cuda.so" \
    "$root/share/doc/sharpi-cuda/sbom.spdx.json" --cuda
  pack "$work/archives" "$name" "$out/$name.tar.gz"
  module_of[$platform]=$root/lib/libsharpi-cuda.so
done < tools/dist/platforms.tsv
((${#platforms[@]})) || { echo "no library was built"; exit 1; }

deb() {
  local part=$1 component=$2 depends=$3 stage=$work/deb-$1
  cmake --install "$build" --component "$component" --prefix "$stage/usr" > /dev/null
  mkdir -p "$stage/usr/share/doc/$part"
  cp LICENSE "$stage/usr/share/doc/$part/copyright"
  find "$stage/usr" -name 'libsharpi*.so*' -type f -exec strip --strip-unneeded {} +
  mkdir -p "$work/cpack-$part"
  cat > "$work/cpack-$part/config.cmake" << CONFIG
set(SHARPI_PART "$part")
set(SHARPI_STAGE "$stage")
set(SHARPI_DEPENDS "$depends")
set(CPACK_PACKAGE_VERSION "$version")
set(CPACK_PACKAGE_DIRECTORY "$work/cpack-$part")
include("$tree/tools/dist/deb.cmake")
CONFIG
  (cd "$work/cpack-$part" && cpack --config config.cmake > log 2>&1) ||
    { cat "$work/cpack-$part/log"; return 1; }
  mv "$work/cpack-$part"/*.deb "$out/"
}
if command -v dpkg-shlibdeps > /dev/null && command -v cpack > /dev/null; then
  deb libsharpi1 Runtime ""
  [[ ! -e $build/lib/libsharpi-cuda.so ]] || deb libsharpi-cuda1 Cuda "libsharpi1 (= $version)"
  deb libsharpi-dev Development "libsharpi1 (= $version), libpcre2-dev, libutf8proc-dev"
else
  echo "skipped: .deb: it needs cpack and dpkg-dev"
fi

if python3 -c 'import ensurepip, venv' 2> /dev/null; then
  for platform in "${platforms[@]}"; do
    tools/wheel.sh "$build" "${library_of[$platform]}" "${module_of[$platform]:-}" > "$work/log" 2>&1 ||
      echo "skipped: wheel of $platform: $(tail -n 1 "$work/log")"
  done
else
  echo "skipped: wheels: they need python3-venv"
fi

if command -v mcs > /dev/null; then
  stage=$work/nuget
  mkdir -p "$stage/lib/netstandard2.0"
  mcs -unsafe -warnaserror -target:library -define:SHARPI_PACKAGE -doc:"$stage/lib/netstandard2.0/LibSharpi.xml" \
    -out:"$stage/lib/netstandard2.0/LibSharpi.dll" bindings/csharp/*.cs
  for platform in "${platforms[@]}"; do
    mkdir -p "$stage/runtimes/${rid_of[$platform]}/native"
    cp "${library_of[$platform]}" "$stage/runtimes/${rid_of[$platform]}/native/${netfile_of[$platform]}"
  done
  licences "$stage"
  cp bindings/csharp/README.md "$stage/"
  tools/dist/nuget.py "$out/LibSharpi.$version.nupkg" "$version" "$stage"
else
  echo "skipped: NuGet package: mcs is not on this machine; on Debian: apt-get install mono-mcs"
fi

# A crate is an archive of its folder; no tool of Rust is needed to make one.
for crate in sharpi-sys sharpi; do
  stage=$work/crates/$crate-$version
  mkdir -p "$stage"
  git ls-files -z "bindings/rust/$crate" | while IFS= read -r -d '' file; do
    mkdir -p "$stage/$(dirname "${file#bindings/rust/"$crate"/}")"
    cp "$file" "$stage/${file#bindings/rust/"$crate"/}"
  done
  sed -i 's/, path = "[^"]*"//' "$stage/Cargo.toml"  # the crates' register has the other one
  if [[ $crate == sharpi-sys ]]; then
    licences "$stage"
    for platform in "${platforms[@]}"; do
      mkdir -p "$stage/native/${target_of[$platform]}"
      cp "${library_of[$platform]}" "$stage/native/${target_of[$platform]}/${file_of[$platform]}"
    done
  fi
  pack "$work/crates" "$crate-$version" "$out/$crate-$version.crate"
done

stage=$work/go/sharpi-go-$version
mkdir -p "$stage/include"
cp -r bindings/go/. "$stage"
cp include/sharpi.h "$stage/include/"
licences "$stage"
for platform in "${platforms[@]}"; do
  mkdir -p "$stage/lib/${go_of[$platform]}"
  cp "${library_of[$platform]}" "$stage/lib/${go_of[$platform]}/${file_of[$platform]}"
done
pack "$work/go" "sharpi-go-$version" "$out/sharpi-go-$version.tar.gz"

(cd "$out" && stat -c '%10s %n' *)
