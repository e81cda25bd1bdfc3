// SPDX-License-Identifier: MIT
#include "cuda/device_memory.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "os/pages.h"

namespace sharpi::cuda {
namespace {

using ull = unsigned long long;

Status no_memory(const Device& device, const char* what, uint64_t bytes, int native) {
  return Status::native_error(Code::kOutOfMemory, native,
                              "there is no memory for %s: %llu bytes are needed on device %u", what,
                              static_cast<ull>(bytes), device.index());
}

Status clear_now(const Device& device, void* p, uint64_t bytes) {
  const cudaStream_t stream = device.memory_stream();
  SHARPI_TRY(device.check(cudaMemsetAsync(p, 0, bytes, stream), "cudaMemsetAsync"));
  return device.check(cudaStreamSynchronize(stream), "cudaMemsetAsync");
}

CUmemAllocationProp properties(const Device& device) {
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = device.ordinal();
  return p;
}

}  // namespace

/// Whole granules from one granule on.
uint64_t Device::held_bytes(uint64_t n) const {
  return n >= kDeviceGranule ? round_up(n, kDeviceGranule) : round_up(n, 512);
}

uint64_t Device::pinned_held_bytes(uint64_t n) const {
  return round_up(n, os::page_size());
}

Result<std::byte*> Device::take(uint64_t bytes, const char* what) const {
  const uint64_t held = held_bytes(bytes);
  SHARPI_TRY(admit(held, what));
  const DeviceScope scope(*this);
  void* p = nullptr;
  const cudaError_t error = cudaMalloc(&p, held);
  if (error != cudaSuccess) {
    retire(held);
    cudaGetLastError();
    if (error == cudaErrorMemoryAllocation) return no_memory(*this, what, held, error);
    return check(error, "cudaMalloc");
  }
  auto* data = static_cast<std::byte*>(p);
  Status cleared = clear_now(*this, p, held);  // before anybody uses it
  if (cleared.is_ok()) return data;
  give(data, bytes);
  return cleared;
}

void Device::give(std::byte* data, uint64_t bytes) const noexcept {
  const DeviceScope scope(*this);
  if (cudaFree(data) != cudaSuccess) cudaGetLastError();  // a lost device frees nothing
  retire(held_bytes(bytes));
}

Result<std::byte*> Device::take_pinned(uint64_t bytes, const char* what) const {
  SHARPI_TRY(admit(0, what));
  const DeviceScope scope(*this);
  void* p = nullptr;
  const cudaError_t error = cudaHostAlloc(&p, pinned_held_bytes(bytes), cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return Status::native_error(Code::kOutOfMemory, error,
                                "there is no memory for %s: %llu pinned bytes are needed", what,
                                static_cast<ull>(bytes));
  }
  SHARPI_TRY(check(error, "cudaHostAlloc"));
  auto* data = static_cast<std::byte*>(p);
  std::fill_n(data, bytes, std::byte{0});
  return data;
}

void Device::give_pinned(std::byte* data, uint64_t) const noexcept {
  const DeviceScope scope(*this);
  if (cudaFreeHost(data) != cudaSuccess) cudaGetLastError();
}

namespace {

/// Memory of a device's granules, by the driver's virtual memory functions. In the device's current
/// scope.
class GranuleDriver {
 public:
  GranuleDriver(const Device& device, uint64_t bytes, const char* what)
      : device_(device), bytes_(bytes), what_(what) {}
  uint64_t bytes() const { return bytes_; }
  const Device& device() const { return device_; }

