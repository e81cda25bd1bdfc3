// SPDX-License-Identifier: MIT
#include "base/granules.h"

#include <algorithm>

#include "base/checked.h"
#include "base/no_throw.h"

namespace sharpi {

void GranulePool::join(GranuleRun run) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (uint64_t i = run.first; i < run.end; ++i) ++users_[i - run_.first];
}

void GranulePool::leave(GranuleRun run) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t freed = 0;
  for (uint64_t i = run.first; i < run.end;) {
    const uint64_t first = i;
    while (i < run.end && --users_[i - run_.first] == 0) ++i;
    if (i != first) give_back({first, i});
    freed += i - first;
    if (i < run.end) ++i;  // it has another user
  }
  if (freed != 0 && on_free_) on_free_(freed);
}

uint64_t GranulePool::count_with_others(GranuleRun run) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t n = 0;
  for (uint64_t i = run.first; i < run.end; ++i) n += users_[i - run_.first] > 1 ? 1 : 0;
  return n;
}

GranuleRun GranulePool::next_with_others(GranuleRun run) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (run.first < run.end && users_[run.first - run_.first] <= 1) ++run.first;
  GranuleRun found{run.first, run.first};
  while (found.end < run.end && users_[found.end - run_.first] > 1) ++found.end;
  return found;
}

GranuleRange::GranuleRange(std::unique_ptr<GranuleMemory> memory, uint64_t granule)
    : memory_(std::move(memory)), granule_(granule) {}

/// Calls visit(piece, part) for what of each piece lies in the run.
template <class Visit>
void GranuleRange::each_piece(GranuleRun run, Visit&& visit) const {
  uint64_t begin = 0;
  for (const Piece& p : pieces_) {
    const GranuleRun part{std::max(run.first, begin), std::min(run.end, p.end)};
    if (part.first < part.end) visit(p, part);
    begin = p.end;
  }
}

/// A piece ends at `at`. Pre: room for one more.
void GranuleRange::split(uint64_t at) noexcept {
  uint64_t begin = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (begin < at && at < pieces_[i].end) {
      pieces_.insert(pieces_.begin() + static_cast<std::ptrdiff_t>(i), Piece{pieces_[i].pool, at});
      return;
    }
    begin = pieces_[i].end;
  }
}

/// The granules are of this pool from now on. Pre: room for two more pieces.
void GranuleRange::assign(GranuleRun run, const std::shared_ptr<GranulePool>& pool) noexcept {
  split(run.first);
  split(run.end);
  uint64_t begin = 0;
  for (Piece& p : pieces_) {
    if (begin >= run.first && p.end <= run.end) p.pool = pool;
    begin = p.end;
  }
  for (size_t i = 1; i < pieces_.size();) {
    if (pieces_[i - 1].pool != pieces_[i].pool) {
      ++i;
      continue;
    }
    pieces_.erase(pieces_.begin() + static_cast<std::ptrdiff_t>(i - 1));
  }
}

Status GranuleRange::commit(uint64_t bytes) {
  const uint64_t before = count_, wanted = div_up(bytes, granule_);
  if (wanted <= before) return Status::ok();
  return no_throw([&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    pieces_.reserve(pieces_.size() + 1);
    SHARPI_TRY(memory_->grow({before, wanted}));
    if (!pieces_.empty() && pieces_.back().pool == nullptr) {
      pieces_.back().end = wanted;
    } else {
      pieces_.push_back({nullptr, wanted});
    }
    count_ = wanted;
    return Status::ok();
  });
}

void GranuleRange::decommit(uint64_t bytes) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t kept = div_up(bytes, granule_);
  while (count_ > kept) {
    Piece& last = pieces_.back();
    const uint64_t begin = pieces_.size() == 1 ? 0 : pieces_[pieces_.size() - 2].end;
    const GranuleRun gone{std::max(begin, kept), last.end};
    if (last.pool == nullptr) {
      memory_->shrink(gone);
    } else {
      memory_->unmap(gone);
      last.pool->leave(gone);
    }
    count_ = last.end = gone.first;
    if (gone.first == begin) pieces_.pop_back();
  }
  locked_ = std::min(locked_, count_);
}

Status GranuleRange::make_shared(uint64_t bytes, const std::function<void(uint64_t)>& on_free) {
  return no_throw([&] { return share(bytes / granule_, on_free); });
}

