/* SPDX-License-Identifier: MIT
 * python.exe for a folder that has python3XX.dll beside it (tools/setup/python_windows.sh): PYTHON_DLL is its name. */
#include <stdio.h>
#include <windows.h>

int wmain(int argc, wchar_t** argv) {
  HMODULE python = LoadLibraryW(PYTHON_DLL);
  if (python == NULL) {
    fprintf(stderr, "Python's library does not load: error %lu\n", GetLastError());
    return 125;
  }
  int (*run)(int, wchar_t**) = (int (*)(int, wchar_t**))(void*)GetProcAddress(python, "Py_Main");
  return run == NULL ? 125 : run(argc, argv);
}
