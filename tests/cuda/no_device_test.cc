// SPDX-License-Identifier: MIT
// A machine without a driver or device of a GPU: the library loads, the host computes, and a GPU is
// refused by name. Devices are hidden from this program, so it says the same on every machine.
#include <cstdlib>

#include "engine/engine_case.h"

namespace sharpi::testing {
namespace {

class NoDevice : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    for (const char* name : {"VK_DRIVER_FILES", "VK_ICD_FILENAMES"}) setenv(name, "/none", 1);
  }
  const MadeModel file_{test::tiny_qwen3()};
  const ContextPtr context_ = make_context({});

  sharpi_status plan(Edit edit, sharpi_plan_summary* info, std::string* text) const {
    PlanPtr plan;
    sharpi_error e = SHARPI_ERROR_INIT;
    const sharpi_status s =
        try_plan(context_.get(), file_.path(), setup_with(std::move(edit)), &plan, &e);
    *text = e.text;
    info->struct_size = sizeof *info;
    if (plan) {
      EXPECT_EQ(sharpi_plan_info(plan.get(), info, &e), SHARPI_OK) << text_of(e);
    }
    return s;
  }
};

TEST_F(NoDevice, TheHostIsTheOnlyDevice) {
  sharpi_device device{};
  device.struct_size = sizeof device;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_device_info(context_.get(), 0, 0, &device, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(device.n_devices, 1u);
  EXPECT_EQ(device.tier, SHARPI_TIER_CPU);
  EXPECT_EQ(sharpi_device_info(context_.get(), 1, 0, &device, &e), SHARPI_E_NOT_FOUND);
  EXPECT_NE(std::string(e.text).find("no GPU"), std::string::npos) << e.text;
}

TEST_F(NoDevice, BlocksOnAGpuAreRefusedByName) {
  sharpi_plan_summary info{};
  std::string text;
  const Edit wishes[] = {
      [](sharpi_plan_params* p, sharpi_session_params*) { p->n_gpu_layers = 2; },
      [](sharpi_plan_params* p, sharpi_session_params*) { p->n_gpu_ffn = 2, p->n_gpu_layers = -1; },
      [](sharpi_plan_params* p, sharpi_session_params*) { p->device = 1, p->n_gpu_layers = -1; },
      [](sharpi_plan_params* p, sharpi_session_params*) { p->gpu_ends = 1, p->n_gpu_layers = -1; },
  };
  for (const Edit& wish : wishes) {
    EXPECT_EQ(plan(wish, &info, &text), SHARPI_E_UNSUPPORTED);
    EXPECT_NE(text.find("no GPU ("), std::string::npos) << "it says why: " << text;
  }
}

TEST_F(NoDevice, AnAutomaticPlacementTakesTheHost) {
  sharpi_plan_summary info{};
  std::string text;
  ASSERT_EQ(plan([](sharpi_plan_params* p, sharpi_session_params*) { p->n_gpu_layers = -1; }, &info,
                 &text),
            SHARPI_OK)
      << text;
  EXPECT_EQ(info.n_gpu_layers, 0u);
  EXPECT_EQ(info.device_held_bytes, 0u);
  EXPECT_GT(info.host_held_bytes, 0u);
}

/// Tests of a GPU are skipped for these reasons and no others.
TEST(SkippedTests, AGpuThatDoesNotWorkIsNotAbsent) {
  for (const char* absent : {"no GPU (this build has no GPU tier)",
                             "no GPU (CUDA: libsharpi-cuda.so is not beside the library)",
                             "no GPU (CUDA: no NVIDIA driver is installed)",
                             "there is no GPU (the NVIDIA driver sees no device)"}) {
    EXPECT_TRUE(says_no_gpu(absent)) << absent;
  }
  for (const char* broken :
       {"no GPU", "no GPU (CUDA: the NVIDIA driver reports cudaErrorUnknown)",
        "no GPU (CUDA: the NVIDIA driver is for CUDA 12.2; this build needs one for 12.4)",
        "no GPU (CUDA: Tesla V100 has compute capability 70 / 10; at least 8.0 is needed)",
        "no GPU (CUDA: libsharpi-cuda.so is of build 1.0.0-a, this library of build "
        "1.0.0-b)",
        "no GPU (CUDA: libsharpi-cuda.so cannot be loaded: file too short)",
        "device 1 is lost: cudaErrorLaunchFailure"}) {
    EXPECT_FALSE(says_no_gpu(broken)) << broken;
  }
}

}  // namespace
}  // namespace sharpi::testing
