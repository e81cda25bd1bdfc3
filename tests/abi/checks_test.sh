#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The checks of built libraries find what they are for, in libraries made wrong on purpose:
# checks_test.sh cc cxx nm readelf ar
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cc=$1 cxx=$2 nm=$3 readelf=$4 ar=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0

expect_refusal() {  # text, command...
  local text=$1 output
  shift
  if output=$("$@" 2>&1); then
    echo "accepted: $*"
  elif ! grep -qF -- "$text" <<< "$output"; then
    printf 'refused without "%s": %s\n%s\n' "$text" "$*" "$output"
  else
    return 0
  fi
  failures=$((failures + 1))
}

cat > good.h <<'EOF'
#include <stddef.h>
#include <stdint.h>
/** Adds. @return the sum. @thread any. @since 1.0 */
SHARPI_API int32_t sharpi_add(int32_t a, int32_t b) SHARPI_NOEXCEPT;
EOF
sed 's/SHARPI_API //; s/ SHARPI_NOEXCEPT//' good.h > plain.h
cat > map <<'EOF'
SHARPI_1 { global: sharpi_*; local: *; };
EOF
build() {  # output, flags...; the source comes on standard input
  local output=$1
  shift
  "$cc" -shared -fPIC -x c -o "$output" - -Wl,--version-script=map -Wl,-soname,libsharpi.so.1 \
    -Wl,-z,"${unload:-nodelete}" -Wl,--no-as-needed "$@" -lc
}
build good.so <<< 'unsigned long strlen(const char*);
int sharpi_add(const char* a, int b) { return (int)strlen(a) + b; }'
build more.so <<< 'int sharpi_add(int a, int b) { return a + b; } int sharpi_sub(void) { return 0; }'
build none.so <<< 'int add(int a, int b) { return a + b; }'
build data.so <<< 'int sharpi_add = 1;'
"$cc" -shared -fPIC -x c -o bare.so - -Wl,--no-as-needed -lc <<< 'int sharpi_add(int a, int b) { return a + b; }'

"$here/exports.sh" "$cc" "$nm" plain.h good.so
expect_refusal "exported, not declared: sharpi_sub" "$here/exports.sh" "$cc" "$nm" plain.h more.so
expect_refusal "declared, not exported: sharpi_add" "$here/exports.sh" "$cc" "$nm" plain.h none.so
expect_refusal "not a function under SHARPI_1" "$here/exports.sh" "$cc" "$nm" plain.h data.so
expect_refusal "not a function under SHARPI_1" "$here/exports.sh" "$cc" "$nm" plain.h bare.so

echo 'int stub_symbol;' | "$cc" -shared -fPIC -x c -o libcublas.so - -Wl,-soname,libcublas.so.13
"$here/dynamic.sh" "$readelf" good.so
build cuda.so -L. -lcublas <<< 'int sharpi_add(void) { return 0; }'
build path.so -Wl,-rpath,/opt/lib <<< 'int sharpi_add(void) { return 0; }'
unload=relro build unloads.so <<< 'int sharpi_add(void) { return 0; }'
build stack.so -Wl,-z,execstack <<< 'int sharpi_add(void) { return 0; }'
expect_refusal "linked against CUDA libraries: libcublas.so.13" "$here/dynamic.sh" "$readelf" cuda.so
expect_refusal "carries a run path" "$here/dynamic.sh" "$readelf" path.so
expect_refusal "executable stack" "$here/dynamic.sh" "$readelf" stack.so
expect_refusal "can be unloaded" "$here/dynamic.sh" "$readelf" unloads.so
expect_refusal "the soname is not" "$here/dynamic.sh" "$readelf" bare.so

archive() {  # name of the object; C++ on standard input
  rm -f "$1.a" && "$cxx" -O1 -c -x c++ -o "$1.o" - && "$ar" rc "$1.a" "$1.o"
}
archive clean <<< '#include <cstring>
int f(const char* a) { return static_cast<int>(std::strlen(a)); }'
archive ends <<< '#include <cstdlib>
void f() { std::abort(); }'
archive prints <<< '#include <cstdio>
void f(int i) { std::printf("%d", i); }'
archive throws <<< 'void f() { throw 1; }'
archive exits <<< '#include <vector>
std::vector<int> v{1, 2};'
archive hooks <<< '#include <csignal>
void f() { std::signal(SIGINT, SIG_IGN); }'
archive kernel.cu <<< '#include <cstdlib>
int g(const char* a) { return std::atoi(a); }
void f() { std::atexit(f); std::exit(1); }'
archive kernel_aborts.cu <<< '#include <cstdlib>
void f() { std::atexit(f); std::abort(); }'
archive kernel_of_no.cu_at_all <<< '#include <cstdlib>
void f() { std::atexit(f); }'
"$here/imports.sh" "$nm" clean.a
"$here/imports.sh" "$nm" kernel.cu.a
expect_refusal "ends the process" "$here/imports.sh" "$nm" kernel_aborts.cu.a
expect_refusal "hooks into the process" "$here/imports.sh" "$nm" kernel_of_no.cu_at_all.a
expect_refusal "ends the process" "$here/imports.sh" "$nm" ends.a
expect_refusal "prints" "$here/imports.sh" "$nm" prints.a
expect_refusal "throws" "$here/imports.sh" "$nm" throws.a
expect_refusal "runs at exit" "$here/imports.sh" "$nm" exits.a
expect_refusal "hooks into the process" "$here/imports.sh" "$nm" hooks.a

archive ops_avx2 <<< 'int f() { return 1; }'
"$here/vector_objects.sh" "$nm" ops_avx2.a
archive ops_avx2 <<< 'inline __attribute__((noinline)) int g(int i) { return i * 3; }
int f(int i) { return g(i); }'
expect_refusal "other objects may end up calling" "$here/vector_objects.sh" "$nm" ops_avx2.a

"$here/header_rules.sh" good.h
sed 's/int32_t b/unsigned b/' good.h > type.h
sed 's/ SHARPI_NOEXCEPT//' good.h > throwing.h
sed 's/@thread any\. //' good.h > silent.h
sed 's/stddef/stdbool/' good.h > includes.h
expect_refusal "not for foreign functions" "$here/header_rules.sh" type.h
expect_refusal "without SHARPI_NOEXCEPT" "$here/header_rules.sh" throwing.h
expect_refusal "with @thread" "$here/header_rules.sh" silent.h
expect_refusal "includes:" "$here/header_rules.sh" includes.h

((failures == 0)) || exit 1
echo "every check caught its violation"
