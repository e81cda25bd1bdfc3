// SPDX-License-Identifier: MIT
// Which drivers a build runs with, and what it says of the others. No device is needed.
#include "cuda/driver.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace sharpi::cuda {
namespace {

TEST(Driver, OlderOnesAreNamedWithWhatIsNeeded) {
  EXPECT_EQ(driver_refusal(0), "no NVIDIA driver is installed");
  const std::string old = driver_refusal(12020);
  EXPECT_NE(old.find("the NVIDIA driver is for CUDA 12.2; this build needs one for CUDA "),
            std::string::npos)
      << old;
  const bool is12 = CUDART_VERSION < 13000;
  EXPECT_NE(old.find(is12 ? "12.4 (driver 550) or later" : "13.0 (driver 580) or later"),
            std::string::npos)
      << old;
  EXPECT_EQ(driver_refusal(12030).empty(), false);
  EXPECT_EQ(driver_refusal(12040).empty(), is12) << "a runtime of 13 needs a driver of 13";
  EXPECT_EQ(driver_refusal(13000), "");
  EXPECT_EQ(driver_refusal(CUDART_VERSION), "");
}

}  // namespace
}  // namespace sharpi::cuda
