// SPDX-License-Identifier: MIT
// CUDA's handle of a stream, declared as its own headers do, so that headers of kernels can be read
// where there is no CUDA. Thread rule: none.
#pragma once

struct CUstream_st;
using cudaStream_t = CUstream_st*;
