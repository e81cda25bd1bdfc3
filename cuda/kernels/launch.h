// SPDX-License-Identifier: MIT
// Launching kernels of the CUDA tier: one call that sets the attributes and turns errors into a
// Status naming the kernel.
// Thread rule: pure functions.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.h"
#include "cuda/kernels/modules.h"

namespace sharpi::cuda {

inline Status kernel_status(cudaError_t error, const char* kernel) {
  if (error == cudaSuccess) return Status::ok();
  return Status::native_error(Code::kDevice, static_cast<int32_t>(error), "kernel %s failed: %s",
                              kernel, cudaGetErrorString(error));
}

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool pdl = false;          // may start before the preceding grid has ended
  bool cooperative = false;  // all blocks run at once, or none
  uint32_t cluster = 1;      // blocks of a cluster, next to each other in y
};

template <class... P, class... A>
Status launch_kernel(const char* name, const LaunchShape& s, void (*kernel)(P...), A&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = s.grid;
  config.blockDim = s.block;
  config.dynamicSmemBytes = s.shared_bytes;
  config.stream = s.stream;
  cudaLaunchAttribute attributes[3] = {};
  config.attrs = attributes;
  if (s.pdl) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }
  if (s.cooperative) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeCooperative;
    a.val.cooperative = 1;
  }
  if (s.cluster > 1) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim = {1, s.cluster, 1};
  }
  return kernel_status(cudaLaunchKernelEx(&config, kernel, std::forward<A>(args)...), name);
}

}  // namespace sharpi::cuda
