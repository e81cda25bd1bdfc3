// SPDX-License-Identifier: MIT
// Tensors on their way from the mapped file to the device: several pinned slots take turns, each
// with a stream of its own and room on the device for file bytes, from where the repacking kernel
// moves them into place. While one slot crosses the bus, threads fill the next from the file.
// Thread rule: one call at a time.
#pragma once

#include <functional>
#include <memory>
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
  uint32_t n_threads = 1;  // that read the file, the caller included
  uint64_t bytes() const { return slot_bytes * n_slots; }  // pinned, and the same on the device
};

class StagedCopy {
 public:
  /// `what` names the memory in errors.
  static Result<std::unique_ptr<StagedCopy>> create(const Device& device,
                                                    const StagedCopyShape& shape, const char* what);

  /// Sends a tensor to `to`, in its device layout, once `after` has happened (null = at once).
  /// Returns when the last piece is on its way; `advance` hears of every piece's bytes.
  Status send(const TensorRef& tensor, std::byte* to, cudaEvent_t after,
              const std::function<Status(uint64_t)>& advance);
  /// Bytes [first, last) of it alone: whole panels, to `to` + first.
  Status send_part(const TensorRef& tensor, uint64_t first, uint64_t last, std::byte* to,
                   cudaEvent_t after, const std::function<Status(uint64_t)>& advance);
  /// Work enqueued on `stream` from now on sees everything that was sent.
  Status join(cudaStream_t stream) const;
  /// Waits until everything has arrived.
  Status wait() const;

 private:
  struct Slot {
    std::byte* pinned = nullptr;
    std::byte* staged = nullptr;
    Event done;
    bool busy = false;
    Stream stream;
  };
  StagedCopy() = default;
  Status send_piece(const TensorRef& tensor, bool tiles, uint64_t at, uint64_t n, std::byte* to,
                    cudaEvent_t after);

  const Device* device_ = nullptr;
  StagedCopyShape shape_;
  std::unique_ptr<ThreadPool> pool_;
  PinnedBuffer pinned_;
  DeviceBuffer staged_;
  std::vector<Slot> slots_;  // after the buffers: their streams' work must end before those go
  uint32_t next_ = 0;
};

}  // namespace sharpi::cuda
