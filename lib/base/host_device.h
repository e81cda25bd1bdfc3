// SPDX-License-Identifier: MIT
// A mark for functions that kernels and host code share in headers that any compiler reads.
// Thread rule: none.
#pragma once

#ifdef __CUDACC__
#define SHARPI_HOST_DEVICE __host__ __device__
// Before a template that calls what it is given, functions of either side.
#define SHARPI_CALLS_EITHER_SIDE _Pragma("nv_exec_check_disable")
#else
#define SHARPI_HOST_DEVICE
#define SHARPI_CALLS_EITHER_SIDE
#endif
