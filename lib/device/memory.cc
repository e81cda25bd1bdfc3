// SPDX-License-Identifier: MIT
#include "device/memory.h"

#include "base/checked.h"

namespace sharpi::device {

uint64_t DeviceRange::held_bytes(const Device& device, uint64_t reserved, uint64_t n) {
  return round_up(n, device.granule_bytes(reserved));
}

Result<DeviceRange> DeviceRange::reserve(const Device& device, uint64_t bytes, const char* what) {
  DeviceRange r;
  if (bytes == 0) return r;
  const uint64_t granule = device.granule_bytes(bytes), reserved = round_up(bytes, granule);
  SHARPI_TRY_ASSIGN(r.addresses_, device.reserve(reserved, granule, what));
  r.device_ = &device;
  r.what_ = what;
  r.reserved_ = reserved;
  r.granules_ = std::make_unique<GranuleRange>(std::move(r.addresses_.memory), granule);
  return r;
}

Status DeviceRange::commit(uint64_t bytes) {
  if (bytes <= committed()) return Status::ok();
  if (bytes > reserved_) {
    return Status::error(Code::kInternal, "%llu bytes of %s exceed the range of %llu",
                         static_cast<unsigned long long>(bytes), what_,
                         static_cast<unsigned long long>(reserved_));
  }
  const DeviceScope scope(*device_);
  return granules_->commit(bytes);
}

void DeviceRange::decommit(uint64_t bytes) noexcept {
  if (granules_ == nullptr) return;
  const DeviceScope scope(*device_);
  granules_->decommit(bytes);
}

void DeviceRange::reset() noexcept {
  if (addresses_.data == nullptr) return;
  decommit(0);
  granules_.reset();
  device_->unreserve(addresses_, reserved_);
  addresses_ = {};
  reserved_ = 0;
}

Status DeviceRange::make_shared(uint64_t bytes, const std::function<void(uint64_t)>& on_free) {
  return granules_ == nullptr ? Status::ok() : granules_->make_shared(bytes, on_free);
}

Status DeviceRange::share_from(const DeviceRange& other, uint64_t bytes) {
  if (granules_ == nullptr || other.granules_ == nullptr) return Status::ok();
  SHARPI_TRY(device_->usable());
  const DeviceScope scope(*device_);
  return granules_->share_from(*other.granules_, bytes);
}

uint64_t DeviceRange::own_bytes_of(uint64_t from) const {
  return granules_ == nullptr ? 0 : granules_->own_bytes_of(from);
}

Status DeviceRange::own(uint64_t from, uint64_t live) {
  if (granules_ == nullptr) return Status::ok();
  SHARPI_TRY(device_->usable());
  const DeviceScope scope(*device_);
  return granules_->own(from, live);
}

void DeviceRange::swap(DeviceRange& o) noexcept {
  std::swap(addresses_, o.addresses_);
  std::swap(reserved_, o.reserved_);
  granules_.swap(o.granules_);
  std::swap(device_, o.device_);
  std::swap(what_, o.what_);
}

}  // namespace sharpi::device
