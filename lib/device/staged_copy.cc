// SPDX-License-Identifier: MIT
#include "device/staged_copy.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/checked.h"
#include "base/no_throw.h"
#include "device/kernels.h"
#include "os/processors.h"

namespace sharpi::device {
namespace {

constexpr uint64_t kPartBytes = 512 << 10;  // that a thread copies at a time

}  // namespace

/// What the threads of one send_all() share.
struct StagedCopy::Call {
  const GgufFile* file = nullptr;
  std::span<const StagedItem> items;
  uint64_t n_parts = 0;  // of a slot
  std::atomic<uint64_t> next{0}, sent_bytes{0};
  std::atomic<bool> stop{false};
  std::thread::id caller = std::this_thread::get_id();
  const std::function<Status(uint64_t)>* advance = nullptr;
  uint64_t told = 0;
  std::mutex mutex;
  Status first;  // failure

  void fail(Status s) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (first.is_ok()) first = std::move(s);
    stop.store(true, std::memory_order_release);
  }
  bool stopped() const { return stop.load(std::memory_order_acquire); }
  /// Says how far things are; the caller's thread only.
  void tell() {
    const uint64_t now = sent_bytes.load(std::memory_order_relaxed);
    if (now == told || !*advance) return;
    Status s = (*advance)(now - told);
    told = now;
    if (!s.is_ok()) fail(std::move(s));
  }
};

Result<std::unique_ptr<StagedCopy>> StagedCopy::create(const Device& device,
                                                       const StagedCopyShape& shape,
                                                       const char* what) {
  std::unique_ptr<StagedCopy> c(new StagedCopy());
  c->device_ = &device;
  c->shape_ = shape;
  const uint32_t n_cpus = os::usable_cpus();
  c->shape_.n_threads = std::min(shape.n_threads, std::max(1u, n_cpus * 3 / 4));
  SHARPI_TRY_ASSIGN(c->pool_, ThreadPool::create(c->shape_.n_threads));
  SHARPI_TRY_ASSIGN(c->pinned_, PinnedBuffer::allocate(device, shape.bytes(), what));
  SHARPI_TRY_ASSIGN(c->staged_, DeviceBuffer::allocate(device, shape.bytes(), what));
  c->slots_ = std::vector<Slot>(shape.n_slots);
  for (uint32_t i = 0; i < shape.n_slots; ++i) {
    Slot& s = c->slots_[i];
    s.pinned = c->pinned_.data() + i * shape.slot_bytes;
    s.staged = c->staged_.data() + i * shape.slot_bytes;
    SHARPI_TRY_ASSIGN(s.done, device.create_event());
    SHARPI_TRY_ASSIGN(s.stream, device.create_queue());
  }
  return c;
}

/// The most that a slot takes of the tensor: a layout changes in whole units.
Result<uint64_t> StagedCopy::piece_bytes(const TensorRef& tensor, bool* lays_out) const {
  const uint64_t laid_out = device_->kernels().layout_unit(tensor),
                 unit = std::max<uint64_t>(laid_out, 1);
  *lays_out = laid_out != 0;
  const uint64_t most = shape_.slot_bytes / unit * unit;
  if (most != 0) return most;
  return Status::error(Code::kUnsupported,
                       "tensor %.*s cannot be copied to the GPU: a row of it has %llu bytes",
                       static_cast<int>(tensor.tensor->name.size()), tensor.tensor->name.data(),
                       static_cast<unsigned long long>(tensor.row_bytes()));
}

Status StagedCopy::free_slot(Slot* slot) const {
  if (!slot->busy) return Status::ok();
  SHARPI_TRY(slot->done->wait("weight staging"));
  slot->busy = false;
  return Status::ok();
}

Status StagedCopy::send(const TensorRef& tensor, std::byte* to, const Event* after) {
  return send_part(tensor, 0, tensor.bytes(), to, after);
}

Status StagedCopy::send_part(const TensorRef& tensor, uint64_t first, uint64_t last, std::byte* to,
                             const Event* after) {
  Piece piece;
  SHARPI_TRY_ASSIGN(const uint64_t most, piece_bytes(tensor, &piece.lays_out));
  for (piece.at = first; piece.at < last; piece.at += most) {
    piece.bytes = std::min(most, last - piece.at);
    Slot& s = slots_[next_];
    next_ = (next_ + 1) % shape_.n_slots;
    SHARPI_TRY(free_slot(&s));
    const std::byte* from = tensor.tensor->data + piece.at;
    pool_->for_range(piece.bytes, 256 << 10,
                     [&](uint64_t b, uint64_t e) { std::memcpy(s.pinned + b, from + b, e - b); });
    SHARPI_TRY(send_piece({tensor, to}, piece, &s, after));
  }
  return Status::ok();
}

