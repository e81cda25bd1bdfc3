// SPDX-License-Identifier: MIT
#include "base/shared_pages.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>

namespace sharpi {
namespace {

Status no_pages(const char* what, uint64_t bytes, int error) {
  return Status::native_error(Code::kOutOfMemory, error,
                              "there is no shared memory for %s: %" PRIu64 " bytes are needed",
                              what, bytes);
}

}  // namespace

Result<std::shared_ptr<SharedPages>> SharedPages::create(MemoryMeter& meter, uint64_t begin,
                                                         uint64_t bytes, const char* what,
                                                         std::function<void(uint64_t)> on_free) {
  if (!meter.admit(0)) return no_pages(what, bytes, ENOMEM);
  std::shared_ptr<SharedPages> pages(new SharedPages(meter, begin, what, std::move(on_free)));
  pages->ends_.reserve(1);  // the first user's contents are in these pages only
  const int error = pages->memory_.create(bytes);
  if (error != 0) return no_pages(what, bytes, error);
  return pages;
}

SharedPages::~SharedPages() {
  give_back_from(begin_);
}

Status SharedPages::append(const std::byte* from, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int error = memory_.write(end_ - begin_, from, bytes);
  if (error == 0 && meter_->admit(bytes)) {
    end_ += bytes;
    return Status::ok();
  }
  // Pages that came are taken away again; that they cannot be is nothing that could be mended here.
  memory_.drop(end_ - begin_, bytes);
  return no_pages(what_, bytes, error == 0 ? ENOMEM : error);
}

Status SharedPages::map(std::byte* base, uint64_t from, uint64_t to) const {
  if (from == to) return Status::ok();
  const int error = memory_.map_read_only(from - begin_, to - from, base + from);
  if (error != 0) return no_pages(what_, to - from, error);
  return Status::ok();
}

void SharedPages::add_user(uint64_t end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ends_.push_back(end);
}

void SharedPages::move_user(uint64_t before, uint64_t now) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = std::find(ends_.begin(), ends_.end(), before);
  if (it == ends_.end()) return;
  *it = now;
  if (now == begin_) ends_.erase(it);
  const auto last = std::max_element(ends_.begin(), ends_.end());
  give_back_from(last == ends_.end() ? begin_ : *last);
}

uint64_t SharedPages::end_of_others(uint64_t own) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t most = begin_;
  bool seen = false;
  for (const uint64_t end : ends_) {
    if (end == own && !seen) {
      seen = true;
      continue;
    }
    most = std::max(most, end);
  }
  return most;
}

void SharedPages::take_back(uint64_t end) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  drop_from(end);
}

void SharedPages::give_back_from(uint64_t end) noexcept {
  const uint64_t bytes = drop_from(end);
  if (bytes != 0 && on_free_) on_free_(bytes);
}

uint64_t SharedPages::drop_from(uint64_t end) noexcept {
  if (end >= end_) return 0;
  const uint64_t bytes = end_ - end;
  memory_.drop(end - begin_, bytes);
  end_ = end;
  meter_->retire(bytes);
  return bytes;
}

}  // namespace sharpi
