// SPDX-License-Identifier: MIT
#include "device/expert_line.h"

#include <atomic>
#include <chrono>

#include "base/cpu_relax.h"

namespace sharpi::device {
namespace {

/// A GPU that sends nothing for so long is asked whether it still runs.
constexpr auto kPatience = std::chrono::seconds(2);
constexpr uint32_t kPollsPerClock = 4096;

}  // namespace

bool leave_out_resident(const ExpertSlots& slots, uint32_t layer, int32_t* ids, uint32_t n) {
  const int32_t* table = slots.host_table(layer);
  if (table == nullptr) return true;
  bool any = false;
  for (uint32_t i = 0; i < n; ++i) {
    if (ids[i] >= 0 && table[ids[i]] >= 0) ids[i] = ~ids[i];
    any = any || ids[i] >= 0;
  }
  return any;
}

GraphLine::GraphLine(const Device& device, ExpertHandover& handover, ExpertSlots& slots,
                     const ModelSpec& spec, const Segment& segment, uint32_t n_rows, bool use_slots,
                     const Queue& stream)
    : device_(device),
      handover_(handover),
      slots_(slots),
      spec_(spec),
      segment_(segment),
      n_rows_(n_rows),
      use_slots_(use_slots),
      number_(*handover.at<uint32_t>(handover.layout.sent)),
      stream_(stream) {
  publish(number_);  // what a call that failed had answered in advance
}

GraphLine::~GraphLine() {
  for (; at_ < segment_.blocks.size(); ++at_) number_ += asks(segment_.blocks[at_]) ? 1 : 0;
  publish(number_);
}

Status GraphLine::status() const {
  const bool finished = at_ == segment_.blocks.size() && !unanswered_;
  if (!status_.is_ok() || finished) return status_;
  return Status::error(Code::kInternal,
                       "the host of the experts left a decode step at block %zu of %zu", at_,
                       segment_.blocks.size());
}

void GraphLine::publish(uint32_t number) {
  std::atomic_ref<uint32_t>(*handover_.at<uint32_t>(handover_.layout.done))
      .store(number, std::memory_order_release);
}

/// Whether request `number` is here.
Result<bool> GraphLine::has_come(uint32_t number) const {
  if (stream_.runs_in_parts()) return stream_.has_asked("a decode step");
  const std::atomic_ref<uint32_t> sent(*handover_.at<uint32_t>(handover_.layout.sent));
  return static_cast<int32_t>(sent.load(std::memory_order_acquire) - number) >= 0;
}

/// The device need not wait for the host any longer. False: status_ says what is wrong.
bool GraphLine::go_on() {
  publish(number_);
  const Status begun = stream_.go_on();
  if (!begun.is_ok()) status_ = begun;
  return begun.is_ok();
}

bool GraphLine::wait_for(uint32_t number) {
  auto asked = std::chrono::steady_clock::now();
  for (uint32_t n = 1;; ++n) {
    const Result<bool> come = has_come(number);
    if (!come.is_ok()) status_ = come.status();
    if (!come.is_ok() || come.value()) return come.is_ok();
    if (!slots_.copy_piece()) cpu_relax();
    if (n % kPollsPerClock != 0) continue;
    if (std::chrono::steady_clock::now() - asked < kPatience) continue;
    asked = std::chrono::steady_clock::now();
    const DeviceScope scope(device_);
    const Result<bool> ended = stream_.has_ended("a decode step");
    if (ended.is_ok() && !ended.value()) continue;
    const Result<bool> after_all = has_come(number);
    if (after_all.is_ok() && after_all.value()) return true;
    status_ = ended.is_ok() ? Status::ok() : ended.status();
    if (status_.is_ok()) {
      status_ = Status::error(Code::kInternal, "a decode step ended before request %u", number);
    }
    return false;
  }
}

const ExpertRequest* GraphLine::next() {
  for (; at_ < segment_.blocks.size(); ++at_) {
    if (!asks(segment_.blocks[at_])) continue;
    if (!wait_for(number_ + 1)) return nullptr;
    ++number_;
    const uint32_t layer = segment_.blocks[at_].layer;
    const uint32_t n = n_rows_ * spec_.layers[layer].ffn.n_used;
    int32_t* ids = handover_.layer_ids(layer);
    if (use_slots_ && !leave_out_resident(slots_, layer, ids, n)) {
      if (stream_.runs_in_parts() && !go_on()) return nullptr;  // kernels know it themselves
      slots_.note(layer, ids, n, true);
      continue;
    }
    request_ = {layer,
                n_rows_,
                handover_.at<float>(handover_.layout.x),
                ids,
                handover_.layer_weights(layer),
                handover_.at<float>(handover_.layout.y)};
    ++at_;
    unanswered_ = true;
    return &request_;
  }
  return nullptr;
}

void GraphLine::answer() {
  unanswered_ = !go_on();  // first: the device waits
  const uint32_t n = n_rows_ * spec_.layers[request_.layer].ffn.n_used;
  slots_.note(request_.layer, request_.ids, n, use_slots_);
}

}  // namespace sharpi::device
