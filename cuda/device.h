// SPDX-License-Identifier: MIT
// One CUDA device of a context: what it is, the driver's entry points (found at run time, never
// linked), and whether a sticky fault has lost it. Every CUDA call of the tier passes through
// check() or settle(), which turn errors into a Status that names the call.
// Thread rule: immutable but for the fault flag and the byte count, which are atomic.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cuda/kernels/device_profile.h"
#include "device/device.h"

struct CUctx_st;
using CUcontext = CUctx_st*;  // as cuda.h has it

namespace sharpi::cuda {

class CublasLt;

/// Virtual memory management of the driver (device_memory.cc); the signatures are those of cuda.h.
struct DriverMemory {
  void *reserve = nullptr, *unreserve = nullptr, *create = nullptr, *release = nullptr,
       *map = nullptr, *unmap = nullptr, *set_access = nullptr;
};

/// A device that is not there.
struct DeviceProperties {
  DeviceProfile profile;
  uint64_t total_bytes = 0;
  std::string name;
  std::string id = "pretended";
};

class Device final : public device::Device {
 public:
  Device(int ordinal, uint32_t index);
  /// A device that is not in this machine, to plan for: it can be asked for sizes and takes
  /// nothing.
  Device(uint32_t index, const DeviceProperties& properties);
  ~Device() override;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }  // as CUDA counts
  TierId tier() const override { return TierId::kCuda; }
  uint32_t index() const override { return index_; }
  /// What every decision reads; another card's where one is pretended (pretend_card()).
  const DeviceProfile& profile() const { return profile_; }
  int capability() const { return profile_.capability; }  // 10 * major + minor
  const std::string& name() const { return name_; }
  const std::string& id() const { return id_; }  // "GPU-" and the UUID, as its tools write it
  uint64_t total_bytes() const { return total_; }
  /// Free device memory now; opens the device. 0 when it cannot be asked.
  uint64_t free_bytes() const;
  /// Device memory that this context's buffers and ranges hold.
  uint64_t live_bytes() const { return live_.load(std::memory_order_relaxed); }
  const DriverMemory& driver() const { return driver_; }
  /// Where new memory is cleared and rows are copied that become a session's own. None of the
  /// host's streams waits for it, as they would for the legacy stream. Of an open device.
  cudaStream_t memory_stream() const { return memory_stream_; }
  /// cuBLASLt where it was found and wins over own kernels; open() looks for it.
  CublasLt* cublas_lt() const { return cublas_lt_.get(); }
  /// Its name and version, or why it is not used. Of an open device.
  const std::string& library() const { return library_; }

  /// The devices that find_devices() found, by the indices of the context's list.
  void set_peers(std::vector<std::pair<uint32_t, int>> ordinals) { peers_ = std::move(ordinals); }
  /// Asks the driver once, and lets this device's context write there.
  bool reaches(uint32_t index) const override;
  /// As Device::launch_mutex() of the room says. Kernels that wait for the host need it because
  /// streams may share one queue of the hardware: of two such launches the second would wait behind
  /// the first, while the host's threads serve the second.
  std::mutex& launch_mutex() const override;

  /// Reads the properties; takes no device memory. kUnsupported: no kernel of this build runs
  /// there.
  Status read_properties();
  /// Opens the device and finds the driver's entry points. Idempotent, any thread.
  Status open() override;

  /// Ok, or the error with its number, the call's name and, for faults that stay, kDeviceLost.
  Status check(cudaError_t error, const char* call) const;
  /// The same for a Status of a kernel launcher: marks lost devices, names the architecture when
  /// there is no image for it.
  Status settle(Status status) const override;
  /// The primary context, which the runtime uses as well. The first call makes it; it stays until
  /// the process ends, because the runtime keeps it too.
  cudaError_t context(CUcontext* out) const;
  /// A number by which the primary context is told from all others of this process, also from one
  /// that cudaDeviceReset() has ended.
  cudaError_t context_number(uint64_t* out) const;
  /// From now on every call says kDeviceLost.
  void mark_lost(int native) const override { lost_.store(native == 0 ? -1 : native); }
  /// kDeviceLost once a sticky fault was seen.
  Status usable() const override;

