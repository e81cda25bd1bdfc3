// SPDX-License-Identifier: MIT
#include "api/gpu_tiers.h"

#if SHARPI_HAS_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace sharpi::api {

#if SHARPI_HAS_CUDA
const char* build_text() {
  return SHARPI_BUILD_TEXT("cpu, cuda");
}

Result<std::vector<std::unique_ptr<Backend>>> make_gpu_backends(const BackendOptions& options) {
  cuda::CudaBackendOptions gpu;
  gpu.log = [&](const std::string& text) {
    options.log(SHARPI_LOG_INFO, text);
    *options.why_no_device = text;
  };
  return cuda::make_backends(gpu);
}
#else
const char* build_text() {
  return SHARPI_BUILD_TEXT("cpu");
}

Result<std::vector<std::unique_ptr<Backend>>> make_gpu_backends(const BackendOptions& options) {
  *options.why_no_device = "this build has no CUDA tier";
  return std::vector<std::unique_ptr<Backend>>();
}
#endif

}  // namespace sharpi::api
