// SPDX-License-Identifier: MIT
// The few functions of NVIDIA's driver that messages over NCCL need, looked for at run time: memory
// of a device, copies and a queue. Types are our own, so no header of CUDA is needed.
// Thread rule: DriverScope is for the thread that made it; the rest as the driver's functions.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "os/dynamic_library.h"

namespace sharpi {

class CudaDriver {
 public:
  /// kUnsupported: the library, or a function of it, is not there. `library` null = the driver's.
  Status open(const char* library);
  Status check(int result, const char* what) const;

  int (*init)(unsigned) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*retain)(void** context, int device) = nullptr;  // the context that the runtime uses, too
  int (*release)(int device) = nullptr;
  int (*push)(void* context) = nullptr;
  int (*pop)(void** context) = nullptr;
  int (*stream_create)(void** stream, unsigned flags) = nullptr;
  int (*stream_destroy)(void* stream) = nullptr;
  int (*stream_query)(void* stream) = nullptr;
  int (*alloc)(uint64_t* address, size_t bytes) = nullptr;
  int (*free)(uint64_t address) = nullptr;
  int (*to_device)(uint64_t to, const void* from, size_t bytes, void* stream) = nullptr;
  int (*to_host)(void* to, uint64_t from, size_t bytes, void* stream) = nullptr;
  int (*error_name)(int result, const char** name) = nullptr;

  static constexpr int kNotReady = 600;

 private:
  os::DynamicLibrary library_;
};

/// The device's context on this thread, for a scope.
class DriverScope {
 public:
  DriverScope(const CudaDriver& driver, void* context) : driver_(driver) {
    is_ok_ = driver_.push(context) == 0;
  }
  ~DriverScope() {
    void* context = nullptr;
    if (is_ok_) (void)driver_.pop(&context);
  }
  DriverScope(const DriverScope&) = delete;
  DriverScope& operator=(const DriverScope&) = delete;

 private:
  const CudaDriver& driver_;
  bool is_ok_;
};

}  // namespace sharpi
