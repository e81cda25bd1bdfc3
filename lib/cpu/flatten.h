// SPDX-License-Identifier: MIT
// Macros for how far kernels are inlined and unrolled. Normally the inner part of a kernel is
// inlined into its caller and its loops over rows and vectors are unrolled, so that sums stay in
// registers. A build with sanitizers checks every load and store of such unrolled code; there the
// same code stays a function with loops, which compiles fifty times as fast and computes the same
// bits.
#pragma once

#if defined(SHARPI_SANITIZED)
#define SHARPI_FLATTEN [[gnu::noinline]]
#define SHARPI_UNROLL(n)
#else
#define SHARPI_FLATTEN [[gnu::always_inline]] inline
#define SHARPI_PRAGMA(text) _Pragma(#text)
#define SHARPI_UNROLL(n) SHARPI_PRAGMA(GCC unroll n)
#endif
