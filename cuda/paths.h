// SPDX-License-Identifier: MIT
// Which kernels the blocks of a model on the device go to: calls of one row / of as many as there
// can be. Thread rule: pure functions.
#pragma once

#include <string>

#include "cuda/settings.h"

namespace sharpi::cuda {

std::string block_paths(const LoadedModel& model, const KernelConfig& config);

}  // namespace sharpi::cuda
