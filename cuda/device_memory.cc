// SPDX-License-Identifier: MIT
#include "cuda/device_memory.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <algorithm>

#include "base/checked.h"
#include "cuda/driver.h"

namespace sharpi::cuda {
namespace {

using ull = unsigned long long;

Status no_memory(const Device& device, const char* what, uint64_t bytes, int native) {
  return Status::native_error(Code::kOutOfMemory, native,
                              "no memory for %s: %llu bytes on device %u", what,
                              static_cast<ull>(bytes), device.index());
}

CUmemAllocationProp properties(const Device& device) {
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = device.ordinal();
  return p;
}

}  // namespace

uint64_t device_held_bytes(uint64_t n) {
  return n >= kDeviceGranule ? round_up(n, kDeviceGranule) : round_up(n, 512);
}

uint64_t pinned_held_bytes(uint64_t n) {
  return round_up(n, 4096);
}

Result<DeviceBuffer> DeviceBuffer::allocate(const Device& device, uint64_t bytes,
                                            const char* what) {
  DeviceBuffer b;
  if (bytes == 0) return b;
  const uint64_t held = device_held_bytes(bytes);
  SHARPI_TRY(device.admit(held, what));
  const DeviceScope scope(device);
  void* p = nullptr;
  const cudaError_t error = cudaMalloc(&p, held);
  if (error != cudaSuccess) {
    device.retire(held);
    cudaGetLastError();
    if (error == cudaErrorMemoryAllocation) return no_memory(device, what, held, error);
    return device.check(error, "cudaMalloc");
  }
  b.data_ = static_cast<std::byte*>(p);
  b.bytes_ = bytes;
  b.device_ = &device;
  // Zeroed on the legacy stream, which waits for nothing of ours: done before anybody uses it.
  SHARPI_TRY(device.check(cudaMemset(p, 0, held), "cudaMemset"));
  SHARPI_TRY(device.check(cudaStreamSynchronize(nullptr), "cudaMemset"));
  return b;
}

void DeviceBuffer::reset() noexcept {
  if (data_ == nullptr) return;
  const DeviceScope scope(*device_);
  if (cudaFree(data_) != cudaSuccess) cudaGetLastError();  // a lost device frees nothing
  device_->retire(device_held_bytes(bytes_));
  data_ = nullptr;
  bytes_ = 0;
}

Result<PinnedBuffer> PinnedBuffer::allocate(const Device& device, uint64_t bytes,
                                            const char* what) {
  PinnedBuffer b;
  if (bytes == 0) return b;
  SHARPI_TRY(device.admit(0, what));
  const DeviceScope scope(device);
  void* p = nullptr;
  const cudaError_t error = cudaHostAlloc(&p, pinned_held_bytes(bytes), cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return Status::native_error(Code::kOutOfMemory, error, "no memory for %s: %llu pinned bytes",
                                what, static_cast<ull>(bytes));
  }
  SHARPI_TRY(device.check(error, "cudaHostAlloc"));
  b.data_ = static_cast<std::byte*>(p);
  b.bytes_ = bytes;
  std::fill_n(b.data_, bytes, std::byte{0});
  return b;
}

void PinnedBuffer::reset() noexcept {
  if (data_ != nullptr && cudaFreeHost(data_) != cudaSuccess) cudaGetLastError();
  data_ = nullptr;
  bytes_ = 0;
}

uint64_t DeviceRange::handle_bytes(uint64_t reserved) {
  uint64_t n = kDeviceGranule;
  while (n < 16 * kDeviceGranule && reserved / n > 128) n *= 2;
  return n;
}

uint64_t DeviceRange::held_bytes(uint64_t reserved, uint64_t n) {
  return round_up(n, handle_bytes(reserved));
}

Result<DeviceRange> DeviceRange::reserve(const Device& device, uint64_t bytes, const char* what) {
  DeviceRange r;
  if (bytes == 0) return r;
  SHARPI_TRY(device.admit(0, what));
  const DeviceScope scope(device);
  r.device_ = &device;
  r.what_ = what;
  r.handle_ = handle_bytes(bytes);
  const uint64_t reserved = round_up(bytes, r.handle_);
  CUdeviceptr address = 0;
  const CUresult got = entry<PFN_cuMemAddressReserve_v10020>(device.driver().reserve)(
      &address, reserved, kDeviceGranule, 0, 0);
  if (got != CUDA_SUCCESS) {
    return Status::native_error(Code::kOutOfMemory, got,
                                "no addresses for %s: cuMemAddressReserve of %llu bytes", what,
                                static_cast<ull>(reserved));
  }
  r.address_ = address;
  r.reserved_ = reserved;
  r.handles_.reserve(reserved / r.handle_);
  return r;
}

Status DeviceRange::add_handle() {
  const DriverMemory& d = device_->driver();
  SHARPI_TRY(device_->admit(handle_, what_));
  const CUmemAllocationProp prop = properties(*device_);
  CUmemGenericAllocationHandle handle = 0;
  CUresult got = entry<PFN_cuMemCreate_v10020>(d.create)(&handle, handle_, &prop, 0);
  if (got != CUDA_SUCCESS) {
    device_->retire(handle_);
    if (got == CUDA_ERROR_OUT_OF_MEMORY) return no_memory(*device_, what_, handle_, got);
    return device_->settle(
        Status::native_error(Code::kDevice, got, "cuMemCreate for %s failed", what_));
  }
  const CUdeviceptr at = address_ + handles_.size() * handle_;
  const char* call = "cuMemMap";
  got = entry<PFN_cuMemMap_v10020>(d.map)(at, handle_, 0, handle, 0);
  if (got == CUDA_SUCCESS) {
    CUmemAccessDesc access = {};
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    call = "cuMemSetAccess";
    got = entry<PFN_cuMemSetAccess_v10020>(d.set_access)(at, handle_, &access, 1);
    if (got != CUDA_SUCCESS) entry<PFN_cuMemUnmap_v10020>(d.unmap)(at, handle_);
  }
  if (got != CUDA_SUCCESS) {
    entry<PFN_cuMemRelease_v10020>(d.release)(handle);
    device_->retire(handle_);
    return device_->settle(
        Status::native_error(Code::kDevice, got, "%s for %s failed", call, what_));
  }
  handles_.push_back(handle);
  return Status::ok();
}

void DeviceRange::drop_handle() noexcept {
  const DriverMemory& d = device_->driver();
  const CUdeviceptr at = address_ + (handles_.size() - 1) * handle_;
  entry<PFN_cuMemUnmap_v10020>(d.unmap)(at, handle_);
  entry<PFN_cuMemRelease_v10020>(d.release)(handles_.back());
  handles_.pop_back();
  device_->retire(handle_);
}

Status DeviceRange::commit(uint64_t bytes) {
  if (bytes <= committed()) return Status::ok();
  if (bytes > reserved_) {
    return Status::error(Code::kInternal, "%llu bytes of %s exceed the range of %llu",
                         static_cast<ull>(bytes), what_, static_cast<ull>(reserved_));
  }
  const DeviceScope scope(*device_);
  const size_t before = handles_.size();
  Status got;
  while (got.is_ok() && committed() < bytes) got = add_handle();
  if (got.is_ok()) {  // rows that nobody wrote must read as numbers
    std::byte* from = data() + before * handle_;
    got = device_->check(cudaMemset(from, 0, committed() - before * handle_), "cudaMemset");
    if (got.is_ok()) got = device_->check(cudaStreamSynchronize(nullptr), "cudaMemset");
  }
  if (!got.is_ok()) {
    while (handles_.size() > before) drop_handle();
  }
  return got;
}

void DeviceRange::decommit(uint64_t bytes) noexcept {
  if (address_ == 0) return;
  const DeviceScope scope(*device_);
  const uint64_t keep = div_up(bytes, handle_);
  while (handles_.size() > keep) drop_handle();
}

void DeviceRange::reset() noexcept {
  if (address_ == 0) return;
  decommit(0);
  entry<PFN_cuMemAddressFree_v10020>(device_->driver().unreserve)(address_, reserved_);
  address_ = reserved_ = 0;
}

void DeviceRange::swap(DeviceRange& o) noexcept {
  std::swap(address_, o.address_);
  std::swap(reserved_, o.reserved_);
  std::swap(handle_, o.handle_);
  handles_.swap(o.handles_);
  std::swap(device_, o.device_);
  std::swap(what_, o.what_);
}

}  // namespace sharpi::cuda
