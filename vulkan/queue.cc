// SPDX-License-Identifier: MIT
#include "vulkan/queue.h"

#include <algorithm>

namespace sharpi::vulkan {
namespace {

/// Operations that are written before they go to the device.
constexpr uint32_t kFlushAt = 32;
/// Dispatches have at most so many workgroups in one direction on every device.
constexpr uint64_t kMostGroups = 65535;
/// Host memory that is copied into the command buffer itself.
constexpr uint64_t kMostInline = 65536;

using Guard = std::lock_guard<std::recursive_mutex>;

Result<VkCommandPool> make_pool(const Driver& d) {
  VkCommandPoolCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
  info.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  info.queueFamilyIndex = d.physical().queue_family;
  VkCommandPool pool = VK_NULL_HANDLE;
  SHARPI_TRY(
      d.check(d.f().vkCreateCommandPool(d.device(), &info, nullptr, &pool), "vkCreateCommandPool"));
  return pool;
}

Result<VkCommandBuffer> make_commands(const Driver& d, VkCommandPool pool) {
  VkCommandBufferAllocateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
  info.commandPool = pool;
  info.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  info.commandBufferCount = 1;
  VkCommandBuffer made = VK_NULL_HANDLE;
  SHARPI_TRY(d.check(d.f().vkAllocateCommandBuffers(d.device(), &info, &made),
                     "vkAllocateCommandBuffers"));
  return made;
}

Status begin(const Driver& d, VkCommandBuffer commands, VkCommandBufferUsageFlags use) {
  VkCommandBufferBeginInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
  info.flags = use;
  return d.check(d.f().vkBeginCommandBuffer(commands, &info), "vkBeginCommandBuffer");
}

}  // namespace

Status Event::wait(const char* what) const {
  return mark.timeline == nullptr ? Status::ok() : mark.timeline->wait(mark.value, what);
}

Result<bool> Event::has_happened(const char* what) const {
  if (mark.timeline == nullptr) return true;
  return mark.timeline->reached(mark.value, what);
}

Recording::~Recording() {
  driver_.f().vkDestroyCommandPool(driver_.device(), pool_, nullptr);
}

Result<std::unique_ptr<Queue>> Queue::create(const Driver& driver) {
  std::unique_ptr<Queue> q(new Queue(driver));
  SHARPI_TRY_ASSIGN(q->pool_, make_pool(driver));
  SHARPI_TRY_ASSIGN(q->timeline_, driver.create_timeline());
  // So giving work takes no memory, but where more is under way than this.
  constexpr size_t kUsual = 64;
  q->used_.reserve(kUsual);
  q->free_.reserve(kUsual);
  q->waits_.reserve(kUsual);
  return q;
}

Queue::~Queue() {
  recording_.reset();
  const Status ended = timeline_ == nullptr ? Status::ok() : wait();
  (void)ended.is_ok();  // of a lost device nothing runs any more
  if (pool_ != VK_NULL_HANDLE) driver_.f().vkDestroyCommandPool(driver_.device(), pool_, nullptr);
}

Result<VkCommandBuffer> Queue::open() const {
  if (recording_ != nullptr) return recording_->parts.back().commands;
  if (open_ != VK_NULL_HANDLE) return open_;
  for (size_t i = 0; i < used_.size() && free_.empty(); ++i) {
    SHARPI_TRY_ASSIGN(const bool done, timeline_->reached(used_[i].value, "asking for work"));
    if (!done) continue;
    free_.push_back(used_[i].commands);
    used_.erase(used_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  VkCommandBuffer commands = VK_NULL_HANDLE;
  if (free_.empty()) {
    SHARPI_TRY_ASSIGN(commands, make_commands(driver_, pool_));
  } else {
    commands = free_.back();
    free_.pop_back();
  }
  SHARPI_TRY(begin(driver_, commands, VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT));
  open_ = commands;
  n_open_ = 0;
  last_ = Op::kCopy;
  return commands;
}

/// Where the next operation is written, behind a barrier or beside the one before.
Result<VkCommandBuffer> Queue::begin_op(Op op) const {
  if (recording_ == nullptr && n_open_ >= kFlushAt) SHARPI_TRY(flush());
  SHARPI_TRY_ASSIGN(const VkCommandBuffer commands, open());
  if (op == Op::kCopy || last_ == Op::kCopy) {
    barrier(driver_.f(), commands);
  } else if (op == Op::kKernel) {
    kernel_barrier(driver_.f(), commands);
  }
  last_ = op;
  ++n_open_;
  return commands;
}

Status Queue::submit(VkCommandBuffer commands) const {
  const Status done = driver_.submit(commands, waits_.data(), static_cast<uint32_t>(waits_.size()),
                                     {timeline_, value_ + 1});
  waits_.clear();
  if (done.is_ok()) ++value_;
  return done;
}

Status Queue::flush() const {
  if (open_ == VK_NULL_HANDLE && waits_.empty()) return Status::ok();
  const VkCommandBuffer commands = open_;
  open_ = VK_NULL_HANDLE;
  n_open_ = 0;
  if (commands == VK_NULL_HANDLE) return submit(commands);
  barrier(driver_.f(), commands, true);
  SHARPI_TRY(driver_.check(driver_.f().vkEndCommandBuffer(commands), "vkEndCommandBuffer"));
  SHARPI_TRY(submit(commands));
  used_.push_back({commands, value_});
  return Status::ok();
}

Status Queue::dispatch(const Kernel& k, const void* parameters, uint32_t parameter_bytes) const {
  if (k.items == 0 || k.layers == 0) return Status::ok();
  Constants constants{k.threads == 0 ? driver_.profile().threads : k.threads};
  constants.append(k.constants.begin(), k.constants.end());
  constants.push_back(k.args.nulls());
  if (!k.args.fits() || !k.constants.fits() || !constants.fits()) {
    return Status::error(Code::kInternal, "shader %s has too many arguments",
                         shader_name(k.shader));
  }
  if (lists_) {
    driver_.pipelines().want(k.shader, constants);
    return Status::ok();
  }
  SHARPI_TRY_ASSIGN(const VkPipeline pipeline, driver_.pipelines().get(k.shader, constants));
  const Guard guard(mutex_);
  const DeviceFunctions& f = driver_.f();
  if (parameters != nullptr) {
    SHARPI_TRY_ASSIGN(const VkCommandBuffer c, begin_op());
    f.vkCmdUpdateBuffer(c, driver_.parameters().buffer, 0, parameter_bytes, parameters);
    n_open_ = std::min(n_open_, kFlushAt - 1);  // the kernel goes with it
  }
  SHARPI_TRY_ASSIGN(const VkCommandBuffer c, begin_op(k.beside ? Op::kKernelBeside : Op::kKernel));
  const uint64_t x = std::min(k.items, kMostGroups), y = (k.items + x - 1) / x;
  f.vkCmdBindPipeline(c, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
  f.vkCmdPushConstants(c, driver_.pipelines().layout(), VK_SHADER_STAGE_COMPUTE_BIT, 0, kPushBytes,
                       k.args.data());
  f.vkCmdDispatch(c, static_cast<uint32_t>(x), static_cast<uint32_t>(y), k.layers);
  return Status::ok();
}

bool Queue::place(const Side& side, Place* out) const {
  return side.host ? driver_.host_place(reinterpret_cast<const void*>(side.at), out)
                   : driver_.place(side.at, out);
}

Status Queue::copy_sides(Side to, Side from, uint64_t bytes, const char* what) const {
  const Guard guard(mutex_);
  SHARPI_TRY_ASSIGN(const VkCommandBuffer c, begin_op());
  while (bytes != 0) {
    Place a, b;
    if (!place(from, &a) || !place(to, &b)) {
      return Status::error(Code::kInternal, "%s: no memory of the device is at an address", what);
    }
    const uint64_t n = std::min({bytes, a.left, b.left});
    const VkBufferCopy region{a.offset, b.offset, n};
    driver_.f().vkCmdCopyBuffer(c, a.buffer, b.buffer, 1, &region);
    to.at += n;
    from.at += n;
    bytes -= n;
  }
  return Status::ok();
}

Status Queue::copy_within(uint64_t to, uint64_t from, uint64_t bytes, const char* what) const {
  return copy_sides({to, false}, {from, false}, bytes, what);
}

/// Memory that only the host knows: a little goes into the command buffer, the rest waits for what
/// is in front of it.
Status Queue::copy_unpinned(uint64_t device, void* host, uint64_t bytes, bool to_host,
                            const char* what) const {
  const Guard guard(mutex_);
  Place p;
  const bool fits = !to_host && bytes <= kMostInline && bytes % 4 == 0 &&
                    driver_.place(device, &p) && p.left >= bytes && p.offset % 4 == 0;
  if (fits) {
    SHARPI_TRY_ASSIGN(const VkCommandBuffer c, begin_op());
    driver_.f().vkCmdUpdateBuffer(c, p.buffer, p.offset, bytes, host);
    return Status::ok();
  }
  if (recording_ != nullptr) {
    return Status::error(Code::kInternal, "%s: memory of the host cannot be in a recording", what);
  }
  SHARPI_TRY(wait());
  return driver_.copy_now(device, host, bytes, to_host, what);
}

Status Queue::copy(void* to, const void* from, uint64_t bytes, device::Way way,
                   const char* what) const {
  if (bytes == 0) return Status::ok();
  const auto a = reinterpret_cast<uint64_t>(to), b = reinterpret_cast<uint64_t>(from);
  const bool in = way == device::Way::kToDevice, out = way == device::Way::kToHost;
  Place p;
  if (in && !driver_.host_place(from, &p))
    return copy_unpinned(a, const_cast<void*>(from), bytes, false, what);
  if (out && !driver_.host_place(to, &p)) return copy_unpinned(b, to, bytes, true, what);
  return copy_sides({a, out}, {b, in}, bytes, what);
}

Status Queue::copy_rows(const device::RowRange& to, const device::ConstRowRange& from,
                        uint64_t bytes, uint64_t n, device::Way way, const char* what) const {
  for (uint64_t i = 0; i < n; ++i) {
    SHARPI_TRY(copy(static_cast<std::byte*>(to.data) + i * to.stride,
                    static_cast<const std::byte*>(from.data) + i * from.stride, bytes, way, what));
  }
  return Status::ok();
}

Status Queue::clear(void* to, uint64_t bytes, const char* what) const {
  const Guard guard(mutex_);
  auto at = reinterpret_cast<uint64_t>(to);
  if (at % 4 != 0 || bytes % 4 != 0) {
    return Status::error(Code::kInternal, "%s: %llu bytes are no whole words", what,
                         static_cast<unsigned long long>(bytes));
  }
  SHARPI_TRY_ASSIGN(const VkCommandBuffer c, begin_op());
  while (bytes != 0) {
    Place p;
    if (!driver_.place(at, &p)) {
      return Status::error(Code::kInternal, "%s: no memory of the device is at an address", what);
    }
    const uint64_t n = std::min(bytes, p.left);
    driver_.f().vkCmdFillBuffer(c, p.buffer, p.offset, n, 0);
    at += n;
    bytes -= n;
  }
  return Status::ok();
}

Status Queue::record(const device::Event& event, const char*) const {
  const Guard guard(mutex_);
  SHARPI_TRY(flush());
  const_cast<Event&>(static_cast<const Event&>(event)).mark = {timeline_, value_};
  return Status::ok();
}

Status Queue::wait_for(const device::Event& event, const char*) const {
  const Mark& mark = static_cast<const Event&>(event).mark;
  if (mark.timeline == nullptr) return Status::ok();
  const Guard guard(mutex_);
  SHARPI_TRY(flush());  // what was given before does not wait
  waits_.push_back(mark);
  return Status::ok();
}

Status Queue::wait() const {
  uint64_t value = 0;
  {
    const Guard guard(mutex_);
    SHARPI_TRY(flush());
    value = value_;
  }
  return timeline_->wait(value, "waiting for work");
}

Result<bool> Queue::has_ended(const char* what) const {
  const Guard guard(mutex_);
  SHARPI_TRY(flush());
  return timeline_->reached(value_, what);
}

Status Queue::begin_recording() const {
  const Guard guard(mutex_);
  SHARPI_TRY(flush());
  SHARPI_TRY_ASSIGN(const VkCommandPool pool, make_pool(driver_));
  recording_ = std::make_unique<Recording>(driver_, pool);
  const Status begun = begin_part();
  if (!begun.is_ok()) recording_.reset();
  return begun;
}

Status Queue::begin_part() const {
  SHARPI_TRY_ASSIGN(const VkCommandBuffer commands, make_commands(driver_, recording_->pool_));
  SHARPI_TRY(begin(driver_, commands, VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT));
  recording_->parts.push_back({commands});
  last_ = Op::kCopy;
  return Status::ok();
}

Status Queue::end_part() const {
  const VkCommandBuffer commands = recording_->parts.back().commands;
  barrier(driver_.f(), commands, true);
  return driver_.check(driver_.f().vkEndCommandBuffer(commands), "vkEndCommandBuffer");
}

Status Queue::end_with_question() const {
  const Guard guard(mutex_);
  SHARPI_TRY(end_part());
  recording_->parts.back().asks = true;
  return begin_part();
}

Status Queue::begin_with_answer() const {
  const Guard guard(mutex_);
  SHARPI_TRY(end_part());
  SHARPI_TRY(begin_part());
  recording_->parts.back().answered = true;
  return Status::ok();
}

Result<std::unique_ptr<device::Recording>> Queue::end_recording(const Status& given) const {
  const Guard guard(mutex_);
  const Status ended = given.is_ok() ? end_part() : given;
  std::unique_ptr<Recording> made = std::move(recording_);
  n_open_ = 0;
  last_ = Op::kCopy;
  SHARPI_TRY(ended);
  return std::unique_ptr<device::Recording>(std::move(made));
}

Status Queue::replay(const device::Recording& recording) const {
  const Guard guard(mutex_);
  SHARPI_TRY(flush());
  running_ = &static_cast<const Recording&>(recording);
  next_part_ = 0;
  return run_parts();
}

/// The next part, and those behind it that need no answer.
Status Queue::run_parts() const {
  const std::vector<Recording::Part>& parts = running_->parts;
  do {
    const Recording::Part& part = parts[next_part_++];
    SHARPI_TRY(submit(part.commands));
    if (part.asks) asked_ = value_;
  } while (next_part_ < parts.size() && !parts[next_part_].answered);
  if (next_part_ == parts.size()) running_ = nullptr;
  return Status::ok();
}

Result<bool> Queue::has_asked(const char* what) const {
  const Guard guard(mutex_);
  return timeline_->reached(asked_, what);
}

Status Queue::go_on() const {
  const Guard guard(mutex_);
  if (running_ == nullptr)
    return Status::error(Code::kInternal, "no part of a recording waits for the host");
  return run_parts();
}

}  // namespace sharpi::vulkan
