// SPDX-License-Identifier: MIT
// Replay scores (device::ReplayParams). Thread rule: pure functions.
#pragma once

#include "base/status.h"
#include "cuda/kernels/device_profile.h"
#include "cuda/kernels/stream_handle.h"
#include "device/kernel_params.h"

namespace sharpi::cuda {

/// Checks its arguments and allocates nothing; needs no workspace.
Status launch_replay_scores(const DeviceProfile& device, const device::ReplayParams& p,
                            cudaStream_t stream);

}  // namespace sharpi::cuda
