// SPDX-License-Identifier: MIT
// Launching kernels of the CUDA tier: one call that sets the attributes and turns errors into a
// Status naming the kernel.
// Thread rule: pure functions.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "base/status.h"

namespace sharpi::cuda {

inline Status kernel_status(cudaError_t error, const char* kernel) {
  if (error == cudaSuccess) return Status::ok();
  return Status::native_error(Code::kDevice, static_cast<int32_t>(error), "kernel %s: %s", kernel,
                              cudaGetErrorString(error));
}

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool pdl = false;  // may start before the preceding grid has ended
};

template <class... P, class... A>
Status launch_kernel(const char* name, const LaunchShape& s, void (*kernel)(P...), A&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = s.grid;
  config.blockDim = s.block;
  config.dynamicSmemBytes = s.shared_bytes;
  config.stream = s.stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = s.pdl ? 1 : 0;
  return kernel_status(cudaLaunchKernelEx(&config, kernel, std::forward<A>(args)...), name);
}

}  // namespace sharpi::cuda
