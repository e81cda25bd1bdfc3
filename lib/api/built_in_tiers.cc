// SPDX-License-Identifier: MIT
#include <utility>

#include "api/gpu_tiers.h"

#if SHARPI_HAS_CUDA
#include "cuda/cuda_backend.h"
#endif
#if SHARPI_HAS_VULKAN
#include "vulkan/vulkan_backend.h"
#endif

namespace sharpi::api {

#if SHARPI_HAS_CUDA && SHARPI_HAS_VULKAN
#define SHARPI_TIERS_TEXT "cpu, cuda, vulkan"
#elif SHARPI_HAS_CUDA
#define SHARPI_TIERS_TEXT "cpu, cuda"
#elif SHARPI_HAS_VULKAN
#define SHARPI_TIERS_TEXT "cpu, vulkan"
#else
#define SHARPI_TIERS_TEXT "cpu"
#endif

const char* build_text() {
  return SHARPI_BUILD_TEXT(SHARPI_TIERS_TEXT);
}

#if SHARPI_HAS_CUDA || SHARPI_HAS_VULKAN
Result<std::vector<std::unique_ptr<Backend>>> make_gpu_backends(const BackendOptions& options) {
  std::vector<std::unique_ptr<Backend>> all;
  [[maybe_unused]] const auto log = [&](const std::string& text) {
    options.log(SHARPI_LOG_INFO, text);
    std::string& why_none = *options.why_no_device;
    why_none += (why_none.empty() ? "" : "; ") + text;
  };
#if SHARPI_HAS_CUDA
  cuda::CudaBackendOptions cuda_options;
  cuda_options.log = log;
  SHARPI_TRY_ASSIGN(all, cuda::make_backends(cuda_options));
#endif
#if SHARPI_HAS_VULKAN
  vulkan::VulkanBackendOptions vulkan_options;
  vulkan_options.log = log;
  vulkan_options.first_index = static_cast<uint32_t>(all.size()) + 1;
  SHARPI_TRY_ASSIGN(auto more, vulkan::make_backends(vulkan_options));
  for (auto& backend : more) all.push_back(std::move(backend));
#endif
  return all;
}
#else
Result<std::vector<std::unique_ptr<Backend>>> make_gpu_backends(const BackendOptions& options) {
  *options.why_no_device = "this build has no CUDA tier";
  return std::vector<std::unique_ptr<Backend>>();
}
#endif

}  // namespace sharpi::api
