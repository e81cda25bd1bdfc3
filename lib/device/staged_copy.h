// SPDX-License-Identifier: MIT
// Copies tensors from the file, or from their copies in host memory, to the device: several pinned
// slots are used round-robin, each with a stream of its own and room on the device for file bytes,
// from where a kernel repacks them to their place. While one slot crosses the bus, threads fill the
// next. Thread rule: one call at a time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "device/memory.h"
#include "model/model_spec.h"

namespace sharpi::device {

struct StagedCopyShape {
  uint64_t slot_bytes = 0;
  uint32_t n_slots = 0;
  uint32_t n_threads = 1;  // that read the file, the caller included; at most 3/4 of the CPUs
  uint64_t bytes() const { return slot_bytes * n_slots; }  // pinned, and the same on the device
};

/// A tensor and where it goes, in its device layout.
struct StagedItem {
  TensorRef tensor;
  std::byte* to = nullptr;
};

class StagedCopy {
 public:
  /// `what` names the memory in errors.
  static Result<std::unique_ptr<StagedCopy>> create(const Device& device,
                                                    const StagedCopyShape& shape, const char* what);

  /// Sends a tensor that is in host memory to `to`, in its device layout, once `after` has happened
  /// (null = at once). Returns when the last piece is on its way. The threads fill one slot after
  /// the other together.
  Status send(const TensorRef& tensor, std::byte* to, const Event* after);
  /// Sends only bytes [first, last) of the tensor, which are whole units of its layout, to `to` +
  /// first.
  Status send_part(const TensorRef& tensor, uint64_t first, uint64_t last, std::byte* to,
                   const Event* after);
  /// Sends many tensors, which are read from the file. The threads do not meet: whoever finishes a
  /// slot sends it, and the others are in the next ones by then. `advance` hears of bytes on their
  /// way, on the caller's thread, and may end it.
  Status send_all(const GgufFile& file, std::span<const StagedItem> items,
                  const std::function<Status(uint64_t)>& advance);
  /// Work enqueued on `stream` from now on sees everything that was sent.
  Status join(const Queue& stream) const;
  /// Waits until everything has arrived.
  Status wait() const;

 private:
  struct Slot {
    std::byte* pinned = nullptr;
    std::byte* staged = nullptr;
    std::unique_ptr<Event> done;
    bool busy = false;  // `done` was recorded
    std::unique_ptr<Queue> stream;
    // Of one send_all(): pieces that were sent from here, the piece that may be filled in, plus
    // one, and its parts that nobody has finished.
    std::atomic<uint64_t> sent{0}, open{0};
    std::atomic<uint32_t> left{0};
  };
  /// Consecutive bytes of a tensor that fit a slot: whole units where its layout changes.
  struct Piece {
    uint32_t item = 0;
    bool lays_out = false;
    uint64_t at = 0, bytes = 0;
  };
  struct Call;
  StagedCopy() = default;
  Result<uint64_t> piece_bytes(const TensorRef& tensor, bool* lays_out) const;
  Status cut(std::span<const StagedItem> items);
  void fill(Call* call);
  bool open_slot(Call* call, uint64_t piece);
  Status free_slot(Slot* slot) const;
  Status send_piece(const StagedItem& item, const Piece& piece, Slot* slot, const Event* after);

  const Device* device_ = nullptr;
  StagedCopyShape shape_;
  std::unique_ptr<ThreadPool> pool_;
  PinnedBuffer pinned_;
  DeviceBuffer staged_;
  std::vector<Slot> slots_;  // after the buffers: their streams' work must end before those go
  uint32_t next_ = 0;        // slot of the next send_part()
  std::vector<Piece> pieces_;
};

}  // namespace sharpi::device
