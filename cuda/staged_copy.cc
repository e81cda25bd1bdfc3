// SPDX-License-Identifier: MIT
#include "cuda/staged_copy.h"

#include <algorithm>
#include <cstring>

namespace sharpi::cuda {

Result<std::unique_ptr<StagedCopy>> StagedCopy::create(const Device& device,
                                                       const StagedCopyShape& shape,
                                                       const char* what) {
  std::unique_ptr<StagedCopy> c(new StagedCopy());
  c->device_ = &device;
  c->shape_ = shape;
  SHARPI_TRY_ASSIGN(c->pool_, ThreadPool::create(shape.n_threads));
  SHARPI_TRY_ASSIGN(c->pinned_, PinnedBuffer::allocate(device, shape.bytes(), what));
  SHARPI_TRY_ASSIGN(c->staged_, DeviceBuffer::allocate(device, shape.bytes(), what));
  c->slots_.resize(shape.n_slots);
  for (uint32_t i = 0; i < shape.n_slots; ++i) {
    Slot& s = c->slots_[i];
    s.pinned = c->pinned_.data() + i * shape.slot_bytes;
    s.staged = c->staged_.data() + i * shape.slot_bytes;
    SHARPI_TRY_ASSIGN(s.done, Event::create(device));
    SHARPI_TRY_ASSIGN(s.stream, Stream::create(device));
  }
  return c;
}

Status StagedCopy::send(const TensorRef& tensor, std::byte* to, cudaEvent_t after,
                        const std::function<Status(uint64_t)>& advance) {
  return send_part(tensor, 0, tensor.bytes(), to, after, advance);
}

Status StagedCopy::send_part(const TensorRef& tensor, uint64_t first, uint64_t last, std::byte* to,
                             cudaEvent_t after, const std::function<Status(uint64_t)>& advance) {
  const bool tiles =
      weight_layout(tensor.tensor->type, tensor.n_in, tensor.n_out) == WeightLayout::kTiles;
  // Tiles move in whole panels.
  const uint64_t unit = tiles ? kPanelRows * tensor.row_bytes() : 1;
  const uint64_t piece = shape_.slot_bytes / unit * unit;
  if (piece == 0) {
    return Status::error(Code::kUnsupported, "a row of %.*s has %llu bytes",
                         static_cast<int>(tensor.tensor->name.size()), tensor.tensor->name.data(),
                         static_cast<unsigned long long>(tensor.row_bytes()));
  }
  for (uint64_t at = first; at < last; at += piece) {
    const uint64_t n = std::min(piece, last - at);
    SHARPI_TRY(send_piece(tensor, tiles, at, n, to + at, after));
    if (advance) SHARPI_TRY(advance(n));
  }
  return Status::ok();
}

Status StagedCopy::send_piece(const TensorRef& tensor, bool tiles, uint64_t at, uint64_t n,
                              std::byte* to, cudaEvent_t after) {
  Slot& s = slots_[next_];
  next_ = (next_ + 1) % shape_.n_slots;
  if (s.busy) SHARPI_TRY(device_->check(cudaEventSynchronize(s.done.get()), "weight staging"));
  s.busy = false;
  const std::byte* from = tensor.tensor->data + at;
  pool_->for_range(n, 256 << 10,
                   [&](uint64_t b, uint64_t e) { std::memcpy(s.pinned + b, from + b, e - b); });
  if (after != nullptr) {
    SHARPI_TRY(device_->check(cudaStreamWaitEvent(s.stream.get(), after, 0), "weight staging"));
  }
  std::byte* first = tiles ? s.staged : to;
  SHARPI_TRY(
      device_->check(cudaMemcpyAsync(first, s.pinned, n, cudaMemcpyHostToDevice, s.stream.get()),
                     "upload of weights"));
  s.busy = true;
  if (tiles) {
    RepackParams p;
    p.type = tensor.tensor->type;
    p.n_in = static_cast<uint32_t>(tensor.n_in);
    p.n_rows = n / tensor.row_bytes();
    p.src = first;
    p.dst = to;
    SHARPI_TRY(device_->settle(launch_repack(p, s.stream.get())));
  }
  return device_->check(cudaEventRecord(s.done.get(), s.stream.get()), "weight staging");
}

Status StagedCopy::join(cudaStream_t stream) const {
  for (const Slot& s : slots_) {
    if (!s.busy) continue;
    SHARPI_TRY(device_->check(cudaStreamWaitEvent(stream, s.done.get(), 0), "weight staging"));
  }
  return Status::ok();
}

Status StagedCopy::wait() const {
  Status first;
  for (const Slot& s : slots_) {
    const Status waited = s.stream.wait();
    if (first.is_ok()) first = waited;
  }
  return first;
}

}  // namespace sharpi::cuda
