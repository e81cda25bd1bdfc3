// SPDX-License-Identifier: MIT
// A device made current by the driver's calls: cudaSetDevice() would create the context of another
// device to put that device back, and would put a primary context in the place of a host's own.
#include <cuda.h>
#include <cudaTypedefs.h>

#include "cuda/device.h"
#include "cuda/driver.h"

namespace sharpi::cuda {
namespace {

struct ContextCalls {
  void *retain = nullptr, *current = nullptr, *push = nullptr, *pop = nullptr, *capture = nullptr,
       *number = nullptr;
  bool found = false;

  ContextCalls() {
    found = find_entry("cuDevicePrimaryCtxRetain", 7000, &retain).is_ok() &&
            find_entry("cuCtxGetCurrent", 4000, &current).is_ok() &&
            find_entry("cuCtxPushCurrent", 4000, &push).is_ok() &&
            find_entry("cuCtxPopCurrent", 4000, &pop).is_ok() &&
            find_entry("cuThreadExchangeStreamCaptureMode", 10010, &capture).is_ok() &&
            find_entry("cuCtxGetId", 12000, &number).is_ok();
  }
};

const ContextCalls& context_calls() {
  static const ContextCalls calls;
  return calls;
}

void exchange_capture_mode(int* mode) {
  auto m = static_cast<CUstreamCaptureMode>(*mode);
  (void)entry<PFN_cuThreadExchangeStreamCaptureMode_v10010>(context_calls().capture)(&m);
  *mode = static_cast<int>(m);
}

}  // namespace

/// The driver's errors have the numbers of the runtime's.
cudaError_t Device::context(CUcontext* out) const {
  const ContextCalls& calls = context_calls();
  if (!calls.found) return cudaErrorSymbolNotFound;
  const std::lock_guard<std::mutex> lock(making_context_);
  if (context_ == nullptr) {
    const CUresult got =
        entry<PFN_cuDevicePrimaryCtxRetain_v7000>(calls.retain)(&context_, ordinal_);
    if (got != CUDA_SUCCESS) {
      context_ = nullptr;
      return static_cast<cudaError_t>(got);
    }
  }
  *out = context_;
  return cudaSuccess;
}

cudaError_t Device::context_number(uint64_t* out) const {
  CUcontext context = nullptr;
  if (const cudaError_t error = this->context(&context); error != cudaSuccess) return error;
  unsigned long long number = 0;
  const auto get = entry<PFN_cuCtxGetId_v12000>(context_calls().number);
  const auto error = static_cast<cudaError_t>(get(context, &number));
  *out = number;
  return error;
}

DeviceScope::DeviceScope(const Device& device) {
  if (device.ordinal() < 0) return;
  CUcontext wanted = nullptr, now = nullptr;
  error_ = device.context(&wanted);
  if (error_ != cudaSuccess) return;
  const ContextCalls& calls = context_calls();
  if (entry<PFN_cuCtxGetCurrent_v4000>(calls.current)(&now) != CUDA_SUCCESS || now != wanted) {
    error_ = static_cast<cudaError_t>(entry<PFN_cuCtxPushCurrent_v4000>(calls.push)(wanted));
    if (error_ != cudaSuccess) return;
    pushed_ = true;
  }
  capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  exchange_capture_mode(&capture_mode_);
}

DeviceScope::~DeviceScope() {
  if (capture_mode_ >= 0) exchange_capture_mode(&capture_mode_);
  CUcontext popped = nullptr;
  if (pushed_) (void)entry<PFN_cuCtxPopCurrent_v4000>(context_calls().pop)(&popped);
}

}  // namespace sharpi::cuda
