// SPDX-License-Identifier: MIT
// What the kernels' launches ask of a device, held against what devices have. Host code alone: this
// runs where there is neither a device nor a CUDA compiler.
#include <gtest/gtest.h>

#include "cuda/kernels/attention_ring_plan.h"
#include "kv/codec.h"

namespace sharpi::testing {
namespace {

using cuda::split::ring_form;
using cuda::split::RingForm;

constexpr KvDtype kCodecs[] = {KvDtype::kF32, KvDtype::kBf16, KvDtype::kQ8_0};
constexpr uint32_t kHeadDims[] = {64, 80, 96, 128, 256, 512};

const cuda::DeviceProfile& profile_of(const char* name) {
  return cuda::find_card(name)->profile;
}

/// f32 rows of heads of 128 and more did not fit in 99 KiB: two stages are 128 KiB.
TEST(Launches, RingsOfAttentionFitEveryDevice) {
  for (int i = 0; i < cuda::kNamedCards; ++i) {
    const cuda::NamedCard& card = cuda::named_card(i);
    const auto block = static_cast<uint32_t>(card.profile.shared_per_block),
               sm = static_cast<uint32_t>(card.profile.shared_per_sm);
    for (const uint32_t dim : kHeadDims) {
      for (const KvDtype k : kCodecs) {
        for (const KvDtype v : kCodecs) {
          SCOPED_TRACE(std::string(card.name) + ", heads of " + std::to_string(dim) + ", " +
                       kv_dtype_name(k) + ", " + kv_dtype_name(v));
          const RingForm f = ring_form(card.profile, k, v, dim);
          EXPECT_GE(f.n_stages, 1u);
          EXPECT_LE(f.all_bytes(), block);
          EXPECT_LE(f.blocks_per_sm * (f.all_bytes() + cuda::kReservedShared), sm);
        }
      }
    }
  }
}

TEST(Launches, RingsKeepTheirStagesWhereThereIsRoom) {
  const auto stages = [](const char* card, KvDtype k, KvDtype v, uint32_t dim) {
    return ring_form(profile_of(card), k, v, dim).n_stages;
  };
  EXPECT_EQ(stages("9.0", KvDtype::kF32, KvDtype::kF32, 128), 3u);
  EXPECT_EQ(stages("9.0", KvDtype::kBf16, KvDtype::kBf16, 128), 3u);
  EXPECT_EQ(stages("9.0", KvDtype::kQ8_0, KvDtype::kQ8_0, 256), 4u);
  EXPECT_EQ(stages("8.9", KvDtype::kF32, KvDtype::kF32, 128), 1u);
  EXPECT_EQ(stages("8.9", KvDtype::kBf16, KvDtype::kBf16, 256), 2u);
  EXPECT_EQ(stages("12.0", KvDtype::kF32, KvDtype::kQ8_0, 512), 2u);
  const RingForm two = ring_form(profile_of("9.0"), KvDtype::kBf16, KvDtype::kBf16, 128);
  EXPECT_EQ(two.blocks_per_sm, 2u);
  cuda::DeviceProfile little = profile_of("8.9");
  little.shared_per_block = 48 << 10;
  EXPECT_EQ(ring_form(little, KvDtype::kF32, KvDtype::kF32, 128).n_stages, 0u);
}

}  // namespace
}  // namespace sharpi::testing
