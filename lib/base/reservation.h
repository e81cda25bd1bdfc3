// SPDX-License-Identifier: MIT
// Host memory for what grows in place, such as KV rows: a reserved range of virtual addresses whose
// first part has memory, shared copy-on-write with forks where the system allows it (granules.h).
// Thread rule: one owner; sharing and questions may run beside each other on other threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/granules.h"
#include "base/memory.h"
#include "base/status.h"

namespace sharpi {

/// Pages of this process at the addresses from `base` on, which os::map_pages() gave without
/// access, in granules of `unit` bytes: whole pages, at most 1 MiB. `meter` counts them.
std::unique_ptr<GranuleMemory> make_host_granules(MemoryMeter& meter, std::byte* base,
                                                  uint64_t unit, const char* what);

/// A range of address space of which a prefix has memory. Pointers into it never move. Of that
/// prefix a first part may be shared with other ranges: it can be read, and not be written before
/// own() made it this range's alone.
class Reservation {
 public:
  /// Commit unit: a multiple of every x86-64 page size but the huge ones.
  static constexpr uint64_t kGranule = 65536;
  /// Host code reads and writes this memory, so AddressSanitizer can guard what lies past its use.
  static constexpr bool kOfHost = true;
  static constexpr bool kShares = true;
  Reservation() = default;
  /// Reserves `bytes` (rounded up to the granule) without memory; counts as a request of 0 bytes.
  /// `what` names the range in error texts and must outlive it (a literal).
  static Result<Reservation> reserve(MemoryMeter& meter, uint64_t bytes, const char* what);
  ~Reservation() { reset(); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  Reservation(Reservation&& o) noexcept { swap(o); }
  Reservation& operator=(Reservation&& o) noexcept {
    swap(o);
    return *this;
  }
  std::byte* data() const { return data_; }
  uint64_t reserved() const { return reserved_; }
  uint64_t committed() const { return granules_ == nullptr ? 0 : granules_->committed(); }
  /// Grows the committed prefix to at least `bytes` (granule-rounded), pages touched so that later
  /// writes cannot fail. On failure nothing changes. New bytes read as zero.
  Status commit(uint64_t bytes);
  /// Shrinks the committed prefix to `bytes` (granule-rounded); the memory goes back to the system.
  void decommit(uint64_t bytes) noexcept;
  void reset() noexcept;

  // The same as those of GranuleRange; a range without any bytes shares none.
  Status make_shared(uint64_t bytes, const std::function<void(uint64_t)>& on_free) {
    return granules_ == nullptr ? Status::ok() : granules_->make_shared(bytes, on_free);
  }
  Status share_from(const Reservation& other, uint64_t bytes) {
    if (granules_ == nullptr || other.granules_ == nullptr) return Status::ok();
    return granules_->share_from(*other.granules_, bytes);
  }
  uint64_t own_bytes_of(uint64_t from) const {
    return granules_ == nullptr ? 0 : granules_->own_bytes_of(from);
  }
  Status own(uint64_t from, uint64_t live) {
    return granules_ == nullptr ? Status::ok() : granules_->own(from, live);
  }
  uint64_t writable_from() const { return granules_ == nullptr ? 0 : granules_->writable_from(); }
  uint64_t private_bytes() const { return granules_ == nullptr ? 0 : granules_->private_bytes(); }
  uint64_t shared_bytes() const { return granules_ == nullptr ? 0 : granules_->shared_bytes(); }

 private:
  void swap(Reservation& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(reserved_, o.reserved_);
    granules_.swap(o.granules_);
    std::swap(what_, o.what_);
  }
  std::byte* data_ = nullptr;
  uint64_t reserved_ = 0;
  std::unique_ptr<GranuleRange> granules_;
  const char* what_ = "";
};

}  // namespace sharpi
