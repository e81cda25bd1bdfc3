// SPDX-License-Identifier: MIT
#include "group/nccl_transport.h"

#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>

#include "group/cuda_driver.h"
#include "os/dynamic_library.h"

namespace sharpi {
namespace {

constexpr int kSuccess = 0, kInProgress = 7;  // of ncclResult_t
constexpr int kUint8 = 1;                     // of ncclDataType_t
constexpr uint64_t kPieceBytes = 4u << 20;    // an eighth of a millisecond on a link of 32 GB/s

struct Nccl {
  Status open(const char* name);
  int (*version)(int*) = nullptr;
  int (*count)(void* comm, int*) = nullptr;
  int (*user_rank)(void* comm, int*) = nullptr;
  int (*device)(void* comm, int*) = nullptr;
  int (*send)(const void*, size_t, int type, int peer, void* comm, void* stream) = nullptr;
  int (*receive)(void*, size_t, int type, int peer, void* comm, void* stream) = nullptr;
  int (*async_error)(void* comm, int* result) = nullptr;
  int (*abort)(void* comm) = nullptr;
  const char* (*error_text)(int) = nullptr;

 private:
  template <class Function>
  bool find(const char* name, Function* out) {
    *out = reinterpret_cast<Function>(library_.symbol(name));
    return *out != nullptr;
  }
  os::DynamicLibrary library_;
};

Status Nccl::open(const char* name) {
  const bool found = name != nullptr ? library_.open({name}) : library_.open({"libnccl.so.2"});
  if (!found) {
    return Status::error(Code::kUnsupported, "NCCL cannot be opened: %s", library_.why().c_str());
  }
  const bool all = find("ncclGetVersion", &version) && find("ncclCommCount", &count) &&
                   find("ncclCommUserRank", &user_rank) && find("ncclCommCuDevice", &device) &&
                   find("ncclSend", &send) && find("ncclRecv", &receive) &&
                   find("ncclCommGetAsyncError", &async_error) && find("ncclCommAbort", &abort) &&
                   find("ncclGetErrorString", &error_text);
  if (all) return Status::ok();
  return Status::error(Code::kUnsupported, "%s lacks functions of NCCL 2.7 or later",
                       library_.name().c_str());
}

class NcclTransport final : public Transport {
 public:
  ~NcclTransport() override;
  Status open(const NcclOptions& options);
  Status send(uint32_t to, const void* data, uint64_t bytes, Deadline deadline) override;
  Status receive(uint32_t from, void* out, uint64_t bytes, Deadline deadline) override;
  void abandon() noexcept override;
  std::string name() const override { return name_; }
  uint64_t device_bytes() const override { return kPieceBytes; }

