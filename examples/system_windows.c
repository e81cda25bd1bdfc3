/* SPDX-License-Identifier: MIT */
#include "system.h"

#define WIN32_LEAN_AND_MEAN
/* clang-format off: this header comes before those that need it */
#include <windows.h>
/* clang-format on */
#include <fcntl.h>
#include <io.h>
#include <psapi.h>
#include <shellapi.h>
#include <stdlib.h>

static char* utf8_of(const wchar_t* text) {
  const int n = WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL);
  char* out = malloc((size_t)n + 1);
  if (out != NULL) WideCharToMultiByte(CP_UTF8, 0, text, -1, out, n, NULL, NULL);
  return out;
}

static wchar_t* wide_of(const char* text) {
  const int n = MultiByteToWideChar(CP_UTF8, 0, text, -1, NULL, 0);
  wchar_t* out = malloc(((size_t)n + 1) * sizeof(wchar_t));
  if (out != NULL) MultiByteToWideChar(CP_UTF8, 0, text, -1, out, n);
  return out;
}

/* The console is the host's, and has the code page that it had when the program ends. */
static UINT console_code_page;
static void restore_console(void) {
  SetConsoleOutputCP(console_code_page);
}

/* The run-time library gives arguments in the code page of the process, where not all can be said.
 */
void start_program(int* argc, char*** argv) {
  console_code_page = GetConsoleOutputCP();
  if (console_code_page != 0 && SetConsoleOutputCP(CP_UTF8)) atexit(restore_console);
  _setmode(_fileno(stdout), _O_BINARY); /* a line ends as it is written */
  int n = 0;
  wchar_t** wide = CommandLineToArgvW(GetCommandLineW(), &n);
  char** all = wide == NULL ? NULL : calloc((size_t)n + 1, sizeof(char*));
  if (all == NULL) return;
  for (int i = 0; i < n; ++i) {
    all[i] = utf8_of(wide[i]);
    if (all[i] == NULL) return;
  }
  LocalFree(wide);
  *argc = n;
  *argv = all;
}

FILE* open_file(const char* path, const char* mode) {
  wchar_t *wide_path = wide_of(path), *wide_mode = wide_of(mode);
  FILE* file = wide_path != NULL && wide_mode != NULL ? _wfopen(wide_path, wide_mode) : NULL;
  free(wide_path);
  free(wide_mode);
  return file;
}

int is_terminal(FILE* file) {
  return _isatty(_fileno(file));
}

void carry_bytes(FILE* file) {
  _setmode(_fileno(file), _O_BINARY);
  setvbuf(file, NULL, _IONBF, 0);
}

double seconds_now(void) {
  LARGE_INTEGER now, rate;
  QueryPerformanceCounter(&now);
  QueryPerformanceFrequency(&rate);
  return (double)now.QuadPart / (double)rate.QuadPart;
}

uint64_t resident_bytes(void) {
  PROCESS_MEMORY_COUNTERS now = {.cb = sizeof now};
  return GetProcessMemoryInfo(GetCurrentProcess(), &now, sizeof now) ? now.WorkingSetSize : 0;
}
