// SPDX-License-Identifier: MIT
#include "device/host_device.h"

#include <cstring>
#include <new>
#include <string_view>

#include "base/reservation.h"
#include "device/kernels.h"
#include "device/pass_kernels.h"
#include "os/pages.h"

namespace sharpi::testing {

HostFaults& host_faults() {
  static HostFaults faults;
  return faults;
}

bool QueueState::run_next() {
  const std::lock_guard lock(mutex);
  if (waiting.empty()) return false;
  const Work work = std::move(waiting.front());
  waiting.pop_front();
  ++done;
  if (!fault.is_ok()) return true;
  Status ended = work();
  if (!ended.is_ok()) fault = std::move(ended);
  return true;
}

Status QueueState::run_until(uint64_t mark) {
  const std::lock_guard lock(mutex);
  while (done < mark && run_next()) {
  }
  return fault;
}

Status HostEvent::wait(const char*) const {
  return queue == nullptr ? Status::ok() : queue->run_until(mark);
}

Result<bool> HostEvent::has_happened(const char*) const {
  if (queue == nullptr) return true;
  if (!std::exchange(asked, true)) return false;
  SHARPI_TRY(queue->run_until(mark));
  return true;
}

HostQueue::~HostQueue() {
  join();
  const Status ended = state_->run_until(state_->given);
  (void)ended.is_ok();
}

void HostQueue::give(Work work) const {
  if (recording_ != nullptr) {
    recording_->work.push_back(std::move(work));
    return;
  }
  const std::lock_guard lock(state_->mutex);
  state_->waiting.push_back(std::move(work));
  ++state_->given;
  if (host_faults().eager != device_) return;
  const Status ended = state_->run_until(state_->given);
  (void)ended.is_ok();  // whoever waits hears of it
}

void HostQueue::meets_host() const {
  if (recording_ != nullptr) recording_->meets_host = true;
}

Status HostQueue::copy(void* to, const void* from, uint64_t bytes, device::Way way,
                       const char* what) const {
  HostFaults& faults = host_faults();
  if (faults.fails_on == device_ && faults.fails_in > 0 && --faults.fails_in == 0) {
    if (faults.throws) throw std::bad_alloc();
    const Status why = Status::error(Code::kDevice, "injected failure of the copy: %s", what);
    if (!faults.fails_late) return why;
    give([why] { return why; });
  }
  const bool rows_out = std::string_view(what) == "hidden rows on their way out";
  if (rows_out && way == device::Way::kWithin) ++counts_->n_direct;
  const bool table = std::string_view(what) == "upload of the call table";
  give([=] {
    if (bytes != 0 && !(table && host_faults().drops_uploads)) std::memcpy(to, from, bytes);
    return Status::ok();
  });
  return Status::ok();
}

Status HostQueue::copy_rows(const device::RowRange& to, const device::ConstRowRange& from,
                            uint64_t bytes, uint64_t n, device::Way, const char*) const {
  give([=] {
    for (uint64_t i = 0; i < n; ++i) {
      std::memcpy(static_cast<std::byte*>(to.data) + i * to.stride,
                  static_cast<const std::byte*>(from.data) + i * from.stride, bytes);
    }
    return Status::ok();
  });
  return Status::ok();
}

Status HostQueue::clear(void* to, uint64_t bytes, const char*) const {
  give([=] {
    std::memset(to, 0, bytes);
    return Status::ok();
  });
  return Status::ok();
}

Status HostQueue::record(const device::Event& event, const char*) const {
  auto& e = const_cast<HostEvent&>(static_cast<const HostEvent&>(event));
  give([] { return Status::ok(); });
  e.queue = state_;
  e.mark = state_->given;
  e.asked = false;
  return Status::ok();
}

/// What was marked is done when this queue comes here, and not before.
Status HostQueue::wait_for(const device::Event& event, const char*) const {
  const auto& e = static_cast<const HostEvent&>(event);
  if (e.queue == nullptr || host_faults().drops_waits) return Status::ok();
  give([queue = e.queue, mark = e.mark] { return queue->run_until(mark); });
  return Status::ok();
}

void HostQueue::join() const {
  if (runner_.joinable()) runner_.join();
}

Status HostQueue::wait() const {
  join();
  return state_->run_until(state_->given);
}

Result<bool> HostQueue::has_ended(const char*) const {
  const std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  SHARPI_TRY(state_->fault);
  return state_->waiting.empty();
}

Status HostQueue::begin_recording() const {
  recording_ = std::make_unique<HostRecording>();
  return Status::ok();
}

Result<std::unique_ptr<device::Recording>> HostQueue::end_recording(const Status& given) const {
  std::unique_ptr<device::Recording> made = std::move(recording_);
  SHARPI_TRY(given);
  return made;
}

Status HostQueue::replay(const device::Recording& recording) const {
  const auto& r = static_cast<const HostRecording&>(recording);
  ++counts_->n_replays;
  for (const Work& work : r.work) give(work);
  if (!r.meets_host) return Status::ok();
  join();
  runner_ = std::thread([state = state_] {
    while (state->run_next()) {
    }
  });
  return Status::ok();
}

HostDevice::HostDevice(uint32_t index, TierId tier)
    : index_(index), tier_(tier), kernels_(make_host_kernels()) {}

Status HostDevice::usable() const {
  if (lost_ == 0) return Status::ok();
  return Status::native_error(Code::kDeviceLost, lost_, "device %u is lost", index_);
}

std::byte* HostDevice::allocate(uint64_t held) {
  auto* data = static_cast<std::byte*>(os::allocate_aligned(512, held));
  if (data != nullptr) std::memset(data, 0, held);
  return data;
}

Result<std::byte*> HostDevice::take(uint64_t bytes, const char* what) const {
  const uint64_t held = held_bytes(bytes);
  std::byte* data = allocate(held);
  if (data == nullptr) return Status::error(Code::kOutOfMemory, "there is no memory for %s", what);
  counts_->device_bytes += held;
  return data;
}

void HostDevice::give(std::byte* data, uint64_t bytes) const noexcept {
  std::memset(data, 0xEE, held_bytes(bytes));
  counts_->device_bytes -= held_bytes(bytes);
  os::free_aligned(data);
}

Result<std::byte*> HostDevice::take_pinned(uint64_t bytes, const char* what) const {
  const uint64_t held = pinned_held_bytes(bytes);
  std::byte* data = allocate(held);
  if (data == nullptr) return Status::error(Code::kOutOfMemory, "no pinned memory for %s", what);
  counts_->pinned_bytes += held;
  return data;
}

void HostDevice::give_pinned(std::byte* data, uint64_t bytes) const noexcept {
  std::memset(data, 0xEE, pinned_held_bytes(bytes));
  counts_->pinned_bytes -= pinned_held_bytes(bytes);
  os::free_aligned(data);
}

Result<device::Addresses> HostDevice::reserve(uint64_t bytes, uint64_t granule,
                                              const char* what) const {
  int error = 0;
  device::Addresses out;
  out.data = os::map_pages(bytes, os::Access::kNone, &error);
  if (out.data == nullptr) return Status::error(Code::kOutOfMemory, "no addresses for %s", what);
  out.memory = make_host_granules(meter_, out.data, granule, what);
  return out;
}

void HostDevice::unreserve(const device::Addresses& addresses, uint64_t bytes) const noexcept {
  os::unmap_pages(addresses.data, bytes);
}

Result<std::unique_ptr<device::Queue>> HostDevice::create_queue() const {
  return std::unique_ptr<device::Queue>(std::make_unique<HostQueue>(counts_, index_));
}

Result<std::unique_ptr<device::Event>> HostDevice::create_event() const {
  return std::unique_ptr<device::Event>(std::make_unique<HostEvent>());
}

std::unique_ptr<device::PassKernels> HostDevice::pass_kernels(const ModelShape& model) const {
  return make_host_pass_kernels(model);
}

}  // namespace sharpi::testing
