// SPDX-License-Identifier: MIT
// What the kernels' launches ask of a device, held against what devices have. Host code alone: this
// runs where there is neither a device nor a CUDA compiler.
#include <gtest/gtest.h>

#include "cuda/kernels/attention_ring_plan.h"

namespace sharpi::testing {
namespace {

using cuda::split::ring_form;
using cuda::split::RingForm;

constexpr KvDtype kCodecs[] = {KvDtype::kF32, KvDtype::kBf16, KvDtype::kQ8_0};
constexpr uint32_t kHeadDims[] = {64, 80, 96, 128, 256, 512};
constexpr uint32_t kSharedBytes[] = {101376, 166912, 232448};  // of a block, 8.0 to 12.1

/// f32 rows of heads of 128 and more did not fit in 99 KiB: two stages are 128 KiB.
TEST(Launches, RingsOfAttentionFitEveryDevice) {
  for (const uint32_t shared : kSharedBytes) {
    for (const uint32_t dim : kHeadDims) {
      for (const KvDtype k : kCodecs) {
        for (const KvDtype v : kCodecs) {
          const RingForm f = ring_form(shared, k, v, dim);
          EXPECT_GE(f.n_stages, 1u) << shared << " bytes, heads of " << dim;
          EXPECT_LE(f.all_bytes(), shared) << "heads of " << dim << ", codecs "
                                           << static_cast<int>(k) << ", " << static_cast<int>(v);
          EXPECT_LE(f.blocks_per_sm * (f.all_bytes() + 1024), shared + 1024)
              << "heads of " << dim << ": a multiprocessor has 1 KiB more than a block may";
        }
      }
    }
  }
}

TEST(Launches, RingsKeepTheirStagesWhereThereIsRoom) {
  EXPECT_EQ(ring_form(232448, KvDtype::kF32, KvDtype::kF32, 128).n_stages, 3u);
  EXPECT_EQ(ring_form(232448, KvDtype::kBf16, KvDtype::kBf16, 128).n_stages, 3u);
  EXPECT_EQ(ring_form(232448, KvDtype::kBf16, KvDtype::kBf16, 128).blocks_per_sm, 2u);
  EXPECT_EQ(ring_form(232448, KvDtype::kQ8_0, KvDtype::kQ8_0, 256).n_stages, 4u);
  EXPECT_EQ(ring_form(101376, KvDtype::kF32, KvDtype::kF32, 128).n_stages, 1u);
  EXPECT_EQ(ring_form(101376, KvDtype::kBf16, KvDtype::kBf16, 256).n_stages, 2u);
  EXPECT_EQ(ring_form(101376, KvDtype::kF32, KvDtype::kQ8_0, 512).n_stages, 2u);
  EXPECT_EQ(ring_form(49152, KvDtype::kF32, KvDtype::kF32, 128).n_stages, 0u);
}

}  // namespace
}  // namespace sharpi::testing
