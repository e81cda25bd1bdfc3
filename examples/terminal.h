/* SPDX-License-Identifier: MIT */
/* Input of a talk, with Ctrl-C beside it; text is UTF-8 on every system. terminal_posix.c and
 * terminal_windows.c have the functions. */
#ifndef SHARPI_EXAMPLES_TERMINAL_H_
#define SHARPI_EXAMPLES_TERMINAL_H_

/* What next_byte() gives for a Ctrl-C while it waits. */
enum { kInterrupted = -2 };

/* From now on Ctrl-C calls stop(), as a signal or on a thread of its own. Where that stops nothing
 * and says 0, it is for who waits for a key. 0, or -1 with a sentence on stderr. */
int catch_interrupts(int (*stop)(void));
/* The next byte of the input, EOF, or kInterrupted. */
int next_byte(void);

#endif
