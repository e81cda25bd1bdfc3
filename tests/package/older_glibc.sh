#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What packaged libraries put in front of a newer C library's symbols (lib/older_glibc.c) does what those
# do: exceptions are caught, threads run, files are examined. And no symbol of a newer one is asked for:
# older_glibc.sh source-tree cc cxx floor-script work-folder
set -euo pipefail
export LC_ALL=C
tree=$1 cc=$2 cxx=$3 floor=$4 work=$5
rm -rf "$work"
mkdir -p "$work"
cd "$work"

cat > library.cc << 'LIBRARY'
#include <dlfcn.h>
#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

namespace {
[[gnu::noinline]] void deep(int n) {
  if (n == 0) throw std::runtime_error("caught");
  std::string held(static_cast<size_t>(n), 'x');
  deep(n - 1);
}
bool exceptions() {
  for (int i = 0; i < 100; ++i) {
    try {
      deep(20);
      return false;
    } catch (const std::exception& e) {
      if (std::string(e.what()) != "caught") return false;
    }
  }
  return true;
}
bool threads() {
  int n = 0;
  bool caught = false;
  std::once_flag once;
  std::mutex mutex;
  std::thread other([&] {
    std::call_once(once, [&] { ++n; });
    caught = exceptions();
    if (mutex.try_lock()) mutex.unlock();
    pthread_setname_np(pthread_self(), "older");
  });
  other.join();
  std::call_once(once, [&] { ++n; });
  sigset_t set;
  return n == 1 && caught && pthread_sigmask(SIG_BLOCK, nullptr, &set) == 0;
}
bool files(int file) {
  struct stat a;
  struct stat64 b;
  return fstat(file, &a) == 0 && fstat64(file, &b) == 0 && a.st_size == 12345 && b.st_size == 12345 &&
         a.st_ino == b.st_ino && fstat(-1, &a) == -1 && errno == EBADF;
}
bool libraries() {
  void* self = dlopen(nullptr, RTLD_NOW);
  const bool found = self != nullptr && dlsym(self, "malloc") != nullptr;
  return found && dlclose(self) == 0 && dlopen("no-such-library.so", RTLD_NOW) == nullptr;
}
bool numbers(double two) {
  return std::abs(std::exp(two) - 7.38905609893065) < 1e-14 && std::log(two) == 0x1.62e42fefa39efp-1 &&
         std::pow(two, 10.0) == 1024.0;
}
bool texts() { return strcmp(strerrordesc_np(ENOENT), "No such file or directory") == 0; }
}  // namespace

extern "C" __attribute__((visibility("default"))) int checked(int file, double two) {
  return exceptions() + 2 * threads() + 4 * files(file) + 8 * libraries() + 16 * numbers(two) +
         32 * texts();
}
LIBRARY
cat > host.c << 'HOST'
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
  void *library = dlopen("./library.so", RTLD_NOW);
  if (!library) return puts(dlerror()), 1;
  int (*checked)(int, double) = (int (*)(int, double))dlsym(library, "checked");
  int file = open("file", O_RDWR | O_CREAT, 0600);
  if (ftruncate(file, 12345) != 0) return 1;
  int bits = checked(file, 2.0);
  printf("%d\n", bits);
  return bits != 63;
}
HOST
"$cc" -std=gnu11 -O2 -fPIC -fno-builtin -Wall -Wextra -Werror -c "$tree/lib/older_glibc.c" -o older.o
"$cxx" -std=c++20 -O2 -fPIC -fvisibility=hidden -fno-builtin -c library.cc -o library.o
echo 'V { global: checked; local: *; };' > map
"$cxx" -shared -static-libstdc++ -static-libgcc library.o older.o -Wl,--version-script=map \
  -Wl,--gc-sections -Wl,-z,defs -o library.so
"$cc" host.c -o host -ldl
./host || { echo "not all bits are set (63): exceptions, threads, files, libraries, numbers, texts"; exit 1; }
"$floor" library.so

# Without it the same library asks for more, and that is noticed.
"$cxx" -shared -static-libstdc++ -static-libgcc library.o -Wl,--version-script=map -Wl,--gc-sections \
  -o newer.so
if ldd --version | head -n 1 | awk '{ exit !($NF >= 2.34) }' && "$floor" newer.so > /dev/null; then
  echo "symbols of this machine's C library were not noticed"
  exit 1
fi
