#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A package is installed in a fresh folder, and the demo's question is asked through it alone:
# installed.sh tarball|deb|deb-chroot|wheel|nuget-mono|nuget-dotnet|crates|go folder-of-packages work-folder
# Exits 77, with the reason, where what a host of that kind needs is not on this machine.
set -euo pipefail
export LC_ALL=C.UTF-8
unset LD_LIBRARY_PATH PYTHONPATH SHARPI_LIBRARY PKG_CONFIG_PATH CMAKE_PREFIX_PATH
kind=$1 packages=$(cd "$2" && pwd) work=$3
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
model=$tree/tests/fixtures/tiny-qwen3-q8_0.gguf question=$tree/examples/demo_prompt.txt
rm -rf "$work"
mkdir -p "$work"
cd "$work"

skip() { echo "skipped: $*"; exit 77; }
have() { command -v "$1" > /dev/null 2>&1; }
the_one() { local found=("$packages"/$1); [[ -e ${found[0]} ]] || { echo "there is no $1"; exit 1; }; echo "${found[0]}"; }
answers() {  # command...: its answer has the code that stands far back in the text
  local answer
  answer=$("$@") || { echo "$kind: failed: $*"; exit 1; }
  [[ $answer == *97697* ]] || { echo "$kind: the answer was: $answer"; exit 1; }
  echo "$kind: $answer"
}
# Every file of a list is there, and none besides.
holds() {  # file with the names that are there; the list comes from standard input
  diff <(sort -u) <(sort -u "$1") > files.diff || { echo "$kind: the files differ:"; cat files.diff; exit 1; }
}
# The libraries that a package of all platforms has to have: those of the platforms that have an archive beside
# it. platform_files format column-of-the-folder column-of-the-file
platform_files() {
  local row
  while IFS=$'\t' read -r -a row; do
    [[ ${row[0]:-#} != \#* ]] && compgen -G "$packages/libsharpi-*-${row[0]}.tar.gz" > /dev/null || continue
    # shellcheck disable=SC2059
    printf "$1\n" "${row[$2 - 1]}" "${row[$3 - 1]}"
  done < "$tree/tools/dist/platforms.tsv"
}
has_files() {  # folder: those of a list that comes from standard input
  local file n=0
  while IFS= read -r file; do
    [[ -e $1/$file ]] || { echo "$kind: ${1##*/} lacks $file"; exit 1; }
    n=$((n + 1))
  done
  ((n)) || { echo "$kind: no platform has an archive beside it"; exit 1; }
}
# The C example, compiled with these flags against the package.
c_host() {
  "${CC:-gcc}" -std=c99 -O1 -I"$tree/examples" "$tree/examples/generate.c" "$tree/examples/util.c" "$tree/examples/system_posix.c" -o generate "$@"
  answers env LD_LIBRARY_PATH="$library_path" ./generate -m "$model" -f "$question" --chat --temp 0 -n 32 --quiet
}

case $kind in
  tarball)
    archive=$(the_one "libsharpi-*-linux-$(uname -m).tar.gz")
    tar xzf "$archive" --strip-components=1
    version=$(sed -nE 's/^Version: //p' lib/pkgconfig/sharpi.pc)
    tar tzf "$archive" | grep -v '/$' | cut -d / -f 2- > files
    holds files << EOF
include/sharpi.h
lib/cmake/sharpi/sharpi-config-version.cmake
lib/cmake/sharpi/sharpi-config.cmake
lib/cmake/sharpi/sharpi-shared-release.cmake
lib/cmake/sharpi/sharpi-shared.cmake
lib/libsharpi.so
lib/libsharpi.so.${version%%.*}
lib/libsharpi.so.$version
lib/pkgconfig/sharpi.pc
share/doc/sharpi/CHANGELOG.md
share/doc/sharpi/LICENSE
share/doc/sharpi/README.md
share/doc/sharpi/licenses/PCRE2.txt
share/doc/sharpi/licenses/utf8proc.txt
share/doc/sharpi/sbom.spdx.json
EOF
    "$tree/tools/dist/glibc_floor.sh" "lib/libsharpi.so.$version"
    "$tree/tests/dist/check_sbom.py" share/doc/sharpi/sbom.spdx.json "lib/libsharpi.so.$version"
    library_path=$PWD/lib
    read -ra flags <<< "$(PKG_CONFIG_PATH=$PWD/lib/pkgconfig pkg-config --cflags --libs sharpi)"
    c_host "${flags[@]}"
    "$tree/tests/package/find_package.sh" shared "${CC:-gcc}" "$PWD" cmake Ninja "$PWD/consumer" "$model"
    ;;
  deb)
    have dpkg-deb || skip "dpkg is not on this machine"
    for part in libsharpi1 libsharpi-dev; do dpkg-deb -x "$(the_one "${part}_*.deb")" root; done
    dpkg-deb -f "$(the_one 'libsharpi-dev_*.deb')" Depends | grep -q 'libsharpi1 (= ' ||
      { echo "libsharpi-dev does not depend on its library"; exit 1; }
    # What the library needs comes from packages that it names.
    depends=$(dpkg-deb -f "$(the_one 'libsharpi1_*.deb')" Depends)
    for needed in $(readelf -dW root/usr/lib/libsharpi.so.1 | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p'); do
      [[ $needed != ld-linux* ]] || continue
      owners=$(dpkg -S "*/$needed" 2> /dev/null | sed 's/:.*//' | sort -u)
      for owner in $owners; do [[ " $depends" != *" $owner "* ]] || continue 2; done
      echo "$needed, of one of ($owners), comes from none of: $depends"
      exit 1
    done
    library_path=$PWD/root/usr/lib
    c_host -Iroot/usr/include -Lroot/usr/lib -lsharpi
    ;;
  deb-chroot)  # a system that has nothing but what debootstrap makes and apt-get then installs
    [[ $EUID == 0 ]] && have debootstrap || skip "it needs root and debootstrap"
    . /etc/os-release
    debootstrap --variant=minbase "$VERSION_CODENAME" root > log 2>&1 || skip "debootstrap: $(tail -n 1 log)"
    cp "$packages"/libsharpi*.deb "$model" "$question" "$tree"/examples/{generate.c,util.c,util.h,system.h,system_posix.c} root/tmp/
    chroot root sh -c 'cd /tmp && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
      --no-install-recommends gcc libc6-dev pkg-config ./libsharpi*.deb > /dev/null &&
      gcc generate.c util.c system_posix.c -o generate $(pkg-config --cflags --libs sharpi)' > log 2>&1 || { tail -n 20 log; exit 1; }
    answers chroot root sh -c 'cd /tmp && ./generate -m *.gguf -f demo_prompt.txt --chat --temp 0 -n 32 --quiet'
    ;;
  wheel)
    python3 -c 'import ensurepip, venv' 2> /dev/null || skip "python3 has no venv; on Debian: apt-get install python3-venv"
    python3 -m venv env
    env/bin/pip -q --disable-pip-version-check install --no-index "$(the_one "sharpi-*-manylinux*_$(uname -m).whl")"
    answers env/bin/python "$tree/tests/dist/ask.py" "$model" "$question"
    ;;
  nuget-mono | nuget-dotnet)
    have mcs || skip "mcs is not on this machine; on Debian: apt-get install mono-mcs"
    package=$(the_one 'LibSharpi.*.nupkg')
    python3 -m zipfile -e "$package" package
    (cd package && find . -type f | sed 's|^\./||') > files
    holds files << EOF
