// SPDX-License-Identifier: MIT
// A device of this machine as a profile. Thread rule: any thread.
#pragma once

#include "base/status.h"
#include "cuda/kernels/device_profile.h"

namespace sharpi::cuda {

/// True if the kernels with Hopper's own instructions are in this build (gemm_sm90.cu says it).
bool warpgroups_built();

/// The profile of CUDA's device `ordinal`, with the features of code of architecture `code`
/// (0: of its own). Takes no device memory.
Status query_profile(int ordinal, int code, DeviceProfile* out);

}  // namespace sharpi::cuda
