// SPDX-License-Identifier: MIT
// A mark for functions that kernels and host code share in headers that any compiler reads.
// Thread rule: none.
#pragma once

#ifdef __CUDACC__
#define SHARPI_HOST_DEVICE __host__ __device__
// Stands in front of a template that calls a function object, which may be one of the host or one
// of the device: nvcc does not check which.
#define SHARPI_CALLS_EITHER_SIDE _Pragma("nv_exec_check_disable")
#else
#define SHARPI_HOST_DEVICE
#define SHARPI_CALLS_EITHER_SIDE
#endif
