// SPDX-License-Identifier: MIT
// A device of this machine as a profile. Thread rule: any thread.
#pragma once

#include <string>

#include "base/status.h"
#include "cuda/kernels/device_profile.h"

namespace sharpi::cuda {

/// True if the kernels with Hopper's own instructions are in this build (gemm_sm90.cu says it).
bool warpgroups_built();

/// The profile of CUDA's device `ordinal` with the features of the code of this build that runs
/// there; another card's where one is pretended. Takes no device memory. `name`: what a refusal
/// calls it (kUnsupported: no code of this build runs there).
Status query_profile(int ordinal, const std::string& name, DeviceProfile* out);

}  // namespace sharpi::cuda
