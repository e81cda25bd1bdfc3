// SPDX-License-Identifier: MIT
#include "cuda/granules.h"

#include <algorithm>

namespace sharpi::cuda {

void SharedGranule::adopt(std::shared_ptr<const GranuleDriver> driver, uint64_t handle,
                          uint64_t bytes, std::function<void(uint64_t)> on_free) noexcept {
  driver_ = std::move(driver);
  on_free_ = std::move(on_free);
  handle_ = handle;
  bytes_ = bytes;
}

SharedGranule::~SharedGranule() {
  if (driver_ == nullptr) return;
  driver_->release(handle_);
  if (on_free_) on_free_(bytes_);
}

Granules::Granules(std::shared_ptr<const GranuleDriver> driver, uint64_t address, uint64_t granule,
                   uint64_t most)
    : driver_(std::move(driver)), address_(address), granule_(granule) {
  entries_.reserve(most);
}

Status Granules::add() {
  SHARPI_TRY_ASSIGN(const uint64_t handle, driver_->create());
  const Status mapped = driver_->map(address_of(entries_.size()), handle);
  if (!mapped.is_ok()) {
    driver_->release(handle);
    return mapped;
  }
  entries_.push_back({handle, nullptr});
  return Status::ok();
}

void Granules::drop() noexcept {
  driver_->unmap(address_of(entries_.size() - 1));
  const Entry last = std::move(entries_.back());
  entries_.pop_back();
  if (last.shared == nullptr) {
    driver_->release(last.handle);
  } else {
    last.shared->drop_user();  // the last pointer to it releases it
  }
}

Status Granules::commit(uint64_t bytes) {
  const size_t before = entries_.size();
  Status got;
  while (got.is_ok() && committed() < bytes) got = add();
  if (got.is_ok() && entries_.size() != before)
    got = driver_->clear(address_of(before), committed() - before * granule_);
  while (!got.is_ok() && entries_.size() > before) drop();
  return got;
}

void Granules::decommit(uint64_t bytes) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (!entries_.empty() && committed() - granule_ >= bytes) drop();
  locked_ = std::min(locked_, committed());
}

void Granules::make_shared(uint64_t bytes, const std::function<void(uint64_t)>& on_free) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t n = std::min<size_t>(bytes / granule_, entries_.size());
  // All of it before the first one: a granule that is held twice, or by nobody, is worse than none.
  std::vector<std::pair<std::shared_ptr<SharedGranule>, std::function<void(uint64_t)>>> fresh;
  for (size_t i = 0; i < n; ++i) {
    if (entries_[i].shared == nullptr)
      fresh.emplace_back(std::make_shared<SharedGranule>(), on_free);
  }
  for (size_t i = 0, next = 0; i < n; ++i) {
    Entry& e = entries_[i];
    if (e.shared != nullptr) continue;
    e.shared = std::move(fresh[next].first);
    e.shared->adopt(driver_, e.handle, granule_, std::move(fresh[next].second));
    ++next;
  }
  locked_ = std::max(locked_, n * granule_);
}

Status Granules::share_from(const Granules& other, uint64_t bytes) {
  if (granule_ != other.granule_ || !entries_.empty())
    return Status::error(Code::kInternal,
                         "the rows of a fork do not lie as those of its origin do");
  const std::lock_guard<std::mutex> lock(other.mutex_);
  const size_t n = std::min(bytes, other.locked_) / granule_;
  for (size_t i = 0; i < n; ++i) {
    if (other.entries_[i].shared == nullptr) {  // an own() that failed half way left a copy
      while (!entries_.empty()) drop();
      return Status::error(Code::kInternal,
                           "a granule that a fork should read is not shared by its origin");
    }
    const Status mapped = driver_->map(address_of(i), other.entries_[i].handle);
    if (!mapped.is_ok()) {
      while (!entries_.empty()) drop();
      return mapped;
    }
    entries_.push_back(other.entries_[i]);
    entries_.back().shared->add_user();
  }
  locked_ = n * granule_;
  return Status::ok();
}

uint64_t Granules::own_bytes_of(uint64_t from) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t bytes = 0;
  for (size_t i = from / granule_; i < locked_ / granule_; ++i)
    bytes += entries_[i].has_others() ? granule_ : 0;
  return bytes;
}

/// A copy takes a shared granule's place. The addresses have memory throughout for everybody else.
Status Granules::replace(size_t index) {
  SHARPI_TRY_ASSIGN(const uint64_t fresh, driver_->create());
  Status done = driver_->copy(fresh, address_of(index));
  if (done.is_ok()) {
    driver_->unmap(address_of(index));
    done = driver_->map(address_of(index), fresh);
    if (!done.is_ok()) {
      const Status back = driver_->map(address_of(index), entries_[index].handle);
      if (!back.is_ok()) driver_->lose(back);
    }
  }
  if (!done.is_ok()) {
    driver_->release(fresh);
    return done;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<SharedGranule> left = std::move(entries_[index].shared);
  entries_[index] = {fresh, nullptr};
  left->drop_user();
  return Status::ok();
}

Status Granules::own(uint64_t from) {
  const size_t first = from / granule_, end = writable_from() / granule_;
  for (size_t i = first; i < end; ++i) {
    if (entries_[i].has_others()) SHARPI_TRY(replace(i));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  locked_ = std::min(locked_, first * granule_);
  return Status::ok();
}

uint64_t Granules::writable_from() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return locked_;
}

uint64_t Granules::private_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t n = 0;
  for (const Entry& e : entries_) n += e.shared == nullptr ? 1 : 0;
  return n * granule_;
}

uint64_t Granules::shared_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t n = 0;
  for (const Entry& e : entries_) n += e.has_others() ? 1 : 0;
  return n * granule_;
}

}  // namespace sharpi::cuda
