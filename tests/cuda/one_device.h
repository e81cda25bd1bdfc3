// SPDX-License-Identifier: MIT
// The device of a test on a GPU, and contexts that have it alone. Thread rule: one test at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/device.h"
#include "engine/context.h"
#include "support/abi.h"
#include "tier/tier.h"

namespace sharpi::testing {

/// What the factories of the engine's contexts hand out.
inline std::shared_ptr<cuda::Device> g_device;

/// Takes the machine's first device; else says why there is none, and fails the test if that is not
/// because the machine has no GPU.
inline std::string take_device() {
  std::string why;
  auto devices = cuda::find_devices(1, &why);
  if (devices.empty()) {
    const std::string text = "no GPU (" + why + ")";
    expect_absent_gpu(text);
    return text;
  }
  g_device = devices[0];
  return {};
}

inline Result<std::vector<std::unique_ptr<Backend>>> only_device(const BackendOptions&) {
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(cuda::make_backend(g_device));
  return out;
}

}  // namespace sharpi::testing
