// SPDX-License-Identifier: MIT
// A mark for functions that kernels and host code share in headers that any compiler reads.
// Thread rule: none.
#pragma once

#ifdef __CUDACC__
#define SHARPI_HOST_DEVICE __host__ __device__
#else
#define SHARPI_HOST_DEVICE
#endif
