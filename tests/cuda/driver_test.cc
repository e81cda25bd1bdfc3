// SPDX-License-Identifier: MIT
// Which drivers a build runs with, and what it says of the others; what errors of a device mean. No
// device is needed.
#include "cuda/driver.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "cuda/device.h"

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

/// Memory that a launch lacks was reported as a fault of the device.
TEST(DeviceErrors, NoMemoryIsNoFault) {
  const Device device(0, 1);
  const Status lacks = device.settle(
      Status::native_error(Code::kDevice, cudaErrorMemoryAllocation, "kernel x was not launched"));
  EXPECT_EQ(lacks.code(), Code::kOutOfMemory);
  EXPECT_EQ(lacks.native(), cudaErrorMemoryAllocation);
  EXPECT_EQ(lacks.text(), "kernel x was not launched");
  EXPECT_EQ(device.check(cudaErrorMemoryAllocation, "rows").text(), "there is no memory for rows");
  EXPECT_TRUE(device.usable().is_ok());
}

/// Some stay: every later call would fail. A device that others have for themselves is none of
/// them.
TEST(DeviceErrors, FaultsThatStayLoseTheDevice) {
  for (const int native : {220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911}) {
    const Device device(0, 1);
    const Status lost =
        device.settle(Status::native_error(Code::kDevice, native, "kernel x failed"));
    EXPECT_EQ(lost.code(), Code::kDeviceLost) << native;
    EXPECT_EQ(lost.text(), "device 1 is lost: kernel x failed");
    EXPECT_EQ(device.usable().code(), Code::kDeviceLost);
  }
  for (const int native : {1, 46, 600, 801, 900}) {
    const Device device(0, 1);
    EXPECT_EQ(device.settle(Status::native_error(Code::kDevice, native, "x")).code(), Code::kDevice)
        << native;
    EXPECT_TRUE(device.usable().is_ok());
  }
}

}  // namespace
}  // namespace sharpi::cuda
