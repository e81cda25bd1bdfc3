// SPDX-License-Identifier: MIT
#include "api/backends.h"

#include <utility>

#include "api/gpu_tiers.h"
#include "cpu/cpu_backend.h"

namespace sharpi::api {
namespace {

cpu::CpuBackendOptions cpu_options(const sharpi_context_params& params) {
  cpu::CpuBackendOptions options;
  options.n_threads = params.n_threads;
  options.isa = static_cast<cpu::Isa>(params.cpu_isa);
  options.allocator = {params.alloc, params.free, params.alloc_user_data};
  return options;
}

}  // namespace

const char* isa_name(sharpi_cpu_isa isa) {
  return cpu::isa_name(static_cast<cpu::Isa>(isa));
}

Result<std::vector<std::unique_ptr<Backend>>> make_backends(const BackendOptions& options) {
  std::vector<std::unique_ptr<Backend>> backends;
  SHARPI_TRY_ASSIGN(auto host, cpu::make_backend(cpu_options(options.params)));
  backends.push_back(std::move(host));
  SHARPI_TRY_ASSIGN(auto devices, make_gpu_backends(options));
  for (auto& device : devices) backends.push_back(std::move(device));
  return backends;
}

}  // namespace sharpi::api
