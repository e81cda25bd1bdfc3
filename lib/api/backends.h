// SPDX-License-Identifier: MIT
// The backends of a context: the host's, and those of the GPU tiers (gpu_tiers.h).
// Thread rule: pure functions.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/context.h"

namespace sharpi::api {

/// "avx2" for SHARPI_ISA_AVX2; null for a number that is no instruction set of any processor.
const char* isa_name(sharpi_cpu_isa isa);

/// Host first. A BackendFactory. A machine without a usable GPU has the host alone.
Result<std::vector<std::unique_ptr<Backend>>> make_backends(const BackendOptions& options);

}  // namespace sharpi::api
