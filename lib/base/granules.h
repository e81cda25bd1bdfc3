// SPDX-License-Identifier: MIT
// Memory behind a range of virtual addresses, in granules (pages) of one size: the first granules
// of a range have memory, and of these the first may be shared copy-on-write with the ranges of
// forks, which map the same granules. Shared granules are never written: own() first replaces those
// that others map too by copies at the same addresses. GranuleRange decides which range maps which
// granule, the same way for host and GPU memory; a GranuleMemory makes the system calls.
// Thread rule: a range has one owner; sharing and questions may run beside each other on other
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"

namespace sharpi {

/// Granules first, first + 1, ... end - 1 of a range.
struct GranuleRun {
  uint64_t first = 0, end = 0;
  uint64_t count() const { return end - first; }
};

/// Memory of the granules of a run, which several ranges map at the same places of theirs. A
/// granule that no range maps any more goes back.
class GranulePool {
 public:
  /// `on_free` hears how many granules went back. Throws std::bad_alloc.
  GranulePool(GranuleRun run, std::function<void(uint64_t)> on_free)
      : run_(run), on_free_(std::move(on_free)), users_(run.count(), 0) {}
  virtual ~GranulePool() = default;
  GranulePool(const GranulePool&) = delete;
  GranulePool& operator=(const GranulePool&) = delete;

  uint64_t first() const { return run_.first; }
  /// One more range maps these, or one less, which has unmapped them.
  void join(GranuleRun run) noexcept;
  void leave(GranuleRun run) noexcept;
  /// How many granules of a run more than one range maps, and the first of them that lie together
  /// (else an empty run). While nobody joins, a granule can only leave these.
  uint64_t count_with_others(GranuleRun run) const;
  GranuleRun next_with_others(GranuleRun run) const;

 protected:
  /// The memory of a run goes back to where it came from.
  virtual void give_back(GranuleRun run) noexcept = 0;

 private:
  const GranuleRun run_;
  const std::function<void(uint64_t)> on_free_;
  mutable std::mutex mutex_;
  std::vector<uint32_t> users_;  // of each granule
};

/// One kind of memory, at the addresses of one range. What fails changes nothing, unless a line
/// says otherwise.
class GranuleMemory {
 public:
  virtual ~GranuleMemory() = default;
  /// Granules that lend() and replace() are given at most.
  virtual uint64_t step() const = 0;
  /// Memory that is this range's alone, all zero.
  virtual Status grow(GranuleRun run) = 0;
  virtual void shrink(GranuleRun run) noexcept = 0;
  /// A pool for granules of this range, without any yet. Null: this memory cannot be shared.
  virtual Result<std::shared_ptr<GranulePool>> pool(
      GranuleRun run, const std::function<void(uint64_t)>& on_free) = 0;
  /// Memory that is this range's alone becomes the pool's, without a moment in which it could not
  /// be read.
  virtual Status lend(GranulePool& pool, GranuleRun run) = 0;
  /// The pool's granules are mapped, to be read, where this range has no memory; and no more.
  virtual Status map(GranulePool& pool, GranuleRun run) = 0;
  virtual void unmap(GranuleRun run) noexcept = 0;
  /// Copies that are this range's alone take the place of a pool's granules. Bytes of the range
  /// from `live` on need not be copied.
  virtual Status replace(GranulePool& pool, GranuleRun run, uint64_t live) = 0;
  /// Mapped memory can be written from now on, or only be read.
  virtual Status protect(GranuleRun run, bool writable) = 0;
};

class GranuleRange {
 public:
  /// Bytes that are the first `bytes` of the range are in its first granules of `granule` bytes.
  GranuleRange(std::unique_ptr<GranuleMemory> memory, uint64_t granule);
  ~GranuleRange() { decommit(0); }
  GranuleRange(const GranuleRange&) = delete;
  GranuleRange& operator=(const GranuleRange&) = delete;

  uint64_t committed() const { return count_ * granule_; }
  /// Grows the prefix to at least `bytes`; new bytes are zero. On failure nothing changes.
  Status commit(uint64_t bytes);
  /// Gives whole granules past `bytes` back.
  void decommit(uint64_t bytes) noexcept;

  /// Whole granules of the first `bytes` may be mapped by share_from() of other ranges; they are
  /// not written from now on. `on_free` hears of the bytes that went back when nobody mapped them
  /// any more. On failure some of them may be shared already, which only a writer notices. Memory
  /// that cannot be shared is left alone.
  Status make_shared(uint64_t bytes, const std::function<void(uint64_t)>& on_free);
  /// Maps whole granules of the first `bytes` of a range of the same kind of memory, as far as that
  /// one shares them. Pre: nothing is committed here. On failure nothing changes.
  Status share_from(const GranuleRange& other, uint64_t bytes);
  /// Bytes that own(from) takes at most.
  uint64_t own_bytes_of(uint64_t from) const;
  /// From the granule of byte `from` on everything can be written, and bytes below `live` are what
  /// they were. On failure some granules may be copies, which makes no difference to anybody.
  Status own(uint64_t from, uint64_t live);
  /// First byte that can be written.
  uint64_t writable_from() const;
  /// Bytes that no pool holds, and bytes that others map too.
  uint64_t private_bytes() const;
  uint64_t shared_bytes() const;

 private:
  /// Granules up to `end` from where the run before ends.
  struct Piece {
    std::shared_ptr<GranulePool> pool;  // null: this range's alone
    uint64_t end = 0;
  };
  void assign(GranuleRun run, const std::shared_ptr<GranulePool>& pool) noexcept;
  void split(uint64_t at) noexcept;
  Status share(uint64_t most, const std::function<void(uint64_t)>& on_free);
  Status lend(GranuleRun run, const std::function<void(uint64_t)>& on_free);
  Status replace_shared(GranuleRun run, uint64_t live);
  template <class Visit>
  void each_piece(GranuleRun run, Visit&& visit) const;
  uint64_t others_in(GranuleRun run) const;

  const std::unique_ptr<GranuleMemory> memory_;
  const uint64_t granule_;
  mutable std::mutex mutex_;  // of what sharing changes
  std::vector<Piece> pieces_;
  uint64_t locked_ = 0;  // granules that are not written
  uint64_t count_ = 0;   // changed by the owner alone
};

}  // namespace sharpi
