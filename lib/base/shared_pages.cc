// SPDX-License-Identifier: MIT
#include "base/shared_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

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
  // A file that is too large for the process would be answered with a signal.
  rlimit most{};
  if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY &&
      bytes > most.rlim_cur) {
    return no_pages(what, bytes, EFBIG);
  }
  pages->file_ = memfd_create("sharpi-rows", MFD_CLOEXEC);
  if (pages->file_ < 0) return no_pages(what, bytes, errno);
  if (ftruncate(pages->file_, static_cast<off_t>(bytes)) != 0) return no_pages(what, bytes, errno);
  return pages;
}

SharedPages::~SharedPages() {
  if (file_ < 0) return;
  give_back_from(begin_);
  close(file_);
}

Status SharedPages::append(const std::byte* from, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t done = 0;
  while (done < bytes) {
    const auto at = static_cast<off_t>(end_ - begin_ + done);
    const ssize_t n = pwrite(file_, from + done, bytes - done, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<uint64_t>(n);
  }
  const int error = done == bytes ? 0 : errno;
  if (error == 0 && meter_->admit(bytes)) {
    end_ += bytes;
    return Status::ok();
  }
  // Pages that came are taken away again; that they cannot be is nothing that could be mended here.
  punch(end_, bytes);
  return no_pages(what_, bytes, error == 0 ? ENOMEM : error);
}

Status SharedPages::map(std::byte* base, uint64_t from, uint64_t to) const {
  if (from == to) return Status::ok();
  void* at = mmap(base + from, to - from, PROT_READ, MAP_SHARED | MAP_FIXED, file_,
                  static_cast<off_t>(from - begin_));
  if (at == MAP_FAILED) return no_pages(what_, to - from, errno);
  madvise(at, to - from, MADV_HUGEPAGE);  // advice only
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

/// Gives pages back to the system. Not in a child of the process that made them: the pages are
/// those that the parent's sessions go on reading.
void SharedPages::punch(uint64_t end, uint64_t bytes) const noexcept {
  if (getpid() != process_) return;
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(end - begin_),
            static_cast<off_t>(bytes));
}

uint64_t SharedPages::drop_from(uint64_t end) noexcept {
  if (end >= end_) return 0;
  const uint64_t bytes = end_ - end;
  punch(end, bytes);
  end_ = end;
  meter_->retire(bytes);
  return bytes;
}

}  // namespace sharpi
