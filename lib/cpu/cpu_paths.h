// SPDX-License-Identifier: MIT
// Names the kernels that a model's blocks on the CPU take, for sharpi_model_json().
// Thread rule: a pure function.
#pragma once

#include <string>

#include "base/thread_pool.h"
#include "cpu/matmul.h"
#include "plan/plan.h"

namespace sharpi::cpu {

/// TierModel::paths() of a model with this plan.
std::string kernel_paths(const MatmulConfig& config, ThreadPool& pool, const Plan& plan);

}  // namespace sharpi::cpu
