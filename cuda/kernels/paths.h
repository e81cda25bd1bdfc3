// SPDX-License-Identifier: MIT
// The kernels that calls go to, in words, from the same choice that the launchers make. For
// statistics; products have matmul_path() in matmul.h. Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sharpi::device {
struct KvLayer;
}

namespace sharpi::cuda {

struct DeltaNetShape;
using device::KvLayer;
struct KernelConfig;

/// The kernels of launch_moe with n_rows rows.
const char* moe_path(const KernelConfig& config, uint32_t n_rows);
/// The kernels of launch_attention with few rows (and in decode of any batch) or with many.
const char* attention_path(const KernelConfig& config, const KvLayer& kv, bool few_rows);
/// The kernels of launch_delta_net on a prompt; a step is always the recurrence.
const char* delta_net_path(const KernelConfig& config, const DeltaNetShape& shape);

}  // namespace sharpi::cuda
