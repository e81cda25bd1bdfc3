// SPDX-License-Identifier: MIT
// What every check program of the kernels begins with. Thread rule: one thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace sharpi::cuda::check {

/// Ends the program with 77, CTest's sign of a skipped test, where there is no driver or no device;
/// every other fault shows in what follows. First in each program's main().
inline void require_device() {
  int driver = 0, n = 0;
  const bool absent = cudaDriverGetVersion(&driver) == cudaSuccess &&
                      (driver == 0 || cudaGetDeviceCount(&n) == cudaErrorNoDevice);
  if (!absent) return;
  const char* required = std::getenv("SHARPI_TEST_REQUIRE_GPU");
  const bool fails = required != nullptr && std::string(required) == "1";
  std::printf("%s: no CUDA device\n", fails ? "FATAL" : "skipped as a whole");
  std::exit(fails ? 1 : 77);
}

}  // namespace sharpi::cuda::check