Status StagedCopy::cut(std::span<const StagedItem> items) {
  pieces_.clear();
  for (size_t i = 0; i < items.size(); ++i) {
    Piece piece;
    piece.item = static_cast<uint32_t>(i);
    const uint64_t all = items[i].tensor.bytes();
    SHARPI_TRY_ASSIGN(const uint64_t most, piece_bytes(items[i].tensor, &piece.lays_out));
    for (; piece.at < all; piece.at += most) {
      piece.bytes = std::min(most, all - piece.at);
      pieces_.push_back(piece);
    }
  }
  return Status::ok();
}

Status StagedCopy::send_all(const GgufFile& file, std::span<const StagedItem> items,
                            const std::function<Status(uint64_t)>& advance) {
  SHARPI_TRY(cut(items));
  Call call;
  call.file = &file;
  call.items = items;
  call.n_parts = div_up(shape_.slot_bytes, kPartBytes);
  call.advance = &advance;
  for (Slot& s : slots_) {
    s.sent.store(0, std::memory_order_relaxed);
    s.open.store(0, std::memory_order_relaxed);
  }
  pool_->run(shape_.n_threads, [&](uint32_t) { fill(&call); });
  if (call.first.is_ok()) call.tell();
  return call.first;
}

/// Whoever takes a piece's first part waits until its slot is free, and lets the others in.
bool StagedCopy::open_slot(Call* call, uint64_t piece) {
  Slot& s = slots_[piece % shape_.n_slots];
  while (s.sent.load(std::memory_order_acquire) != piece / shape_.n_slots) {
    if (call->stopped()) return false;
    std::this_thread::yield();
  }
  Status waited = free_slot(&s);
  if (!waited.is_ok()) {
    call->fail(std::move(waited));
    return false;
  }
  s.left.store(static_cast<uint32_t>(call->n_parts), std::memory_order_relaxed);
  s.open.store(piece + 1, std::memory_order_release);
  return true;
}

/// Takes parts in order until there are none.
void StagedCopy::fill(Call* call) {
  const DeviceScope scope(*device_);
  const bool tells = std::this_thread::get_id() == call->caller;
  for (;;) {
    const uint64_t next = call->next.fetch_add(1, std::memory_order_relaxed);
    const uint64_t index = next / call->n_parts, begin = next % call->n_parts * kPartBytes;
    if (index >= pieces_.size() || call->stopped()) return;
    const Piece& piece = pieces_[index];
    const StagedItem& item = call->items[piece.item];
    Slot& s = slots_[index % shape_.n_slots];
    if (begin == 0 && !open_slot(call, index)) return;
    while (s.open.load(std::memory_order_acquire) != index + 1) {
      if (call->stopped()) return;
      std::this_thread::yield();
    }
    if (begin < piece.bytes) {
      Status read = no_throw([&] {
        return call->file->read_tensor(*item.tensor.tensor, piece.at + begin, s.pinned + begin,
                                       std::min(kPartBytes, piece.bytes - begin));
      });
      if (!read.is_ok()) return call->fail(std::move(read));
    }
    if (s.left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      Status sent = send_piece(item, piece, &s, nullptr);
      if (!sent.is_ok()) return call->fail(std::move(sent));
      call->sent_bytes.fetch_add(piece.bytes, std::memory_order_relaxed);
      s.sent.fetch_add(1, std::memory_order_release);
    }
    if (tells) call->tell();
  }
}

Status StagedCopy::send_piece(const StagedItem& item, const Piece& piece, Slot* slot,
                              const Event* after) {
  Slot& s = *slot;
  if (after != nullptr) {
    SHARPI_TRY(s.stream->wait_for(*after, "weight staging"));
  }
  std::byte* to = item.to + piece.at;
  std::byte* first = piece.lays_out ? s.staged : to;
  s.busy = true;
  SHARPI_TRY(s.stream->copy(first, s.pinned, piece.bytes, Way::kToDevice, "upload of weights"));
  if (piece.lays_out) {
    SHARPI_TRY(device_->kernels().lay_out(item.tensor, first, to, piece.bytes, *s.stream));
  }
  return s.stream->record(*s.done, "weight staging");
}

Status StagedCopy::join(const Queue& stream) const {
  for (const Slot& s : slots_) {
    if (!s.busy) continue;
    SHARPI_TRY(stream.wait_for(*s.done, "weight staging"));
  }
  return Status::ok();
}

Status StagedCopy::wait() const {
  Status first;
  for (const Slot& s : slots_) {
    const Status waited = s.stream->wait();
    if (first.is_ok()) first = waited;
  }
  return first;
}

}  // namespace sharpi::device
