// SPDX-License-Identifier: MIT
#include "group/cuda_driver.h"

namespace sharpi {
namespace {

template <class Function>
bool find(const os::DynamicLibrary& library, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(library.symbol(name));
  return *out != nullptr;
}

}  // namespace

Status CudaDriver::open(const char* library) {
  const bool found =
      library != nullptr ? library_.open({library}) : library_.open({"libcuda.so.1", "nvcuda.dll"});
  if (!found) {
    return Status::error(Code::kUnsupported, "NVIDIA's driver cannot be opened: %s",
                         library_.why().c_str());
  }
  const bool all =
      find(library_, "cuInit", &init) && find(library_, "cuDeviceGet", &device_get) &&
      find(library_, "cuDevicePrimaryCtxRetain", &retain) &&
      find(library_, "cuDevicePrimaryCtxRelease_v2", &release) &&
      find(library_, "cuCtxPushCurrent_v2", &push) && find(library_, "cuCtxPopCurrent_v2", &pop) &&
      find(library_, "cuStreamCreate", &stream_create) &&
      find(library_, "cuStreamDestroy_v2", &stream_destroy) &&
      find(library_, "cuStreamQuery", &stream_query) && find(library_, "cuMemAlloc_v2", &alloc) &&
      find(library_, "cuMemFree_v2", &free) && find(library_, "cuMemcpyHtoDAsync_v2", &to_device) &&
      find(library_, "cuMemcpyDtoHAsync_v2", &to_host) &&
      find(library_, "cuGetErrorName", &error_name);
  if (all) return Status::ok();
  return Status::error(Code::kUnsupported, "%s lacks functions of NVIDIA's driver",
                       library_.name().c_str());
}

Status CudaDriver::check(int result, const char* what) const {
  if (result == 0) return Status::ok();
  const char* name = nullptr;
  if (error_name(result, &name) != 0 || name == nullptr) name = "an unknown error";
  return Status::native_error(Code::kDevice, result, "%s failed: %s", what, name);
}

}  // namespace sharpi