Status GranuleRange::share(uint64_t most, const std::function<void(uint64_t)>& on_free) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t end = std::min(most, count_);
  for (uint64_t at = 0; at < end;) {
    // The piece that `at` is in, up to its end or that of what is shared.
    const auto piece =
        std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& p) { return at < p.end; });
    const GranuleRun run{at, std::min(end, piece->end)};
    if (piece->pool == nullptr) {
      SHARPI_TRY(lend(run, on_free));
      if (locked_ < run.end) return Status::ok();  // this memory cannot be shared
    } else if (run.end > locked_) {
      SHARPI_TRY(memory_->protect({std::max(at, locked_), run.end}, false));
      locked_ = run.end;
    }
    at = run.end;
  }
  return Status::ok();
}

/// Granules of this range's own become a pool's, and are locked as far as they are.
Status GranuleRange::lend(GranuleRun run, const std::function<void(uint64_t)>& on_free) {
  pieces_.reserve(pieces_.size() + 2);
  const uint64_t granule = granule_;
  SHARPI_TRY_ASSIGN(const std::shared_ptr<GranulePool> pool,
                    memory_->pool(run, [on_free, granule](uint64_t n) {
                      if (on_free) on_free(n * granule);
                    }));
  if (pool == nullptr) return Status::ok();
  for (uint64_t at = run.first; at < run.end;) {
    const GranuleRun part{at, std::min(run.end, at + memory_->step())};
    SHARPI_TRY(memory_->lend(*pool, part));
    pool->join(part);
    assign(part, pool);
    at = part.end;
    locked_ = std::max(locked_, at);
  }
  return Status::ok();
}

Status GranuleRange::share_from(const GranuleRange& other, uint64_t bytes) {
  if (granule_ != other.granule_ || !pieces_.empty())
    return Status::error(Code::kInternal,
                         "the rows of a fork do not lie as those of its origin do");
  const Status done = no_throw([&] {
    const std::lock_guard<std::mutex> lock(other.mutex_);
    const uint64_t end = std::min(bytes / granule_, other.locked_);
    pieces_.reserve(other.pieces_.size());
    uint64_t at = 0;
    for (const Piece& p : other.pieces_) {
      // A copy that an own() left which failed half way is not shared, nor what lies behind it.
      if (at >= end || p.pool == nullptr) break;
      const GranuleRun run{at, std::min(p.end, end)};
      SHARPI_TRY(memory_->map(*p.pool, run));
      p.pool->join(run);
      pieces_.push_back({p.pool, run.end});
      at = count_ = run.end;
    }
    return Status::ok();
  });
  locked_ = count_;
  if (!done.is_ok()) decommit(0);
  return done;
}

uint64_t GranuleRange::others_in(GranuleRun run) const {
  uint64_t n = 0;
  each_piece(run, [&](const Piece& p, GranuleRun part) {
    n += p.pool == nullptr ? 0 : p.pool->count_with_others(part);
  });
  return n;
}

uint64_t GranuleRange::own_bytes_of(uint64_t from) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return others_in({from / granule_, locked_}) * granule_;
}

/// Copies take the place of granules that others map too. Everybody else goes on reading those.
Status GranuleRange::replace_shared(GranuleRun run, uint64_t live) {
  for (uint64_t at = run.first; at < run.end;) {
    const auto piece =
        std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& p) { return at < p.end; });
    const uint64_t end = std::min(run.end, piece->end);
    const std::shared_ptr<GranulePool> pool = piece->pool;
    GranuleRun part = pool == nullptr ? GranuleRun{end, end} : pool->next_with_others({at, end});
    part.end = std::min(part.end, part.first + memory_->step());
    at = part.end;
    if (part.count() == 0) continue;
    pieces_.reserve(pieces_.size() + 2);
    SHARPI_TRY(memory_->replace(*pool, part, live));
    assign(part, nullptr);
    pool->leave(part);
  }
  return Status::ok();
}

Status GranuleRange::own(uint64_t from, uint64_t live) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const GranuleRun run{from / granule_, locked_};
  if (run.first >= run.end) return Status::ok();
  SHARPI_TRY(no_throw([&] { return replace_shared(run, live); }));
  SHARPI_TRY(memory_->protect(run, true));
  locked_ = run.first;
  return Status::ok();
}

uint64_t GranuleRange::writable_from() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return locked_ * granule_;
}

uint64_t GranuleRange::private_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t n = 0;
  each_piece({0, count_},
             [&](const Piece& p, GranuleRun part) { n += p.pool == nullptr ? part.count() : 0; });
  return n * granule_;
}

uint64_t GranuleRange::shared_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return others_in({0, count_}) * granule_;
}

}  // namespace sharpi
