// SPDX-License-Identifier: MIT
#include "cuda/kernels/device_query.h"

#include <cuda_runtime_api.h>

#include "cuda/kernels/launch.h"

namespace sharpi::cuda {

Status query_profile(int ordinal, int code, DeviceProfile* out) {
  const auto get = [&](int* value, cudaDeviceAttr attribute) {
    return kernel_status(cudaDeviceGetAttribute(value, attribute, ordinal), "attributes");
  };
  int major = 0, minor = 0;
  DeviceProfile p;
  SHARPI_TRY(get(&major, cudaDevAttrComputeCapabilityMajor));
  SHARPI_TRY(get(&minor, cudaDevAttrComputeCapabilityMinor));
  SHARPI_TRY(get(&p.n_sm, cudaDevAttrMultiProcessorCount));
  SHARPI_TRY(get(&p.shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin));
  SHARPI_TRY(get(&p.shared_per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor));
  SHARPI_TRY(get(&p.registers_per_sm, cudaDevAttrMaxRegistersPerMultiprocessor));
  SHARPI_TRY(get(&p.threads_per_sm, cudaDevAttrMaxThreadsPerMultiProcessor));
  p.capability = 10 * major + minor;
  set_features(code == 0 ? p.capability : code, warpgroups_built(), &p);
  *out = p;
  return Status::ok();
}

}  // namespace sharpi::cuda
