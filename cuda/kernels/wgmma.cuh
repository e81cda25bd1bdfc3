// SPDX-License-Identifier: MIT
// Warpgroup products of Hopper (sm_90a): 64 rows of W from registers times rows of x that lie in
// shared memory as blocks of 64 columns with the 128-byte swizzle.
// Thread rule: device code.
#pragma once

#include <cstdint>

namespace sharpi::cuda {

// Four rows of sums as operands, and their numbers in the instruction's text.
#define SHARPI_SUMS_ROW(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define SHARPI_SUMS(d, i)                                                          \
  SHARPI_SUMS_ROW(d, i), SHARPI_SUMS_ROW(d, (i) + 1), SHARPI_SUMS_ROW(d, (i) + 2), \
      SHARPI_SUMS_ROW(d, (i) + 3)
#define SHARPI_SUMS_0                \
  "%0, %1, %2, %3, %4, %5, %6, %7, " \
  "%8, %9, %10, %11, %12, %13, %14, %15"
#define SHARPI_SUMS_16                       \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define SHARPI_SUMS_32                       \
  "%32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47"
#define SHARPI_SUMS_48                       \
  "%48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define SHARPI_SUMS_64                       \
  "%64, %65, %66, %67, %68, %69, %70, %71, " \
  "%72, %73, %74, %75, %76, %77, %78, %79"
#define SHARPI_SUMS_80                       \
  "%80, %81, %82, %83, %84, %85, %86, %87, " \
  "%88, %89, %90, %91, %92, %93, %94, %95"
#define SHARPI_SUMS_96                           \
  "%96, %97, %98, %99, %100, %101, %102, %103, " \
  "%104, %105, %106, %107, %108, %109, %110, %111"
#define SHARPI_SUMS_112                              \
  "%112, %113, %114, %115, %116, %117, %118, %119, " \
  "%120, %121, %122, %123, %124, %125, %126, %127"

/// Registers written since the last product become visible to the next ones.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Where 16 rows lie whose columns are contiguous: blocks of 64 columns with the 128-byte swizzle,
/// `block_bytes` apart, aligned to 1024. 16 rows further on: + 128.
__device__ __forceinline__ uint64_t wgmma_columns(uint32_t shared_address, uint32_t block_bytes) {
  return static_cast<uint64_t>((shared_address & 0x3FFFFu) >> 4) |
         (static_cast<uint64_t>(block_bytes >> 4) << 16) | (uint64_t{64} << 32) |
         (uint64_t{1} << 62);
}
/// Where the rows of x are: K-major, groups of eight rows 1024 bytes apart, aligned to 1024. 16
/// columns further on: + 2.
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t shared_address) {
  return wgmma_columns(shared_address, 16);  // one block: how far apart they lie is not read
}