  /// Memory of one granule, mapped nowhere.
  Result<uint64_t> create() const {
    SHARPI_TRY(device_.admit(bytes_, what_));
    const CUmemAllocationProp prop = properties(device_);
    CUmemGenericAllocationHandle handle = 0;
    const CUresult got =
        entry<PFN_cuMemCreate_v10020>(device_.driver().create)(&handle, bytes_, &prop, 0);
    if (got == CUDA_SUCCESS) return uint64_t{handle};
    device_.retire(bytes_);
    if (got == CUDA_ERROR_OUT_OF_MEMORY) return no_memory(device_, what_, bytes_, got);
    return failed("cuMemCreate", got);
  }
  void release(uint64_t handle) const noexcept {
    entry<PFN_cuMemRelease_v10020>(device_.driver().release)(handle);
    device_.retire(bytes_);
  }
  /// Makes it readable and writable at an address. The same handle may be mapped several times.
  Status map(uint64_t address, uint64_t handle) const {
    CUresult got = entry<PFN_cuMemMap_v10020>(device_.driver().map)(address, bytes_, 0, handle, 0);
    if (got != CUDA_SUCCESS) return failed("cuMemMap", got);
    CUmemAccessDesc access = {};
    access.location = properties(device_).location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    got =
        entry<PFN_cuMemSetAccess_v10020>(device_.driver().set_access)(address, bytes_, &access, 1);
    if (got == CUDA_SUCCESS) return Status::ok();
    unmap(address);
    return failed("cuMemSetAccess", got);
  }
  void unmap(uint64_t address) const noexcept {
    entry<PFN_cuMemUnmap_v10020>(device_.driver().unmap)(address, bytes_);
  }
  Status clear(uint64_t address, uint64_t bytes) const {
    return clear_now(device_, pointer(address), bytes);  // before anybody uses it
  }
  /// Copies what is mapped at `from` into a granule that is mapped nowhere. Done on return.
  Status copy(uint64_t handle, uint64_t from) const {
    // A copy has to have an address of its own until it takes the other one's place.
    CUdeviceptr to = 0;
    const CUresult got = entry<PFN_cuMemAddressReserve_v10020>(device_.driver().reserve)(
        &to, bytes_, kDeviceGranule, 0, 0);
    if (got == CUDA_ERROR_OUT_OF_MEMORY) return no_memory(device_, what_, bytes_, got);
    if (got != CUDA_SUCCESS) return failed("cuMemAddressReserve", got);
    Status done = map(to, handle);
    if (done.is_ok()) {
      const cudaStream_t stream = device_.memory_stream();
      done = device_.check(
          cudaMemcpyAsync(pointer(to), pointer(from), bytes_, cudaMemcpyDeviceToDevice, stream),
          "cudaMemcpyAsync");
      if (done.is_ok()) done = device_.check(cudaStreamSynchronize(stream), "cudaMemcpyAsync");
      unmap(to);
    }
    entry<PFN_cuMemAddressFree_v10020>(device_.driver().unreserve)(to, bytes_);
    return done;
  }

 private:
  static void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }
  Status failed(const char* call, CUresult got) const {
    return device_.settle(
        Status::native_error(Code::kDevice, got, "%s for %s failed", call, what_));
  }
  const Device& device_;
  const uint64_t bytes_;
  const char* const what_;
};

class DevicePool final : public GranulePool {
 public:
  DevicePool(const GranuleDriver& driver, GranuleRun run, std::function<void(uint64_t)> on_free)
      : GranulePool(run, std::move(on_free)), driver_(driver), handles_(run.count(), 0) {}
  uint64_t& handle(uint64_t granule) { return handles_[granule - first()]; }
  void give_back(GranuleRun run) noexcept override {
    for (uint64_t i = run.first; i < run.end; ++i) driver_.release(handle(i));
  }

 private:
  const GranuleDriver driver_;
  std::vector<uint64_t> handles_;
};

/// The granules of one range of a device's addresses. Nothing moves when they are lent: the memory
/// only gets another owner. All addresses can be written; that what is shared is not is the
/// caller's promise.
class DeviceGranules final : public GranuleMemory {
 public:
  /// `most`: granules of the range. Throws std::bad_alloc.
  DeviceGranules(const GranuleDriver& driver, uint64_t address, uint64_t most)
      : driver_(driver), address_(address), own_(most, 0) {}

