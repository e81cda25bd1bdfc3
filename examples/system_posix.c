/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L /* fileno() beside the names of C99 alone */

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

uint64_t resident_bytes(void) {
  unsigned long long pages = 0, resident = 0;
  FILE* f = fopen("/proc/self/statm", "r");
  if (f == NULL) return 0;
  const int n = fscanf(f, "%llu %llu", &pages, &resident);
  fclose(f);
  return n == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}
