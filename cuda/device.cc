// SPDX-License-Identifier: MIT
#include "cuda/device.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <new>

#include "cuda/device_kernels.h"
#include "cuda/driver.h"
#include "cuda/kernels/device_query.h"
#include "cuda/kernels/products/cublas_lt.h"
#include "cuda/pass_kernels.h"
#include "cuda/queue.h"
#include "device/kernels.h"

namespace sharpi::cuda {
namespace {

std::string describe(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}

/// Faults after which every later call of the process's context fails too. Those that the oldest
/// toolkit has no name for are given by their numbers.
bool is_sticky(int native) {
  constexpr int kNvlinkUncorrectable = 220, kContained = 226, kTensorMemoryLeak = 721,
                kMpsClientTerminated = 810, kExternalDevice = 911;
  switch (native) {
    case kNvlinkUncorrectable:
    case kContained:
    case kTensorMemoryLeak:
    case kMpsClientTerminated:
    case kExternalDevice:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

/// "GPU-" and 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += "-";
    text += digits;
  }
  return text;
}

}  // namespace

Device::Device(int ordinal, uint32_t index)
    : ordinal_(ordinal), index_(index), kernels_(make_kernels(*this)) {}

Device::Device(uint32_t index, const DeviceProperties& p)
    : ordinal_(-1),
      index_(index),
      profile_(p.profile),
      total_(p.total_bytes),
      name_(p.name),
      id_(p.id),
      kernels_(make_kernels(*this)) {}

/// A device that was never opened is left alone: to make it current would create its context.
Device::~Device() {
  if (memory_stream_ == nullptr) return;
  const DeviceScope scope(*this);
  if (cudaStreamDestroy(memory_stream_) != cudaSuccess) cudaGetLastError();
}

Status Device::check(cudaError_t error, const char* call) const {
  if (error == cudaSuccess) return Status::ok();
  cudaGetLastError();  // errors that do not stay are forgotten here
  const auto native = static_cast<int32_t>(error);
  if (error == cudaErrorMemoryAllocation) {
    return Status::native_error(Code::kOutOfMemory, native, "there is no memory for %s", call);
  }
  return settle(
      Status::native_error(Code::kDevice, native, "%s failed: %s", call, describe(error).c_str()));
}

Status Device::settle(Status status) const {
  if (status.is_ok() || status.code() != Code::kDevice) return status;
  cudaGetLastError();
  const auto error = static_cast<cudaError_t>(status.native());
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
      error == cudaErrorInvalidKernelImage) {
    return Status::native_error(Code::kUnsupported, status.native(),
                                "%s (this build has no image for sm_%d)", status.text().c_str(),
                                capability());
  }
  if (error == cudaErrorMemoryAllocation) {
    return Status::native_error(Code::kOutOfMemory, status.native(), "%s", status.text().c_str());
  }
  if (!is_sticky(status.native())) return status;
  lost_.store(status.native(), std::memory_order_relaxed);
  return Status::native_error(Code::kDeviceLost, status.native(), "device %u is lost: %s", index_,
                              status.text().c_str());
}

Status Device::usable() const {
  const int native = lost_.load(std::memory_order_relaxed);
  if (native == 0) return Status::ok();
  return Status::native_error(Code::kDeviceLost, native,
                              "device %u is lost after an earlier fault (%s)", index_,
                              cudaGetErrorName(static_cast<cudaError_t>(native)));
}

std::mutex& Device::launch_mutex() const {
  static std::array<std::mutex, 64> mutexes;
  return mutexes[static_cast<size_t>(ordinal_) % mutexes.size()];
}

bool Device::reaches(uint32_t index) const {
  const auto peer = std::find_if(peers_.begin(), peers_.end(),
                                 [index](const auto& p) { return p.first == index; });
  if (peer == peers_.end() || peer->second == ordinal_) return false;
  const DeviceScope scope(*this);
  int can = 0;
  if (scope.error() != cudaSuccess ||
      cudaDeviceCanAccessPeer(&can, ordinal_, peer->second) != cudaSuccess || can == 0) {
    cudaGetLastError();
    return false;
  }
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(peer->second, 0);
  cudaGetLastError();  // a host may have enabled it before
  return enabled == cudaSuccess || enabled == cudaErrorPeerAccessAlreadyEnabled;
}

Status Device::read_properties() {
  if (ordinal_ < 0) return Status::ok();
  cudaDeviceProp p = {};
  SHARPI_TRY(check(cudaGetDeviceProperties(&p, ordinal_), "cudaGetDeviceProperties"));
  total_ = p.totalGlobalMem;
  name_ = p.name;
  id_ = uuid_text(p.uuid);
  return settle(query_profile(ordinal_, name_, &profile_));
}

