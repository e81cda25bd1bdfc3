// SPDX-License-Identifier: MIT
// The list of files with kernels, each of which the driver loads as a module. With lazy loading the
// driver would copy a kernel's code to the device at its first launch and take memory for it, which
// by then may be in use; so all modules are loaded when a device is opened (cuda/driver.h).
// Thread rule: the list is made before main() and not changed.
#pragma once

#include <cuda_runtime_api.h>

namespace sharpi::cuda {

/// Says that there are kernels in the file that has this object. `name`: the file's, a literal;
/// `capability`: the only one that they are built for, or 0.
class KernelModule {
 public:
  KernelModule(const void* kernel, const char* name, int capability)
      : kernel_(kernel), name_(name), capability_(capability), next_(first_) {
    first_ = this;
  }
  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;

  static const KernelModule* first() { return first_; }
  const KernelModule* next() const { return next_; }
  const void* kernel() const { return kernel_; }  // one of the file
  const char* name() const { return name_; }
  bool is_for(int capability) const { return capability_ == 0 || capability_ == capability; }

 private:
  static inline const KernelModule* first_ = nullptr;
  const void* kernel_;
  const char* name_;
  int capability_;
  const KernelModule* next_;
};

#ifdef __CUDACC__
#ifndef SHARPI_ONLY_CAPABILITY
#define SHARPI_ONLY_CAPABILITY 0
#endif
#ifndef SHARPI_KERNELS  // the build says it of the library's files
#define SHARPI_KERNELS "of a program"
#endif
namespace {
/// Does nothing: its address leads to the others.
__global__ void module_kernel() {}
const KernelModule kModule(reinterpret_cast<const void*>(module_kernel), SHARPI_KERNELS,
                           SHARPI_ONLY_CAPABILITY);
}  // namespace
#endif

}  // namespace sharpi::cuda