/// d += a (64 x 16 over the warpgroup) * b (16 x 64); kDims: the 64 columns of b
/// are contiguous.
template <bool kDims>
__device__ __forceinline__ void wgmma_64(float (*d)[4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SHARPI_SUMS_0
               ", " SHARPI_SUMS_16 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;\n"
               : SHARPI_SUMS(d, 0), SHARPI_SUMS(d, 4)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kDims ? 1 : 0));
}
/// The first kN rows of x: d += a (64 x 16 over the warpgroup) * b (16 x kN).
template <uint32_t kN>
__device__ __forceinline__ void wgmma_f16(float (*d)[4], const uint32_t (&a)[4], uint64_t b);
template <>
__device__ __forceinline__ void wgmma_f16<32>(float (*d)[4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {" SHARPI_SUMS_0
               "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;\n"
               : SHARPI_SUMS(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma_f16<64>(float (*d)[4], const uint32_t (&a)[4], uint64_t b) {
  wgmma_64<false>(d, a, b);
}
template <>
__device__ __forceinline__ void wgmma_f16<96>(float (*d)[4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {" SHARPI_SUMS_0
               ", " SHARPI_SUMS_16 ", " SHARPI_SUMS_32 "}, {%48, %49, %50, %51}, %52, 1, 1, 1, 0;\n"
               : SHARPI_SUMS(d, 0), SHARPI_SUMS(d, 4), SHARPI_SUMS(d, 8)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma_f16<128>(float (*d)[4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SHARPI_SUMS_0
               ", " SHARPI_SUMS_16 ", " SHARPI_SUMS_32 ", " SHARPI_SUMS_48
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;\n"
               : SHARPI_SUMS(d, 0), SHARPI_SUMS(d, 4), SHARPI_SUMS(d, 8), SHARPI_SUMS(d, 12)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma_f16<160>(float (*d)[4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n160k16.f32.f16.f16 {" SHARPI_SUMS_0
               ", " SHARPI_SUMS_16 ", " SHARPI_SUMS_32 ", " SHARPI_SUMS_48 ", " SHARPI_SUMS_64
               "}, {%80, %81, %82, %83}, %84, 1, 1, 1, 0;\n"
               : SHARPI_SUMS(d, 0), SHARPI_SUMS(d, 4), SHARPI_SUMS(d, 8), SHARPI_SUMS(d, 12),
                 SHARPI_SUMS(d, 16)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma_f16<192>(float (*d)[4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 {" SHARPI_SUMS_0
               ", " SHARPI_SUMS_16 ", " SHARPI_SUMS_32 ", " SHARPI_SUMS_48 ", " SHARPI_SUMS_64
               ", " SHARPI_SUMS_80 "}, {%96, %97, %98, %99}, %100, 1, 1, 1, 0;\n"
               : SHARPI_SUMS(d, 0), SHARPI_SUMS(d, 4), SHARPI_SUMS(d, 8), SHARPI_SUMS(d, 12),
                 SHARPI_SUMS(d, 16), SHARPI_SUMS(d, 20)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma_f16<256>(float (*d)[4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" SHARPI_SUMS_0
               ", " SHARPI_SUMS_16 ", " SHARPI_SUMS_32 ", " SHARPI_SUMS_48 ", " SHARPI_SUMS_64
               ", " SHARPI_SUMS_80 ", " SHARPI_SUMS_96 ", " SHARPI_SUMS_112
               "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 0;\n"
               : SHARPI_SUMS(d, 0), SHARPI_SUMS(d, 4), SHARPI_SUMS(d, 8), SHARPI_SUMS(d, 12),
                 SHARPI_SUMS(d, 16), SHARPI_SUMS(d, 20), SHARPI_SUMS(d, 24), SHARPI_SUMS(d, 28)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/// d += a (64 x 16) * b (16 x kN), both from shared memory.
template <uint32_t kN>
__device__ __forceinline__ void wgmma_f16_shared(float (*d)[4], uint64_t a, uint64_t b);
template <>
__device__ __forceinline__ void wgmma_f16_shared<16>(float (*d)[4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7 "
      "}, %8, %9, 1, 1, 1, 0, 0;\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3])
      : "l"(a), "l"(b));
}
template <>
__device__ __forceinline__ void wgmma_f16_shared<32>(float (*d)[4], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {" SHARPI_SUMS_0
               "}, %16, %17, 1, 1, 1, 0, 0;\n"
               : SHARPI_SUMS(d, 0)
               : "l"(a), "l"(b));
}

/// d = a (64 x 16) * b (16 x 128) of bf16, both from shared memory, columns next to each other;
/// added to d if `add`.
__device__ __forceinline__ void wgmma_bf16_shared(float (*d)[4], uint64_t a, uint64_t b,
                                                  uint32_t add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SHARPI_SUMS_0 ", " SHARPI_SUMS_16
      ", " SHARPI_SUMS_32 ", " SHARPI_SUMS_48 "}, %64, %65, add, 1, 1, 0, 0;\n}\n"
      : SHARPI_SUMS(d, 0), SHARPI_SUMS(d, 4), SHARPI_SUMS(d, 8), SHARPI_SUMS(d, 12)
      : "l"(a), "l"(b), "r"(add));
}

/// The same of 64 columns.
__device__ __forceinline__ void wgmma_bf16_shared_64(float (*d)[4], uint64_t a, uint64_t b,
                                                     uint32_t add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SHARPI_SUMS_0 ", " SHARPI_SUMS_16
      "}, %32, %33, add, 1, 1, 0, 0;\n}\n"
      : SHARPI_SUMS(d, 0), SHARPI_SUMS(d, 4)
      : "l"(a), "l"(b), "r"(add));
}

/// d = a (64 x 16) * b (16 x kN), both from shared memory, K-major; added to d if `add`.
template <uint32_t kN>
__device__ __forceinline__ void wgmma_f16_shared(float (*d)[4], uint64_t a, uint64_t b,
                                                 uint32_t add) {
  static_assert(kN == 64 || kN == 128);
  if constexpr (kN == 64) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SHARPI_SUMS_0 ", " SHARPI_SUMS_16
        "}, %32, %33, add, 1, 1, 0, 0;\n}\n"
        : SHARPI_SUMS(d, 0), SHARPI_SUMS(d, 4)
        : "l"(a), "l"(b), "r"(add));
  } else {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SHARPI_SUMS_0 ", " SHARPI_SUMS_16
        ", " SHARPI_SUMS_32 ", " SHARPI_SUMS_48 "}, %64, %65, add, 1, 1, 0, 0;\n}\n"
        : SHARPI_SUMS(d, 0), SHARPI_SUMS(d, 4), SHARPI_SUMS(d, 8), SHARPI_SUMS(d, 12)
        : "l"(a), "l"(b), "r"(add));
  }
}

/// d += a (64 x 16 over the warpgroup) * b (16 x kN), the columns of b contiguous
/// (wgmma_columns()).
template <uint32_t kN>
__device__ __forceinline__ void wgmma_f16_columns(float (*d)[4], const uint32_t (&a)[4],
                                                  uint64_t b) {
  static_assert(kN == 64 || kN == 128 || kN == 256);
  if constexpr (kN == 64) {
    wgmma_64<true>(d, a, b);
  } else if constexpr (kN == 128) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SHARPI_SUMS_0
                 ", " SHARPI_SUMS_16 ", " SHARPI_SUMS_32 ", " SHARPI_SUMS_48
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
                 : SHARPI_SUMS(d, 0), SHARPI_SUMS(d, 4), SHARPI_SUMS(d, 8), SHARPI_SUMS(d, 12)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" SHARPI_SUMS_0
                 ", " SHARPI_SUMS_16 ", " SHARPI_SUMS_32 ", " SHARPI_SUMS_48 ", " SHARPI_SUMS_64
                 ", " SHARPI_SUMS_80 ", " SHARPI_SUMS_96 ", " SHARPI_SUMS_112
                 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;\n"
                 : SHARPI_SUMS(d, 0), SHARPI_SUMS(d, 4), SHARPI_SUMS(d, 8), SHARPI_SUMS(d, 12),
                   SHARPI_SUMS(d, 16), SHARPI_SUMS(d, 20), SHARPI_SUMS(d, 24), SHARPI_SUMS(d, 28)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}

/// Nothing that reads or writes these sums moves over this point.
template <int kN>
__device__ __forceinline__ void wgmma_hold(float (&d)[kN][4]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
  }
}

#undef SHARPI_SUMS
#undef SHARPI_SUMS_ROW
#undef SHARPI_SUMS_0
#undef SHARPI_SUMS_16
#undef SHARPI_SUMS_32
#undef SHARPI_SUMS_48
#undef SHARPI_SUMS_64
#undef SHARPI_SUMS_80
#undef SHARPI_SUMS_96
#undef SHARPI_SUMS_112

}  // namespace sharpi::cuda
