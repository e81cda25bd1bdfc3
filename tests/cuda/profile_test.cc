// SPDX-License-Identifier: MIT
// Which code of a build runs on which device, what a device has then, and cards that are pretended.
// Host code alone.
#include <gtest/gtest.h>

#include "cuda/kernels/device_profile.h"

namespace sharpi::testing {
namespace {

using cuda::code_for;
using cuda::DeviceProfile;

/// What the build makes by default (cuda/tier.cmake).
constexpr const char* kAll = "80-real,86-real,89-real,90-real,100-real,120";

TEST(Profile, MachineCodeOfTheMajorVersionRuns) {
  EXPECT_EQ(code_for(kAll, 80), 80);
  EXPECT_EQ(code_for(kAll, 86), 86);
  EXPECT_EQ(code_for(kAll, 87), 86);  // Orin
  EXPECT_EQ(code_for(kAll, 89), 89);
  EXPECT_EQ(code_for(kAll, 90), 90);
  EXPECT_EQ(code_for(kAll, 103), 100);  // B300
  EXPECT_EQ(code_for(kAll, 121), 120);  // GB10
}

TEST(Profile, LaterDevicesRunFromPtxOrNotAtAll) {
  EXPECT_EQ(code_for(kAll, 130), 120);
  EXPECT_EQ(code_for("80-real,90-real", 130), 0);
  EXPECT_EQ(code_for("90", 100), 90);
  EXPECT_EQ(code_for("89-virtual", 90), 89);
  EXPECT_EQ(code_for("89-virtual", 86), 0);
  EXPECT_EQ(code_for(kAll, 110), 0);  // between 10.0 and PTX of 12.0
  EXPECT_EQ(code_for("90a-real", 90), 90);
  EXPECT_EQ(code_for("90a", 100), 0);  // an architecture's own features are nobody else's
  EXPECT_EQ(code_for("native", 86), 86);
}

TEST(Profile, ADeviceWithoutCodeIsRefusedByName) {
  const auto text = [](const char* list, int capability) {
    const Result<int> code = cuda::code_of_device("Some Card", list, capability);
    EXPECT_EQ(code.status().code(), Code::kUnsupported);
    return code.status().text();
  };
  EXPECT_EQ(text("80-real,90-real", 130),
            "Some Card has compute capability 13.0, but this build has machine code of 8.0, 9.0");
  EXPECT_EQ(text("80-real,120", 75),
            "Some Card has compute capability 7.5; at least 8.0 is needed");
  EXPECT_EQ(
      text(kAll, 110),
      "Some Card has compute capability 11.0, but this build has machine code of 8.0, 8.6, 8.9, "
      "9.0, 10.0, 12.0 and PTX of 12.0");
  EXPECT_EQ(cuda::code_of_device("Some Card", kAll, 130).value(), 120);
}

TEST(Profile, OldCodeOnANewDeviceHasWhatTheCodeHas) {
  DeviceProfile p = cuda::find_card("9.0")->profile;
  cuda::set_features(89, false, &p);
  EXPECT_FALSE(p.bulk_copies || p.pdl || p.wgmma);
  cuda::set_features(90, true, &p);
  EXPECT_TRUE(p.bulk_copies && p.pdl && p.wgmma);
  p = cuda::find_card("12.0")->profile;
  cuda::set_features(90, true, &p);
  EXPECT_TRUE(p.bulk_copies && p.pdl);
  EXPECT_FALSE(p.wgmma);  // Hopper's own
}

TEST(Profile, CardsAreWhatTheirVendorsSay) {
  for (int i = 0; i < cuda::kNamedCards; ++i) {
    const cuda::NamedCard& c = cuda::named_card(i);
    EXPECT_EQ(cuda::find_card(c.name), &c);
    EXPECT_EQ(std::stod(c.name) * 10, c.profile.capability);
    EXPECT_EQ(c.profile.registers_per_sm, 65536);
  }
  EXPECT_EQ(cuda::find_card("8.9")->profile.shared_per_block, 101376);
  EXPECT_EQ(cuda::find_card("8.0")->profile.shared_per_block, 166912);
  EXPECT_EQ(cuda::find_card("9.0")->profile.shared_per_block, 232448);
  EXPECT_EQ(cuda::find_card("7.5"), nullptr);
}

TEST(Profile, APretendedCardHasNoMoreThanTheRealOne) {
  const DeviceProfile& h200 = cuda::find_card("9.0")->profile;
  DeviceProfile ada = cuda::find_card("8.9")->profile;
  DeviceProfile p = cuda::pretended_as(ada, h200, 89);
  EXPECT_EQ(p.capability, 89);
  EXPECT_EQ(p.n_sm, 60);
  EXPECT_EQ(p.shared_per_block, 101376);
  EXPECT_FALSE(p.bulk_copies || p.pdl || p.wgmma);
  ada.n_sm = 0;
  EXPECT_EQ(cuda::pretended_as(ada, h200, 89).n_sm, 132);
  p = cuda::pretended_as(cuda::find_card("12.0")->profile, h200, 90);
  EXPECT_EQ(p.capability, 120);
  EXPECT_TRUE(p.bulk_copies && p.pdl);
  EXPECT_FALSE(p.wgmma);
  p = cuda::pretended_as(h200, ada, 89);  // the other way round: what is not there is not there
  EXPECT_EQ(p.shared_per_block, 101376);
  EXPECT_FALSE(p.wgmma);
}

}  // namespace
}  // namespace sharpi::testing
