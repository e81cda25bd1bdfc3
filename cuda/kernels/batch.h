// SPDX-License-Identifier: MIT
// The batch table, which is the same for every GPU tier, under the names of this one's kernels.
// Thread rule: plain values.
#pragma once

#include "device/batch.h"

namespace sharpi::cuda {

using namespace device;

}  // namespace sharpi::cuda
