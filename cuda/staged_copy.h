// SPDX-License-Identifier: MIT
// Tensors on their way from the mapped file to the device: several pinned slots take turns, each
// with a stream of its own and room on the device for file bytes, from where the repacking kernel
// moves them into place. Threads fill slots from the file, part by part and without meeting;
// whoever finishes a slot sends it, and the others are in the next ones by then. Thread rule: one
// call at a time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "cuda/device_memory.h"
#include "cuda/kernels/weight_layout.h"
#include "cuda/stream.h"
#include "model/model_spec.h"

namespace sharpi::cuda {

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

  /// Sends tensors, once `after` has happened (null = at once). Returns when the last piece is on
  /// its way; `advance` hears of bytes that are, on the caller's thread, and may end it.
  Status send(std::span<const StagedItem> items, cudaEvent_t after,
              const std::function<Status(uint64_t)>& advance);
  /// Work enqueued on `stream` from now on sees everything that was sent.
  Status join(cudaStream_t stream) const;
  /// Waits until everything has arrived.
  Status wait() const;

 private:
  struct Slot {
    std::byte* pinned = nullptr;
    std::byte* staged = nullptr;
    Event done;
    bool busy = false;  // `done` was recorded
    Stream stream;
    // Of one call: pieces that were sent from here, the piece that may be filled in, plus one, and
    // its parts that nobody has finished.
    std::atomic<uint64_t> sent{0}, open{0};
    std::atomic<uint32_t> left{0};
  };
  /// Consecutive bytes of a tensor that fit a slot: whole panels where it is tiled.
  struct Piece {
    uint32_t item = 0;
    bool tiles = false;
    uint64_t at = 0, bytes = 0;
  };
  struct Call;
  StagedCopy() = default;
  Status cut(std::span<const StagedItem> items);
  void fill(Call* call);
  bool open_slot(Call* call, uint64_t piece);
  Status send_piece(const StagedItem& item, const Piece& piece, Slot* slot, cudaEvent_t after);

  const Device* device_ = nullptr;
  StagedCopyShape shape_;
  std::unique_ptr<ThreadPool> pool_;
  PinnedBuffer pinned_;
  DeviceBuffer staged_;
  std::vector<Slot> slots_;  // after the buffers: their streams' work must end before those go
  std::vector<Piece> pieces_;
};

}  // namespace sharpi::cuda
