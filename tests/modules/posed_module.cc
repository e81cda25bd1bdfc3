// SPDX-License-Identifier: MIT
// A module whose tier poses as a GPU's: a CPU backend of its own (support/second_tier.h). What the
// core gives it and takes from it crosses the border of two libraries as a real module's does.
#include "cpu/cpu_backend.h"
#include "support/second_tier.h"
#include "tier/tier_interface.h"
#include "tier/tier_module.h"

namespace sharpi::testing {
namespace {

Result<std::vector<std::unique_ptr<Backend>>> make_posed_backends(const TierModuleOptions&) {
  cpu::CpuBackendOptions options;
  options.n_threads = 2;
  SHARPI_TRY_ASSIGN(auto host, cpu::make_backend(options));
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(std::make_unique<SecondBackend>(std::move(host)));
  return backends;
}

constexpr TierModule kModule{"CUDA", SHARPI_TIER_INTERFACE, &make_posed_backends};

}  // namespace
}  // namespace sharpi::testing

extern "C" __attribute__((visibility("default"))) const sharpi::TierModule* sharpi_tier_module();
const sharpi::TierModule* sharpi_tier_module() {
  sharpi::let_exceptions_through();
  return &sharpi::testing::kModule;
}
