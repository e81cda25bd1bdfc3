// SPDX-License-Identifier: MIT
#include "cuda/driver.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "cuda/kernels/modules.h"

namespace sharpi::cuda {
namespace {

/// What modules are listed with.
struct ModuleCalls {
  void *module_of = nullptr, *count = nullptr, *list = nullptr, *load = nullptr, *name = nullptr;

  Status find() {
    SHARPI_TRY(find_entry("cuFuncGetModule", 11000, &module_of));
    SHARPI_TRY(find_entry("cuModuleGetFunctionCount", 12040, &count));
    SHARPI_TRY(find_entry("cuModuleEnumerateFunctions", 12040, &list));
    SHARPI_TRY(find_entry("cuFuncLoad", 12040, &load));
    return find_entry("cuFuncGetName", 12030, &name);
  }
};

Status load_error(int native, const char* kernel, const char* what) {
  const Code code = native == cudaErrorMemoryAllocation ? Code::kOutOfMemory : Code::kDevice;
  return Status::native_error(code, native, "kernel %s cannot be loaded: %s", kernel, what);
}

/// All kernels of a module.
Status load_module(const ModuleCalls& c, const KernelModule& m) {
  cudaFunction_t function = nullptr;
  const cudaError_t error = cudaGetFuncBySymbol(&function, m.kernel());
  if (error != cudaSuccess) {
    return load_error(static_cast<int>(error), m.name(), cudaGetErrorString(error));
  }
  CUmodule module = nullptr;
  unsigned n = 0;
  CUresult got = entry<PFN_cuFuncGetModule_v11000>(c.module_of)(&module, function);
  if (got == CUDA_SUCCESS) got = entry<PFN_cuModuleGetFunctionCount_v12040>(c.count)(&n, module);
  std::vector<CUfunction> all(n);
  if (got == CUDA_SUCCESS) {
    got = entry<PFN_cuModuleEnumerateFunctions_v12040>(c.list)(all.data(), n, module);
  }
  if (got != CUDA_SUCCESS)
    return load_error(got, m.name(), "the driver does not list the functions of its module");
  for (CUfunction f : all) {
    got = entry<PFN_cuFuncLoad_v12040>(c.load)(f);
    if (got == CUDA_SUCCESS) continue;
    const char* name = "";
    (void)entry<PFN_cuFuncGetName_v12030>(c.name)(&name, f);
    return load_error(got, name, "the driver did not load its code");
  }
  return Status::ok();
}

/// The version of CUDA that names the newest driver function the tier calls.
constexpr int kLeastDriverCuda = 12040;
/// The least that this build runs with: the runtime that it was built with is served by drivers of
/// its own major version and later ones.
constexpr int kLeastCuda = std::max(kLeastDriverCuda, CUDART_VERSION / 1000 * 1000);

std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::string driver_refusal(int version) {
  if (version == 0) return "no NVIDIA driver is installed";
  if (version >= kLeastCuda) return {};
  // The branches of NVIDIA's drivers that brought these versions to Linux.
  const char* branch = kLeastCuda == kLeastDriverCuda ? " (driver 550)"
                       : kLeastCuda == 13000          ? " (driver 580)"
                                                      : "";
  return "the NVIDIA driver is for CUDA " + cuda_text(version) +
         "; this build needs one for CUDA " + cuda_text(kLeastCuda) + branch + " or later";
}

Status find_entry(const char* name, unsigned version, void** out) {
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, out, version, cudaEnableDefault, &found);
#else
  // The form that a function has in the toolkit's own version. Those that are asked for are no
  // newer than 12.4, the least toolkit, and have not changed up to it.
  (void)version;
  const cudaError_t error = cudaGetDriverEntryPoint(name, out, cudaEnableDefault, &found);
#endif
  if (error == cudaSuccess && found == cudaDriverEntryPointSuccess && *out != nullptr)
    return Status::ok();
  return Status::native_error(Code::kUnsupported, static_cast<int32_t>(error),
                              "the CUDA driver lacks the function %s", name);
}

Status load_kernels(int capability) {
  ModuleCalls calls;
  SHARPI_TRY(calls.find());
  for (const KernelModule* m = KernelModule::first(); m != nullptr; m = m->next()) {
    if (m->is_for(capability)) SHARPI_TRY(load_module(calls, *m));
  }
  return Status::ok();
}

}  // namespace sharpi::cuda
