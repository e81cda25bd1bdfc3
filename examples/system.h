/* SPDX-License-Identifier: MIT */
/* What the example programs ask of the system; texts are UTF-8 on every one. system_posix.c and
 * system_windows.c have the functions. */
#ifndef SHARPI_EXAMPLES_SYSTEM_H_
#define SHARPI_EXAMPLES_SYSTEM_H_

#include <stdint.h>
#include <stdio.h>

/* First in main(): arguments as UTF-8, output as it is written. */
void start_program(int* argc, char*** argv);
/* fopen() of a path in UTF-8. */
FILE* open_file(const char* path, const char* mode);
int is_terminal(FILE* file);
/* Physical memory of the process; 0 where the system does not say. */
uint64_t resident_bytes(void);

#endif
