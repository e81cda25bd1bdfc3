// SPDX-License-Identifier: MIT
#include "base/reservation.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/out_of_memory.h"
#include "base/poison.h"
#include "os/pages.h"

namespace sharpi {
namespace {

constexpr uint64_t kGranule = Reservation::kGranule;

/// What ranges of so many bytes share in units of: a page, and more where those would be many to
/// count.
uint64_t shared_unit(uint64_t reserved) {
  uint64_t n = os::page_size();
  while (n < kGranule && reserved / n > 4096) n *= 2;
  return n;
}

Status no_pages(const char* what, uint64_t bytes, int error) {
  return Status::native_error(Code::kOutOfMemory, error,
                              "there is no shared memory for %s: %" PRIu64 " bytes are needed",
                              what, bytes);
}

/// A file in memory without a name: what nobody maps any more goes back to the system.
class HostPool final : public GranulePool {
 public:
  HostPool(MemoryMeter& meter, uint64_t unit, const char* what, GranuleRun run,
           std::function<void(uint64_t)> on_free)
      : GranulePool(run, std::move(on_free)), meter_(meter), unit_(unit), what_(what) {}
  Status create(uint64_t bytes) {
    const int error = meter_.admit(0) ? memory_.create(bytes) : ENOMEM;
    return error == 0 ? Status::ok() : no_pages(what_, bytes, error);
  }
  /// Pages with the bytes at `from`.
  Status fill(GranuleRun run, const std::byte* from) {
    int error = memory_.write(place(run), from, bytes_of(run));
    if (error == 0 && !meter_.admit(bytes_of(run))) error = ENOMEM;
    if (error == 0) return Status::ok();
    // Pages that came are taken away again; that they cannot be is nothing to be mended here.
    memory_.drop(place(run), bytes_of(run));
    return no_pages(what_, bytes_of(run), error);
  }
  Status map(GranuleRun run, std::byte* to) const {
    const int error = memory_.map_read_only(place(run), bytes_of(run), to);
    return error == 0 ? Status::ok() : no_pages(what_, bytes_of(run), error);
  }
  void give_back(GranuleRun run) noexcept override {
    memory_.drop(place(run), bytes_of(run));
    meter_.retire(bytes_of(run));
  }

 private:
  uint64_t place(GranuleRun run) const { return (run.first - first()) * unit_; }
  uint64_t bytes_of(GranuleRun run) const { return run.count() * unit_; }
  MemoryMeter& meter_;
  const uint64_t unit_;
  const char* const what_;
  os::SharedMemory memory_;
};

/// Pages of this process at the addresses from `base` on.
class HostGranules final : public GranuleMemory {
 public:
  HostGranules(MemoryMeter& meter, std::byte* base, uint64_t unit, const char* what)
      : meter_(meter), base_(base), unit_(unit), what_(what) {}

