// SPDX-License-Identifier: MIT
// How a benchmark ends that cannot measure: a sentence on stderr that begins with its name
// (SHARPI_BENCH_NAME, of CMake), and exit status 2. Thread rule: any thread.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "sharpi.h"

namespace sharpi::bench {

[[noreturn]] inline void die(const std::string& what) {
  std::fprintf(stderr, SHARPI_BENCH_NAME ": %s\n", what.c_str());
  std::exit(2);
}

/// Dies of every status but OK, with what `what` names and the error says.
inline void must(sharpi_status status, const sharpi_error& err, const char* what) {
  if (status == SHARPI_OK) return;
  die(std::string(what) + ": " + sharpi_status_name(status) + ": " + err.text);
}

}  // namespace sharpi::bench