Status Device::open() {
  static_assert(sizeof(void*) == sizeof(uint64_t));
  if (opened_.load(std::memory_order_acquire)) return usable();
  if (ordinal_ < 0) {
    return Status::error(Code::kUnsupported,
                         "%s is a device to plan for; this machine does not have it",
                         name_.c_str());
  }
  const std::lock_guard<std::mutex> lock(opening_);
  if (opened_.load(std::memory_order_relaxed)) return usable();
  const DeviceScope scope(*this);
  SHARPI_TRY(check(scope.error(), "making the device current"));
  SHARPI_TRY(check(cudaFree(nullptr), "opening the device"));
  if (memory_stream_ == nullptr) {
    SHARPI_TRY(check(cudaStreamCreateWithFlags(&memory_stream_, cudaStreamNonBlocking),
                     "cudaStreamCreateWithFlags"));
  }
  DriverMemory d;
  SHARPI_TRY(find_entry("cuMemAddressReserve", 10020, &d.reserve));
  SHARPI_TRY(find_entry("cuMemAddressFree", 10020, &d.unreserve));
  SHARPI_TRY(find_entry("cuMemCreate", 10020, &d.create));
  SHARPI_TRY(find_entry("cuMemRelease", 10020, &d.release));
  SHARPI_TRY(find_entry("cuMemMap", 10020, &d.map));
  SHARPI_TRY(find_entry("cuMemUnmap", 10020, &d.unmap));
  SHARPI_TRY(find_entry("cuMemSetAccess", 10020, &d.set_access));
  driver_ = d;
  SHARPI_TRY(settle(load_kernels(capability())));
  if (profile_.wgmma) {  // own kernels for products of many rows are faster than cuBLASLt there
    library_ = "own products";
  } else {
    uint64_t context = 0;
    SHARPI_TRY(check(context_number(&context), "cuCtxGetId"));
    auto library = CublasLt::open(context);
    if (library.is_ok()) cublas_lt_ = library.take();
    library_ = cublas_lt_ ? cublas_lt_->text() : "own products: " + library.status().text();
  }
  opened_.store(true, std::memory_order_release);
  return Status::ok();
}

uint64_t Device::free_bytes() const {
  if (ordinal_ < 0) return total_;
  const DeviceScope scope(*this);
  size_t free = 0, total = 0;
  if (!check(scope.error(), "making the device current").is_ok()) return 0;
  return check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo").is_ok() ? free : 0;
}

Status Device::admit(uint64_t bytes, const char* what) const {
  SHARPI_TRY(usable());
  uint64_t left = fail_in_.load(std::memory_order_relaxed);
  if (left != 0) {
    fail_in_.store(left - 1, std::memory_order_relaxed);
    if (left == 1) {
      return Status::native_error(Code::kOutOfMemory, cudaErrorMemoryAllocation,
                                  "there is no memory for %s: %llu bytes are needed on device %u",
                                  what, static_cast<unsigned long long>(bytes), index_);
    }
  }
  live_.fetch_add(bytes, std::memory_order_relaxed);
  return Status::ok();
}

Result<std::unique_ptr<device::Queue>> Device::create_queue() const {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Stream> s, Stream::create(*this));
  return std::unique_ptr<device::Queue>(std::move(s));
}

/// Nobody in the room measures times by them.
Result<std::unique_ptr<device::Event>> Device::create_event() const {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Event> e, Event::create(*this, cudaEventDisableTiming));
  return std::unique_ptr<device::Event>(std::move(e));
}

std::unique_ptr<device::PassKernels> Device::pass_kernels(const ModelShape& model) const {
  return std::make_unique<CudaPassKernels>(*this, model);
}

void Device::enter(Scope* scope) const {
  static_assert(sizeof(DeviceScope) <= kScopeBytes && alignof(DeviceScope) <= alignof(Scope));
  new (scope->room) DeviceScope(*this);
}

void Device::leave(Scope* scope) const noexcept {
  std::launder(reinterpret_cast<DeviceScope*>(scope->room))->~DeviceScope();
}

std::vector<std::shared_ptr<Device>> find_devices(uint32_t first_index, std::string* why) {
  std::vector<std::shared_ptr<Device>> out;
  int n = 0, driver = 0;
  cudaError_t error = cudaDriverGetVersion(&driver);
  if (error == cudaSuccess) {
    *why = driver_refusal(driver);
    if (!why->empty()) return out;
    error = cudaGetDeviceCount(&n);
  }
  if (error != cudaSuccess && error != cudaErrorNoDevice) {
    cudaGetLastError();
    *why = "the NVIDIA driver reports " + describe(error);
    return out;
  }
  if (error == cudaErrorNoDevice) cudaGetLastError();
  if (n == 0) *why = "the NVIDIA driver sees no device";
  for (int i = 0; i < n; ++i) {
    auto d = std::make_shared<Device>(i, first_index + static_cast<uint32_t>(out.size()));
    const Status read = d->read_properties();
    if (!read.is_ok()) {
      *why += (why->empty() ? "" : "; ") + read.text();
    } else {
      out.push_back(std::move(d));
    }
  }
  std::vector<std::pair<uint32_t, int>> ordinals;
  for (const auto& d : out) ordinals.emplace_back(d->index(), d->ordinal());
  for (const auto& d : out) d->set_peers(ordinals);
  return out;
}

}  // namespace sharpi::cuda