  uint64_t step() const override { return 1; }
  Status grow(GranuleRun run) override {
    Status got;
    uint64_t end = run.first;
    while (got.is_ok() && end < run.end) {
      got = add(end);
      if (got.is_ok()) ++end;
    }
    if (got.is_ok()) got = driver_.clear(at(run.first), run.count() * driver_.bytes());
    if (!got.is_ok()) shrink({run.first, end});
    return got;
  }
  void shrink(GranuleRun run) noexcept override {
    for (uint64_t i = run.end; i-- > run.first;) {
      driver_.unmap(at(i));
      driver_.release(own_[i]);
    }
  }
  Result<std::shared_ptr<GranulePool>> pool(GranuleRun run,
                                            const std::function<void(uint64_t)>& on_free) override {
    return std::shared_ptr<GranulePool>(std::make_shared<DevicePool>(driver_, run, on_free));
  }
  Status lend(GranulePool& pool, GranuleRun run) override {
    for (uint64_t i = run.first; i < run.end; ++i) handle_of(pool, i) = own_[i];
    return Status::ok();
  }
  Status map(GranulePool& pool, GranuleRun run) override {
    for (uint64_t i = run.first; i < run.end; ++i) {
      const Status mapped = driver_.map(at(i), handle_of(pool, i));
      if (mapped.is_ok()) continue;
      unmap({run.first, i});
      return mapped;
    }
    return Status::ok();
  }
  void unmap(GranuleRun run) noexcept override {
    for (uint64_t i = run.first; i < run.end; ++i) driver_.unmap(at(i));
  }
  /// The addresses have memory throughout for everybody else.
  Status replace(GranulePool& pool, GranuleRun run, uint64_t) override {
    const uint64_t i = run.first;  // one at a time
    SHARPI_TRY_ASSIGN(const uint64_t fresh, driver_.create());
    Status done = driver_.copy(fresh, at(i));
    if (done.is_ok()) {
      driver_.unmap(at(i));
      done = driver_.map(at(i), fresh);
      if (!done.is_ok()) {
        const Status back = driver_.map(at(i), handle_of(pool, i));
        if (!back.is_ok()) driver_.device().mark_lost(back.native());
      }
    }
    if (!done.is_ok()) {
      driver_.release(fresh);
      return done;
    }
    own_[i] = fresh;
    return Status::ok();
  }
  Status protect(GranuleRun, bool) override { return Status::ok(); }

 private:
  static uint64_t& handle_of(GranulePool& pool, uint64_t granule) {
    return static_cast<DevicePool&>(pool).handle(granule);
  }
  uint64_t at(uint64_t granule) const { return address_ + granule * driver_.bytes(); }
  Status add(uint64_t granule) {
    SHARPI_TRY_ASSIGN(own_[granule], driver_.create());
    const Status mapped = driver_.map(at(granule), own_[granule]);
    if (!mapped.is_ok()) driver_.release(own_[granule]);
    return mapped;
  }
  const GranuleDriver driver_;
  const uint64_t address_;
  std::vector<uint64_t> own_;  // handles of granules that are this range's alone
};

}  // namespace

uint64_t Device::granule_bytes(uint64_t reserved) const {
  uint64_t n = kDeviceGranule;
  while (n < 16 * kDeviceGranule && reserved / n > 128) n *= 2;
  return n;
}

Result<device::Addresses> Device::reserve(uint64_t bytes, uint64_t granule,
                                          const char* what) const {
  SHARPI_TRY(admit(0, what));
  const DeviceScope scope(*this);
  CUdeviceptr address = 0;
  const CUresult got = entry<PFN_cuMemAddressReserve_v10020>(driver().reserve)(
      &address, bytes, kDeviceGranule, 0, 0);
  if (got != CUDA_SUCCESS) {
    return settle(Status::native_error(
        got == CUDA_ERROR_OUT_OF_MEMORY ? Code::kOutOfMemory : Code::kDevice, got,
        "there is no address space for %s: cuMemAddressReserve failed for %llu bytes", what,
        static_cast<ull>(bytes)));
  }
  device::Addresses out;
  out.data = reinterpret_cast<std::byte*>(address);
  out.memory = std::make_unique<DeviceGranules>(GranuleDriver(*this, granule, what), address,
                                                bytes / granule);
  return out;
}

void Device::unreserve(const device::Addresses& addresses, uint64_t bytes) const noexcept {
  entry<PFN_cuMemAddressFree_v10020>(driver().unreserve)(
      reinterpret_cast<CUdeviceptr>(addresses.data), bytes);
}

}  // namespace sharpi::cuda