 private:
  Status check(int result, const char* what) const;
  Status settle(int result, const char* what, Deadline deadline) const;
  Status wait(const char* what, Deadline deadline) const;
  Status check_shape(const NcclOptions& options) const;
  Nccl nccl_;
  CudaDriver driver_;
  void *comm_ = nullptr, *context_ = nullptr, *stream_ = nullptr;
  uint64_t buffer_ = 0;  // [kPieceBytes]
  int device_ = -1;
  std::string name_;
};

Status NcclTransport::check(int result, const char* what) const {
  if (result == kSuccess) return Status::ok();
  return Status::native_error(Code::kDevice, result, "%s failed: %s", what,
                              nccl_.error_text(result));
}

Status NcclTransport::check_shape(const NcclOptions& options) const {
  int n = 0, rank = 0;
  SHARPI_TRY(check(nccl_.count(comm_, &n), "ncclCommCount"));
  SHARPI_TRY(check(nccl_.user_rank(comm_, &rank), "ncclCommUserRank"));
  if (n == static_cast<int>(options.n_ranks) && rank == static_cast<int>(options.rank))
    return Status::ok();
  return Status::error(Code::kInvalidArgument,
                       "the communicator has %d ranks, of which this process is %d, but the group "
                       "says rank %u of %u",
                       n, rank, options.rank, options.n_ranks);
}

Status NcclTransport::open(const NcclOptions& options) {
  comm_ = options.comm;
  SHARPI_TRY(nccl_.open(options.library));
  SHARPI_TRY(driver_.open(options.driver));
  SHARPI_TRY(check_shape(options));
  int version = 0, ordinal = 0;
  SHARPI_TRY(check(nccl_.version(&version), "ncclGetVersion"));
  name_ = "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
          "." + std::to_string(version % 100);
  SHARPI_TRY(check(nccl_.device(comm_, &ordinal), "ncclCommCuDevice"));
  SHARPI_TRY(driver_.check(driver_.init(0), "cuInit"));
  int device = -1;
  SHARPI_TRY(driver_.check(driver_.device_get(&device, ordinal), "cuDeviceGet"));
  SHARPI_TRY(driver_.check(driver_.retain(&context_, device), "cuDevicePrimaryCtxRetain"));
  device_ = device;
  const DriverScope scope(driver_, context_);
  constexpr unsigned kNonBlocking = 1;
  SHARPI_TRY(driver_.check(driver_.stream_create(&stream_, kNonBlocking), "cuStreamCreate"));
  if (driver_.alloc(&buffer_, kPieceBytes) == 0) return Status::ok();
  buffer_ = 0;
  return Status::error(Code::kOutOfMemory,
                       "%llu bytes of device memory for messages over NCCL could not be had",
                       static_cast<unsigned long long>(kPieceBytes));
}

/// What is under way has ended by itself, or abandon() has ended it.
NcclTransport::~NcclTransport() {
  if (device_ < 0) return;
  {
    const DriverScope scope(driver_, context_);
    if (buffer_ != 0) (void)driver_.free(buffer_);
    if (stream_ != nullptr) (void)driver_.stream_destroy(stream_);
  }
  (void)driver_.release(device_);
}

/// Of a call that a communicator which does not block may still be at.
Status NcclTransport::settle(int result, const char* what, Deadline deadline) const {
  while (result == kInProgress) {
    int now = kSuccess;
    SHARPI_TRY(check(nccl_.async_error(comm_, &now), "ncclCommGetAsyncError"));
    result = now;
    if (result != kInProgress) break;
    if (std::chrono::steady_clock::now() >= deadline)
      return Status::error(Code::kDevice, "%s did not begin in the time given", what);
    std::this_thread::yield();
  }
  return check(result, what);
}

/// For the stream; an error of the communicator ends it, and so does the deadline.
Status NcclTransport::wait(const char* what, Deadline deadline) const {
  constexpr auto kSoon = std::chrono::milliseconds(1);
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    const int state = driver_.stream_query(stream_);
    if (state != CudaDriver::kNotReady) return driver_.check(state, what);
    int error = kSuccess;
    SHARPI_TRY(check(nccl_.async_error(comm_, &error), "ncclCommGetAsyncError"));
    if (error != kInProgress) SHARPI_TRY(check(error, what));
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline)
      return Status::error(Code::kDevice, "%s did not end in the time given", what);
    if (now - start < kSoon) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

Status NcclTransport::send(uint32_t to, const void* data, uint64_t bytes, Deadline deadline) {
  const DriverScope scope(driver_, context_);
  const auto* from = static_cast<const std::byte*>(data);
  for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
    const uint64_t n = std::min(kPieceBytes, bytes - at);
    SHARPI_TRY(driver_.check(driver_.to_device(buffer_, from + at, n, stream_), "a copy to send"));
    SHARPI_TRY(settle(nccl_.send(reinterpret_cast<const void*>(buffer_), n, kUint8,
                                 static_cast<int>(to), comm_, stream_),
                      "ncclSend", deadline));
    SHARPI_TRY(wait("ncclSend", deadline));
  }
  return Status::ok();
}

Status NcclTransport::receive(uint32_t from, void* out, uint64_t bytes, Deadline deadline) {
  const DriverScope scope(driver_, context_);
  auto* to = static_cast<std::byte*>(out);
  for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
    const uint64_t n = std::min(kPieceBytes, bytes - at);
    SHARPI_TRY(settle(nccl_.receive(reinterpret_cast<void*>(buffer_), n, kUint8,
                                    static_cast<int>(from), comm_, stream_),
                      "ncclRecv", deadline));
    SHARPI_TRY(wait("ncclRecv", deadline));
    SHARPI_TRY(driver_.check(driver_.to_host(to + at, buffer_, n, stream_), "a copy received"));
    SHARPI_TRY(wait("a copy received", deadline));
  }
  return Status::ok();
}

void NcclTransport::abandon() noexcept {
  if (comm_ == nullptr) return;
  const DriverScope scope(driver_, context_);
  (void)nccl_.abort(std::exchange(comm_, nullptr));
}

}  // namespace

Result<std::unique_ptr<Transport>> make_nccl_transport(const NcclOptions& options) {
  auto t = std::make_unique<NcclTransport>();
  SHARPI_TRY(t->open(options));
  return std::unique_ptr<Transport>(std::move(t));
}

}  // namespace sharpi
