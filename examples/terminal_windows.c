/* SPDX-License-Identifier: MIT */
#include "terminal.h"

#define WIN32_LEAN_AND_MEAN
/* clang-format off: this header comes before those that need it */
#include <windows.h>
/* clang-format on */
#include <stdio.h>

static int (*stop_what_runs)(void);

/* On a thread of its own. Where nothing runs and keys come from a console, its reader is told by
 * the system; else the program ends, as any does. */
static BOOL WINAPI on_interrupt(DWORD event) {
  if (event != CTRL_C_EVENT) return FALSE;
  DWORD mode;
  return stop_what_runs() || GetConsoleMode(GetStdHandle(STD_INPUT_HANDLE), &mode);
}

int catch_interrupts(int (*stop)(void)) {
  stop_what_runs = stop;
  if (SetConsoleCtrlHandler(on_interrupt, TRUE)) return 0;
  fprintf(stderr, "Ctrl-C cannot be caught: error %lu\n", GetLastError());
  return -1;
}

/* A line of a console as UTF-8; its length, EOF, or kInterrupted. */
static int read_console(HANDLE console, char* bytes, int room) {
  static wchar_t kept; /* the first half of a character whose second is not read yet */
  wchar_t text[1024];
  DWORD n = 0, first = 0;
  if (kept != 0) text[first++] = kept;
  kept = 0;
  SetLastError(0);
  if (!ReadConsoleW(console, text + first, 1000, &n, NULL)) return EOF;
  if (n == 0) return GetLastError() == ERROR_OPERATION_ABORTED ? kInterrupted : EOF;
  n += first;
  if (text[0] == 26) return EOF; /* Ctrl-Z */
  if (text[n - 1] >= 0xD800 && text[n - 1] < 0xDC00) kept = text[--n];
  return WideCharToMultiByte(CP_UTF8, 0, text, (int)n, bytes, room, NULL, NULL);
}

/* Lines end with a line feed alone. */
int next_byte(void) {
  static char bytes[4096];
  static int n, at;
  for (;;) {
    while (at >= n) {
      const HANDLE input = GetStdHandle(STD_INPUT_HANDLE);
      DWORD mode, got = 0;
      at = 0;
      if (GetConsoleMode(input, &mode)) {
        n = read_console(input, bytes, sizeof bytes);
        if (n >= 0) continue;
        const int said = n;
        n = 0;
        return said;
      }
      if (!ReadFile(input, bytes, sizeof bytes, &got, NULL) || got == 0) return EOF;
      n = (int)got;
    }
    const int byte = (unsigned char)bytes[at++];
    if (byte != '\r') return byte;
  }
}