[Content_Types].xml
_rels/.rels
LICENSE
LibSharpi.nuspec
README.md
lib/netstandard2.0/LibSharpi.dll
lib/netstandard2.0/LibSharpi.xml
licenses/PCRE2.txt
licenses/utf8proc.txt
$(platform_files 'runtimes/%s/native/%s' 4 5)
EOF
    mkdir app
    cp "$tree/bindings/csharp/examples/Ask.cs" app/
    mcs -warnaserror -r:package/lib/netstandard2.0/LibSharpi.dll -out:app/Ask.exe app/Ask.cs
    if [[ $kind == nuget-mono ]]; then
      have mono || skip "mono is not on this machine; on Debian: apt-get install mono-runtime"
      cp package/lib/netstandard2.0/LibSharpi.dll package/runtimes/linux-x64/native/libsharpi.so app/
      answers mono app/Ask.exe "$model" "$question"
    else
      dotnet=${SHARPI_DOTNET:-$(command -v dotnet || true)}
      [[ -n $dotnet ]] || skip "dotnet is not on this machine (SHARPI_DOTNET names it)"
      "$tree/tests/dist/restored.sh" "$dotnet" app package
      answers env DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1 "$dotnet" exec \
        --additionalprobingpath "$PWD/app/packages" app/Ask.dll "$model" "$question"
    fi
    ;;
  crates)
    have cargo || skip "cargo is not on this machine; on Debian: apt-get install cargo"
    mkdir -p vendor program/src program/.cargo
    for crate in "$packages"/*.crate; do tar xzf "$crate" -C vendor; done
    for crate in vendor/*; do
      [[ -e $crate/LICENSE && -e $crate/README.md ]] || { echo "${crate##*/} lacks its licence or its page"; exit 1; }
      echo '{"files":{}}' > "$crate/.cargo-checksum.json"
    done
    has_files "$(echo vendor/sharpi-sys-*)" < <(platform_files 'native/%s/%s' 6 3)
    cp vendor/sharpi-[0-9]*/examples/ask.rs program/src/main.rs
    printf '[package]\nname = "program"\nversion = "0.1.0"\nedition = "2021"\n\n[dependencies]\nsharpi = "1"\n' > program/Cargo.toml
    printf '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "%s"\n' "$PWD/vendor" \
      > program/.cargo/config.toml
    cp program/.cargo/config.toml program/.cargo/config
    (cd program && cargo build --quiet --offline) 2> log || { cat log; exit 1; }
    answers program/target/debug/program "$model" "$question"
    ;;
  go)
    have go || skip "go is not on this machine; on Debian: apt-get install golang-go"
    export GOPROXY=off GOFLAGS=-buildvcs=false GOCACHE=${GOCACHE:-$PWD/cache} GOPATH=$PWD/path CGO_ENABLED=1
    tar xzf "$(the_one 'sharpi-go-*.tar.gz')"
    has_files "$(echo sharpi-go-*)" < <(platform_files 'lib/%s/%s' 7 3)
    mkdir program
    cp sharpi-go-*/cmd/ask/main.go program/
    printf 'module program\n\ngo 1.18\n\nrequire sharpi v1.0.0\n\nreplace sharpi => %s\n' "$(echo "$PWD"/sharpi-go-*)" \
      > program/go.mod
    (cd program && go build -o ask .)
    answers program/ask "$model" "$question"
    ;;
  *) echo "no such kind: $kind"; exit 2 ;;
esac
