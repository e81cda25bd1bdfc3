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
/* The file carries bytes: none is changed on its way, and a pipe holds as many as the system lets.
 */
void carry_bytes(FILE* file);
/* Of a clock that only goes forwards. */
double seconds_now(void);
/* Physical memory of the process; 0 where the system does not say. */
uint64_t resident_bytes(void);

#endif
