#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Exceptions between two libraries that each have GCC's run-time libraries inside, as in packages: what
# a module throws, and what it calls back into throws through it (let_exceptions_through() in
# lib/tier/tier_module.h). Without that function the process ends:
# exceptions.sh source-tree cxx work-folder
set -euo pipefail
export LC_ALL=C
tree=$1 cxx=$2 work=$3
rm -rf "$work"
mkdir -p "$work"
cd "$work"
cat > module.cc << 'MODULE'
#include <stdexcept>
#include <string>

#include "tier/tier_module.h"

extern "C" __attribute__((visibility("default"))) void enter(int kind, void (*back)()) {
  if (PREPARED) sharpi::let_exceptions_through();
  const std::string held(100, 'x');
  if (kind == 0) throw std::bad_alloc();
  if (kind == 1) throw std::runtime_error("the module's words");
  back();
}
MODULE
cat > core.cc << 'CORE'
#include <dlfcn.h>

#include <cstring>
#include <new>
#include <stdexcept>

#include "tier/tier_module.h"

namespace {
void out_of_memory() { throw std::bad_alloc(); }
int kind_of(void (*enter)(int, void (*)()), int kind) {
  try {
    enter(kind, &out_of_memory);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  } catch (const std::exception& e) {
    return std::strcmp(e.what(), "the module's words") == 0 ? 2 : 3;
  }
}
}  // namespace

extern "C" __attribute__((visibility("default"))) int checked() {
  if (PREPARED) sharpi::let_exceptions_through();
  void* module = dlopen("./module.so", RTLD_NOW | RTLD_LOCAL);
  const auto enter = reinterpret_cast<void (*)(int, void (*)())>(dlsym(module, "enter"));
  for (int i = 0; i < 1000; ++i) {
    if (kind_of(enter, 2) != 1 || kind_of(enter, 0) != 1 || kind_of(enter, 1) != 2) return 0;
  }
  return 1;
}
CORE
cat > host.c << 'HOST'
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
  void *core = dlopen("./core.so", RTLD_NOW | RTLD_LOCAL);
  if (!core) return puts(dlerror()), 1;
  return !((int (*)(void))dlsym(core, "checked"))();
}
HOST
"$cxx" -x c host.c -o host -ldl
make_both() {  # whether they are prepared
  for library in module core; do
    "$cxx" -std=c++20 -O1 -shared -fPIC -fvisibility=hidden -DPREPARED="$1" -I "$tree/lib" -I "$tree/include" \
      "$library.cc" -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL -o "$library.so" -ldl
  done
}
make_both true
./host || { echo "an exception did not come through"; exit 1; }
make_both false
if bash -c './host; exit $?' > /dev/null 2>&1; then
  echo "they come through unprepared, too: is let_exceptions_through() still needed?"
  exit 1
fi
echo "both ways, a thousand times; unprepared the process ends"
