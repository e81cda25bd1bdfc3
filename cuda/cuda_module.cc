// SPDX-License-Identifier: MIT
// The one function of libsharpi-cuda.so: the table by which the core finds this tier.
#include "cuda/cuda_backend.h"
#include "tier/tier_interface.h"
#include "tier/tier_module.h"

namespace sharpi::cuda {
namespace {

constexpr TierModule kModule{"CUDA", SHARPI_TIER_INTERFACE, &make_backends};

}  // namespace
}  // namespace sharpi::cuda

extern "C" SHARPI_API const sharpi::TierModule* sharpi_tier_module();
const sharpi::TierModule* sharpi_tier_module() {
  sharpi::let_exceptions_through();
  return &sharpi::cuda::kModule;
}
