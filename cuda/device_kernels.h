// SPDX-License-Identifier: MIT
// The CUDA tier's kernels outside of passes: device/kernels.h. Thread rule: pure functions.
#pragma once

#include <memory>

#include "device/kernels.h"

namespace sharpi::cuda {

class Device;

/// `device` outlives them.
std::unique_ptr<device::DeviceKernels> make_kernels(const Device& device);

}  // namespace sharpi::cuda