  /// The n-th allocation from now fails as if memory had run out (tests); 0 = none.
  void fail_allocation(uint64_t n) { fail_in_.store(n, std::memory_order_relaxed); }
  /// Chains of models loaded from now on get no more shared memory than this (tests).
  void limit_chains(int bytes) { chain_bytes_.store(bytes, std::memory_order_relaxed); }
  int chain_bytes() const { return chain_bytes_.load(std::memory_order_relaxed); }
  Status admit(uint64_t bytes, const char* what) const;
  void retire(uint64_t bytes) const { live_.fetch_sub(bytes, std::memory_order_relaxed); }

  // What the room of GPU tiers asks for (device/device.h).
  uint64_t held_bytes(uint64_t n) const override;
  uint64_t largest_block() const override { return UINT64_MAX; }
  uint64_t pinned_held_bytes(uint64_t n) const override;
  /// 2 to 32 MiB, larger for larger ranges.
  uint64_t granule_bytes(uint64_t reserved) const override;
  Result<std::byte*> take(uint64_t bytes, const char* what) const override;
  void give(std::byte* data, uint64_t bytes) const noexcept override;
  Result<std::byte*> take_pinned(uint64_t bytes, const char* what) const override;
  void give_pinned(std::byte* data, uint64_t bytes) const noexcept override;
  Result<device::Addresses> reserve(uint64_t bytes, uint64_t granule,
                                    const char* what) const override;
  void unreserve(const device::Addresses& addresses, uint64_t bytes) const noexcept override;
  Result<std::unique_ptr<device::Queue>> create_queue() const override;
  Result<std::unique_ptr<device::Event>> create_event() const override;
  const device::DeviceKernels& kernels() const override { return *kernels_; }
  std::unique_ptr<device::PassKernels> pass_kernels(const ModelShape& model) const override;
  void enter(Scope* scope) const override;
  void leave(Scope* scope) const noexcept override;

 private:
  int ordinal_ = 0;
  uint32_t index_ = 0;
  std::vector<std::pair<uint32_t, int>> peers_;  // index and ordinal
  DeviceProfile profile_;
  uint64_t total_ = 0;
  std::string name_, id_;
  DriverMemory driver_;
  std::unique_ptr<device::DeviceKernels> kernels_;
  std::unique_ptr<CublasLt> cublas_lt_;
  cudaStream_t memory_stream_ = nullptr;
  std::string library_;
  std::mutex opening_;
  mutable std::mutex making_context_;
  mutable CUcontext context_ = nullptr;
  std::atomic<bool> opened_{false};
  mutable std::atomic<int> lost_{0};  // the native code of the fault
  mutable std::atomic<uint64_t> live_{0}, fail_in_{0};
  std::atomic<int> chain_bytes_{1 << 30};
};

/// Makes a device's primary context the calling thread's current one. At the end the thread has
/// again what the host had set: another device's context, one of its own making, or none. If the
/// host is capturing a stream on this thread, its capture goes on: in between, the thread may make
/// calls that a capture forbids.
class DeviceScope {
 public:
  explicit DeviceScope(const Device& device);
  ~DeviceScope();
  /// Why the device is not the current one. Of an open device it is.
  cudaError_t error() const { return error_; }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  bool pushed_ = false;
  int capture_mode_ = -1;  // the thread's own, or -1 while it is in force
  cudaError_t error_ = cudaSuccess;
};

/// The usable devices of this machine; the first is number first_index of the context's list. None
/// is no error: *why says it.
std::vector<std::shared_ptr<Device>> find_devices(uint32_t first_index, std::string* why);

/// Bytes/s at which a kernel reads device memory, measured now.
Result<double> measure_device_bandwidth(Device& device);
/// Bytes/s from pinned host memory to the device, measured now.
Result<double> measure_link_bandwidth(Device& device);

}  // namespace sharpi::cuda
