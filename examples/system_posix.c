/* SPDX-License-Identifier: MIT */
#ifdef __linux__
#define _GNU_SOURCE /* F_SETPIPE_SZ */
#else
#define _POSIX_C_SOURCE 200809L /* fileno() beside the names of C99 alone */
#endif

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "system.h"

void start_program(int* argc, char*** argv) {
  (void)argc;
  (void)argv;
}

FILE* open_file(const char* path, const char* mode) {
  return fopen(path, mode);
}

int is_terminal(FILE* file) {
  return isatty(fileno(file));
}

void carry_bytes(FILE* file) {
  setvbuf(file, NULL, _IONBF, 0);
#ifdef F_SETPIPE_SZ
  (void)fcntl(fileno(file), F_SETPIPE_SZ, 1 << 20); /* a file is none */
#endif
}

double seconds_now(void) {
  struct timespec now = {0, 0};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

uint64_t resident_bytes(void) {
  unsigned long long pages = 0, resident = 0;
  FILE* f = fopen("/proc/self/statm", "r");
  if (f == NULL) return 0;
  const int n = fscanf(f, "%llu %llu", &pages, &resident);
  fclose(f);
  return n == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}
