// SPDX-License-Identifier: MIT
#include <iterator>
#include <utility>

#include "api/gpu_tier_list.h"
#include "api/gpu_tiers.h"
#include "tier/tier_module.h"

// What each tier of this build defines.
#define SHARPI_DECLARE(name, title, is_missed)                                           \
  namespace sharpi::name {                                                               \
  Result<std::vector<std::unique_ptr<Backend>>> make_backends(const TierModuleOptions&); \
  }
SHARPI_BUILT_IN_GPU_TIERS(SHARPI_DECLARE)
#undef SHARPI_DECLARE

namespace sharpi::api {
namespace {

using MakeBackends = Result<std::vector<std::unique_ptr<Backend>>>(const TierModuleOptions&);

#define SHARPI_FUNCTION(name, title, is_missed) &sharpi::name::make_backends,
/// One for each tier, and null.
constexpr MakeBackends* kTiers[] = {SHARPI_BUILT_IN_GPU_TIERS(SHARPI_FUNCTION) nullptr};
#undef SHARPI_FUNCTION

}  // namespace

const char* build_text() {
#define SHARPI_AND_NAME(name, title, is_missed) ", " #name
  return SHARPI_BUILD_TEXT("cpu" SHARPI_BUILT_IN_GPU_TIERS(SHARPI_AND_NAME));
#undef SHARPI_AND_NAME
}

Result<std::vector<std::unique_ptr<Backend>>> make_gpu_backends(const BackendOptions& options) {
  std::vector<std::unique_ptr<Backend>> all;
  if (std::size(kTiers) == 1) *options.why_no_device = "this build has no GPU tier";
  TierModuleOptions tier_options;
  tier_options.cache_folder = options.cache_folder;
  tier_options.log = [&](const std::string& text) {
    options.log(SHARPI_LOG_INFO, text);
    std::string& why_none = *options.why_no_device;
    why_none += (why_none.empty() ? "" : "; ") + text;
  };
  for (MakeBackends* const* tier = kTiers; *tier != nullptr; ++tier) {
    tier_options.first_index = static_cast<uint32_t>(all.size()) + 1;
    SHARPI_TRY_ASSIGN(auto backends, (*tier)(tier_options));
    for (auto& backend : backends) all.push_back(std::move(backend));
  }
  return all;
}

}  // namespace sharpi::api
