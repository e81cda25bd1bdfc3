// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/memory.h"
#include "base/no_throw.h"
#include "base/out_of_memory.h"
#include "base/poison.h"
#include "base/shared_pages.h"
#include "os/pages.h"

namespace sharpi {
namespace {

constexpr uint64_t kMoved = uint64_t{1} << 20;  // moved at a time: no more is there twice

uint64_t page_floor(uint64_t bytes) {
  return bytes / os::page_size() * os::page_size();
}

}  // namespace

/// Bytes [0, end of the last piece) of the range are pages of these files, one behind the other.
struct Reservation::Prefix {
  struct Piece {
    std::shared_ptr<SharedPages> pages;
    uint64_t end = 0;
    uint64_t begin() const { return pages->begin(); }
  };
  mutable std::mutex mutex;
  std::vector<Piece> pieces;
  uint64_t locked = 0;  // bytes that can only be read
  uint64_t end() const { return pieces.empty() ? 0 : pieces.back().end; }
};

Result<Reservation> Reservation::reserve(MemoryMeter& meter, uint64_t bytes, const char* what) {
  Reservation range;
  range.meter_ = &meter;
  range.what_ = what;
  if (bytes > kMaxBytes) return out_of_memory(what, bytes, ENOMEM, meter);
  const uint64_t rounded = round_up(bytes, kGranule);
  // Address space is no memory, but it can be refused, so it counts as a request.
  if (!meter.admit(0)) return out_of_memory(what, rounded, ENOMEM, meter);
  if (rounded == 0) return range;
  range.prefix_ = new Prefix();
  int error = 0;
  range.data_ = os::map_pages(rounded, os::Access::kNone, &error);
  if (range.data_ == nullptr) {
    return Status::native_error(Code::kOutOfMemory, error,
                                "there is no address space for %s: %" PRIu64 " bytes are needed",
                                what, rounded);
  }
  range.reserved_ = rounded;
  return range;
}

Status Reservation::commit(uint64_t bytes) {
  if (bytes > reserved_) {
    return Status::error(Code::kInvalidArgument,
                         "%" PRIu64 " bytes were to be committed, but only %" PRIu64
                         " bytes are reserved for %s",
                         bytes, reserved_, what_);
  }
  const uint64_t wanted = round_up(bytes, kGranule);
  if (wanted <= committed_) return Status::ok();
  std::byte* fresh = data_ + committed_;
  const uint64_t grow = wanted - committed_;
  int error = os::protect_pages(fresh, grow, os::Access::kReadWrite);
  if (error == 0) error = os::populate_pages(fresh, grow);
  if (error == 0 && !meter_->admit(grow)) error = ENOMEM;
  if (error != 0) {
    os::release_pages(fresh, grow);
    return out_of_memory(what_, grow, error, *meter_);
  }
  committed_ = wanted;
  return Status::ok();
}

void Reservation::decommit(uint64_t bytes) noexcept {
  if (bytes >= committed_) return;
  const uint64_t kept = round_up(bytes, kGranule);
  if (kept >= committed_) return;
  unpoison(data_ + kept, committed_ - kept);  // the system may give the addresses to others
  const uint64_t before = private_bytes(), shared_end = std::max(kept, prefix_->end());
  os::clear_mapping(data_ + kept, shared_end - kept);
  os::release_pages(data_ + shared_end, committed_ - shared_end);
  forget_pages(kept);
  committed_ = kept;
  meter_->retire(before - private_bytes());
}

void Reservation::reset() noexcept {
  if (data_ != nullptr) {
    unpoison(data_, committed_);
    os::unmap_pages(data_, reserved_);
    meter_->retire(private_bytes());
    forget_pages(0);
    data_ = nullptr;
    reserved_ = committed_ = 0;
  }
  delete std::exchange(prefix_, nullptr);
}

uint64_t Reservation::private_bytes() const {
  if (prefix_ == nullptr) return committed_;
  const std::lock_guard<std::mutex> lock(prefix_->mutex);
  uint64_t bytes = committed_;
  for (const Prefix::Piece& p : prefix_->pieces) bytes -= p.end - p.begin();
  return bytes;
}

uint64_t Reservation::shared_bytes() const {
  if (prefix_ == nullptr) return 0;
  const std::lock_guard<std::mutex> lock(prefix_->mutex);
  uint64_t bytes = 0;
  for (const Prefix::Piece& p : prefix_->pieces)
    bytes += std::min(p.end, p.pages->end_of_others(p.end)) - p.begin();
  return bytes;
}

uint64_t Reservation::writable_from() const {
  if (prefix_ == nullptr) return 0;
  const std::lock_guard<std::mutex> lock(prefix_->mutex);
  return prefix_->locked;
}

/// From `from` on no page of a file belongs to the range any more. What is mapped is the caller's
/// business.
void Reservation::forget_pages(uint64_t from) noexcept {
  if (prefix_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(prefix_->mutex);
  std::vector<Prefix::Piece>& pieces = prefix_->pieces;
  while (!pieces.empty() && pieces.back().end > from) {
    Prefix::Piece& p = pieces.back();
    const uint64_t end = std::max(p.begin(), from);
    p.pages->move_user(p.end, end);
    p.end = end;
    if (end == p.begin()) pieces.pop_back();
  }
  prefix_->locked = std::min(prefix_->locked, from);
}

Status Reservation::make_shared(uint64_t bytes, const std::function<void(uint64_t)>& on_free) {
  // Without shared pages every range keeps its own, and is charged for them.
  if (bytes == 0 || prefix_ == nullptr || !os::can_share_pages()) return Status::ok();
  bytes = page_floor(bytes);
  const std::lock_guard<std::mutex> lock(prefix_->mutex);
  Prefix& prefix = *prefix_;
  const uint64_t there = std::min(bytes, prefix.end());
  const int kept = there > prefix.locked ? os::protect_pages(data_, there, os::Access::kRead) : 0;
  if (kept != 0) return out_of_memory(what_, 0, kept, *meter_);
  prefix.locked = std::max(prefix.locked, there);
  if (bytes <= there) return Status::ok();
  SHARPI_TRY_ASSIGN(std::shared_ptr<SharedPages> pages,
                    SharedPages::create(*meter_, there, bytes - there, what_, on_free));
  prefix.pieces.reserve(prefix.pieces.size() + 1);
  for (uint64_t at = there; at < bytes;) {
    const uint64_t n = std::min(kMoved, bytes - at);
    SHARPI_TRY(pages->append(data_ + at, n));
    // The same contents take the place of the old ones at once: who reads meanwhile sees no
    // difference.
    const Status mapped = pages->map(data_, at, at + n);
    if (!mapped.is_ok()) {
      pages->take_back(at);
      return mapped;
    }
    if (at == there) {
      pages->add_user(at + n);
      prefix.pieces.push_back({pages, at + n});
    } else {
      pages->move_user(at, at + n);
      prefix.pieces.back().end = at + n;
    }
    meter_->retire(n);
    at += n;
    prefix.locked = at;
  }
  return Status::ok();
}

Status Reservation::share_from(const Reservation& other, uint64_t bytes) {
  if (prefix_ == nullptr || other.prefix_ == nullptr || bytes == 0) return Status::ok();
  bytes = page_floor(bytes);
  const std::lock_guard<std::mutex> lock(other.prefix_->mutex);
  std::vector<Prefix::Piece>& own = prefix_->pieces;
  own.reserve(other.prefix_->pieces.size());
  for (const Prefix::Piece& p : other.prefix_->pieces) {
    if (p.begin() >= bytes) break;
    const uint64_t end = std::min(p.end, bytes);
    const Status mapped = no_throw([&] {
      p.pages->add_user(end);
      own.push_back({p.pages, end});
      return p.pages->map(data_, p.begin(), end);
    });
    if (mapped.is_ok()) continue;
    os::clear_mapping(data_, end);
    forget_pages(0);
    return mapped;
  }
  prefix_->locked = committed_ = prefix_->end();
  return Status::ok();
}

uint64_t Reservation::own_bytes_of(uint64_t from) const {
  if (prefix_ == nullptr) return 0;
  const std::lock_guard<std::mutex> lock(prefix_->mutex);
  const uint64_t first = page_floor(from);
  if (first >= prefix_->locked) return 0;
  for (const Prefix::Piece& p : prefix_->pieces) {
    const uint64_t begin = std::max(p.begin(), first);
    if (p.end > begin && p.pages->end_of_others(p.end) > begin) return prefix_->end() - begin;
  }
  return 0;
}

Status Reservation::own(uint64_t from, uint64_t live) {
  const uint64_t taken = own_bytes_of(from);
  if (prefix_ == nullptr) return Status::ok();
  const std::lock_guard<std::mutex> lock(prefix_->mutex);
  const uint64_t first = page_floor(from);
  if (first >= prefix_->locked) return Status::ok();
  // Pages are a prefix of the range, so all from the first one that others map too are copied.
  const uint64_t copied_from = prefix_->end() - taken;
  for (size_t i = prefix_->pieces.size(); i-- > 0 && prefix_->end() > copied_from;)
    SHARPI_TRY(make_private(i, std::max(copied_from, prefix_->pieces[i].begin()), live));
  const uint64_t alone = std::min(prefix_->end(), prefix_->locked);
  const int opened =
      alone > first ? os::protect_pages(data_ + first, alone - first, os::Access::kReadWrite) : 0;
  if (opened != 0) return out_of_memory(what_, 0, opened, *meter_);
  prefix_->locked = first;
  return Status::ok();
}

/// The last piece from `from` on as memory of the range's own, from its end downwards: what was
/// moved goes back at once where nobody else maps it.
Status Reservation::make_private(size_t piece, uint64_t from, uint64_t live) {
  Prefix::Piece& p = prefix_->pieces[piece];
  while (p.end > from) {
    const uint64_t at = std::max(from, p.end > kMoved ? p.end - kMoved : 0), n = p.end - at;
    int error = 0;
    std::byte* fresh = os::map_spare(n, &error);
    if (error == 0 && !meter_->admit(n)) error = ENOMEM;
    if (error != 0) {
      if (fresh != nullptr) os::unmap_pages(fresh, n);
      return out_of_memory(what_, n, error, *meter_);
    }
    if (at < live) std::memcpy(fresh, data_ + at, std::min(n, live - at));
    error = os::move_pages(fresh, n, data_ + at);
    if (error != 0) {
      os::unmap_pages(fresh, n);
      meter_->retire(n);
      return out_of_memory(what_, n, error, *meter_);
    }
    p.pages->move_user(p.end, at);
    p.end = at;
  }
  if (p.end == p.begin()) prefix_->pieces.pop_back();
  return Status::ok();
}

}  // namespace sharpi
