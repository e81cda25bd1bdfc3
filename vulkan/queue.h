// SPDX-License-Identifier: MIT
// The Vulkan tier's queue, event and recording (device/device.h). A queue writes what it is given
// into a command buffer, which goes to the device when it is full, when somebody waits or asks, or
// when an event is recorded. Everything waits for what is in front of it. A recording is command
// buffers that are submitted again as they are: several where it asks the host in between, because
// writes of a device are seen by the host, and the host's by a device, from submission to
// submission only.
// Thread rule: a queue may be given work by several threads; each call is one piece of it.
#pragma once

#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"
#include "vulkan/driver.h"
#include "vulkan/pipelines.h"

namespace sharpi::vulkan {

/// Push constants in the order of a shader's: addresses first, then words.
class Args {
 public:
  Args& at(const void* address) { return at(reinterpret_cast<uint64_t>(address)); }
  Args& at(uint64_t address) {
    if (address == 0) nulls_ |= 1u << size_ / sizeof address;
    return put(address);
  }
  Args& u(uint64_t value) { return put(static_cast<uint32_t>(value)); }
  Args& f(float value) { return put(value); }
  const std::byte* data() const { return bytes_; }
  uint32_t size() const { return size_; }
  bool fits() const { return size_ <= kPushBytes; }
  /// Which addresses are none, a bit each (shaders/common.glsl).
  uint32_t nulls() const { return nulls_; }

 private:
  template <class T>
  Args& put(T value) {
    if (size_ + sizeof value <= sizeof bytes_) std::memcpy(bytes_ + size_, &value, sizeof value);
    size_ += static_cast<uint32_t>(sizeof value);
    return *this;
  }
  std::byte bytes_[kPushBytes] = {};
  uint32_t size_ = 0, nulls_ = 0;
};

/// One dispatch. `items` workgroups, of which shaders find the number by item() of
/// shaders/common.glsl, times `layers`.
struct Kernel {
  Shader shader{};
  Constants constants;  // behind the number of threads
  Args args;
  uint64_t items = 0;
  uint32_t layers = 1;
  uint32_t threads = 0;  // 0: as the device likes
  bool beside = false;   // it need not wait for the operation before it
};

class Event final : public device::Event {
 public:
  Status wait(const char* what) const override;
  Result<bool> has_happened(const char* what) const override;
  Mark mark;  // of the last record(); no timeline: none was made
};

class Recording final : public device::Recording {
 public:
  /// `asks`: its end is what has_asked() hears of. `answered`: it begins by go_on().
  struct Part {
    VkCommandBuffer commands = VK_NULL_HANDLE;
    bool asks = false, answered = false;
  };
  Recording(const Driver& driver, VkCommandPool pool) : driver_(driver), pool_(pool) {}
  ~Recording() override;
  std::vector<Part> parts;

 private:
  const Driver& driver_;
  VkCommandPool pool_;
  friend class Queue;
};

class Queue final : public device::Queue {
 public:
  static Result<std::unique_ptr<Queue>> create(const Driver& driver);
  ~Queue() override;

  /// Parameters, if any, are written to Driver::parameters() in front of the kernel.
  Status dispatch(const Kernel& kernel, const void* parameters = nullptr,
                  uint32_t parameter_bytes = 0) const;
  /// Whether dispatch() lists the pipelines that it would take, and does nothing else.
  void list_pipelines(bool lists) const { lists_ = lists; }
  /// Copies between device addresses.
  Status copy_within(uint64_t to, uint64_t from, uint64_t bytes, const char* what) const;

  Status copy(void* to, const void* from, uint64_t bytes, device::Way way,
              const char* what) const override;
  Status copy_rows(const device::RowRange& to, const device::ConstRowRange& from, uint64_t bytes,
                   uint64_t n, device::Way way, const char* what) const override;
  Status clear(void* to, uint64_t bytes, const char* what) const override;
  Status record(const device::Event& event, const char* what) const override;
  Status wait_for(const device::Event& event, const char* what) const override;
  Status wait() const override;
  Result<bool> has_ended(const char* what) const override;
  Status begin_recording() const override;
  Result<std::unique_ptr<device::Recording>> end_recording(const Status& given) const override;
  Status replay(const device::Recording& recording) const override;
  bool runs_in_parts() const override { return true; }
  Result<bool> has_asked(const char* what) const override;
  Status go_on() const override;
  /// While a recording is made: what was given so far asks the host; what is given from now on
  /// reads its answer.
  Status end_with_question() const;
  Status begin_with_answer() const;

 private:
  explicit Queue(const Driver& driver) : driver_(driver) {}
  /// Memory on one side of a copy.
  struct Side {
    uint64_t at = 0;
    bool host = false;
  };
  enum class Op : uint8_t { kCopy, kKernel, kKernelBeside };
  Result<VkCommandBuffer> begin_op(Op op = Op::kCopy) const;
  Result<VkCommandBuffer> open() const;
  Status flush() const;
  Status submit(VkCommandBuffer commands) const;
  Status begin_part() const;
  Status end_part() const;
  Status run_parts() const;
  bool place(const Side& side, Place* out) const;
  Status copy_sides(Side to, Side from, uint64_t bytes, const char* what) const;
  Status copy_unpinned(uint64_t device, void* host, uint64_t bytes, bool to_host,
                       const char* what) const;

  struct Used {
    VkCommandBuffer commands;
    uint64_t value;
  };
  const Driver& driver_;
  std::shared_ptr<Timeline> timeline_;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  mutable std::recursive_mutex mutex_;
  mutable VkCommandBuffer open_ = VK_NULL_HANDLE;
  mutable uint32_t n_open_ = 0;  // operations in it
  mutable bool lists_ = false;   // list_pipelines()
  mutable Op last_ = Op::kCopy;  // the last of them, or of a recording's part
  mutable std::vector<Used> used_;
  mutable std::vector<VkCommandBuffer> free_;
  mutable std::vector<Mark> waits_;  // of the next submission
  mutable uint64_t value_ = 0;       // of the last one
  mutable std::unique_ptr<Recording> recording_;
  mutable const Recording* running_ = nullptr;  // the last that was replayed, while parts are left
  mutable size_t next_part_ = 0;
  mutable uint64_t asked_ = 0;  // where the last question of it is
};

}  // namespace sharpi::vulkan
