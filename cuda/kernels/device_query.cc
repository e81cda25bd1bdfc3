// SPDX-License-Identifier: MIT
#include "cuda/kernels/device_query.h"

#include <cuda_runtime_api.h>

#include "cuda/kernels/launch.h"

namespace sharpi::cuda {

Status query_profile(int ordinal, const std::string& name, DeviceProfile* out) {
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
  SHARPI_TRY_ASSIGN(const int code, code_of_device(name, built_architectures(), p.capability));
  set_features(code, warpgroups_built(), &p);
  const DeviceProfile* card = pretended_card();
  *out = card == nullptr ? p : pretended_as(*card, p, code);
  return Status::ok();
}

}  // namespace sharpi::cuda