  uint64_t step() const override { return (uint64_t{1} << 20) / unit_; }  // no more is there twice
  Status grow(GranuleRun run) override {
    int error = os::protect_pages(at(run), bytes_of(run), os::Access::kReadWrite);
    if (error == 0) error = os::populate_pages(at(run), bytes_of(run));
    if (error == 0 && !meter_.admit(bytes_of(run))) error = ENOMEM;
    if (error == 0) return Status::ok();
    os::release_pages(at(run), bytes_of(run));
    return out_of_memory(what_, bytes_of(run), error, meter_);
  }
  void shrink(GranuleRun run) noexcept override {
    os::release_pages(at(run), bytes_of(run));
    meter_.retire(bytes_of(run));
  }
  Result<std::shared_ptr<GranulePool>> pool(GranuleRun run,
                                            const std::function<void(uint64_t)>& on_free) override {
    // Without shared pages every range keeps its own, and is charged for them.
    if (!os::can_share_pages()) return std::shared_ptr<GranulePool>();
    auto made = std::make_shared<HostPool>(meter_, unit_, what_, run, on_free);
    SHARPI_TRY(made->create(bytes_of(run)));
    return std::shared_ptr<GranulePool>(std::move(made));
  }
  Status lend(GranulePool& pool, GranuleRun run) override {
    auto& file = static_cast<HostPool&>(pool);
    SHARPI_TRY(file.fill(run, at(run)));
    // The same contents take the place of the old ones at once: who reads meanwhile sees no
    // difference.
    const Status mapped = file.map(run, at(run));
    if (mapped.is_ok()) {
      meter_.retire(bytes_of(run));
    } else {
      file.give_back(run);
    }
    return mapped;
  }
  Status map(GranulePool& pool, GranuleRun run) override {
    return static_cast<HostPool&>(pool).map(run, at(run));
  }
  void unmap(GranuleRun run) noexcept override { os::clear_mapping(at(run), bytes_of(run)); }
  Status replace(GranulePool&, GranuleRun run, uint64_t live) override {
    const uint64_t n = bytes_of(run), from = run.first * unit_;
    int error = 0;
    std::byte* fresh = os::map_spare(n, &error);
    if (error == 0 && !meter_.admit(n)) error = ENOMEM;
    if (error != 0) {
      if (fresh != nullptr) os::unmap_pages(fresh, n);
      return out_of_memory(what_, n, error, meter_);
    }
    if (from < live) std::memcpy(fresh, at(run), std::min(n, live - from));
    error = os::move_pages(fresh, n, at(run));
    if (error == 0) return Status::ok();
    os::unmap_pages(fresh, n);
    meter_.retire(n);
    return out_of_memory(what_, n, error, meter_);
  }
  Status protect(GranuleRun run, bool writable) override {
    const auto access = writable ? os::Access::kReadWrite : os::Access::kRead;
    const int error = os::protect_pages(at(run), bytes_of(run), access);
    return error == 0 ? Status::ok() : out_of_memory(what_, 0, error, meter_);
  }

 private:
  std::byte* at(GranuleRun run) const { return base_ + run.first * unit_; }
  uint64_t bytes_of(GranuleRun run) const { return run.count() * unit_; }
  MemoryMeter& meter_;
  std::byte* const base_;
  const uint64_t unit_;
  const char* const what_;
};

}  // namespace

std::unique_ptr<GranuleMemory> make_host_granules(MemoryMeter& meter, std::byte* base,
                                                  uint64_t unit, const char* what) {
  return std::make_unique<HostGranules>(meter, base, unit, what);
}

Result<Reservation> Reservation::reserve(MemoryMeter& meter, uint64_t bytes, const char* what) {
  Reservation range;
  range.what_ = what;
  if (bytes > kMaxBytes) return out_of_memory(what, bytes, ENOMEM, meter);
  const uint64_t rounded = round_up(bytes, kGranule);
  // Address space is no memory, but it can be refused, so it counts as a request.
  if (!meter.admit(0)) return out_of_memory(what, rounded, ENOMEM, meter);
  if (rounded == 0) return range;
  int error = 0;
  range.data_ = os::map_pages(rounded, os::Access::kNone, &error);
  if (range.data_ == nullptr) {
    return Status::native_error(Code::kOutOfMemory, error,
                                "there is no address space for %s: %" PRIu64 " bytes are needed",
                                what, rounded);
  }
  range.reserved_ = rounded;
  const uint64_t unit = shared_unit(rounded);
  range.granules_ =
      std::make_unique<GranuleRange>(make_host_granules(meter, range.data_, unit, what), unit);
  return range;
}

Status Reservation::commit(uint64_t bytes) {
  if (bytes > reserved_) {
    return Status::error(Code::kInvalidArgument,
                         "%" PRIu64 " bytes were to be committed, but only %" PRIu64
                         " bytes are reserved for %s",
                         bytes, reserved_, what_);
  }
  return granules_ == nullptr ? Status::ok() : granules_->commit(round_up(bytes, kGranule));
}

void Reservation::decommit(uint64_t bytes) noexcept {
  const uint64_t held = committed(), kept = round_up(std::min(bytes, held), kGranule);
  if (kept >= held) return;
  unpoison(data_ + kept, held - kept);  // the system may give the addresses to others
  granules_->decommit(kept);
}

void Reservation::reset() noexcept {
  decommit(0);
  granules_.reset();
  if (data_ != nullptr) os::unmap_pages(data_, reserved_);
  data_ = nullptr;
  reserved_ = 0;
}

}  // namespace sharpi
