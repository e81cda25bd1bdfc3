// SPDX-License-Identifier: MIT
// Pages that several reservations map, each a prefix of them: forks of a session read what they
// have in common in place. A file in memory without a name; what nobody maps any more goes back.
// Thread rule: serialises itself; users may be on different threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/memory.h"
#include "os/pages.h"

namespace sharpi {

class SharedPages {
 public:
  /// Makes room for pages of bytes [begin, begin + bytes) of ranges, without any pages yet.
  /// `on_free` is told how many bytes went back to the system.
  static Result<std::shared_ptr<SharedPages>> create(MemoryMeter& meter, uint64_t begin,
                                                     uint64_t bytes, const char* what,
                                                     std::function<void(uint64_t)> on_free);
  ~SharedPages();
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  uint64_t begin() const { return begin_; }
  /// Appends pages with the bytes at `from`. On failure nothing changes.
  Status append(const std::byte* from, uint64_t bytes);
  /// Takes back pages from `end` on that append() brought and that nobody maps yet.
  void take_back(uint64_t end) noexcept;
  /// Maps bytes [from, to) of the range whose first byte is `base` there, read-only.
  Status map(std::byte* base, uint64_t from, uint64_t to) const;
  /// Another range maps the pages up to `end`. May throw std::bad_alloc, except for the first
  /// range.
  void add_user(uint64_t end);
  /// A range that mapped up to `before` maps up to `now` instead; begin() = nothing any more.
  void move_user(uint64_t before, uint64_t now) noexcept;
  /// The end up to which ranges other than one that maps up to `own` map.
  uint64_t end_of_others(uint64_t own) const;

 private:
  SharedPages(MemoryMeter& meter, uint64_t begin, const char* what,
              std::function<void(uint64_t)> on_free)
      : meter_(&meter), what_(what), on_free_(std::move(on_free)), begin_(begin), end_(begin) {}
  uint64_t drop_from(uint64_t end) noexcept;
  void give_back_from(uint64_t end) noexcept;
  MemoryMeter* meter_;
  const char* what_;
  std::function<void(uint64_t)> on_free_;
  os::SharedMemory memory_;
  uint64_t begin_, end_;  // of the range's bytes; pages are there up to end_
  mutable std::mutex mutex_;
  std::vector<uint64_t> ends_;  // of the users
};

}  // namespace sharpi
