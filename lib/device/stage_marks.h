// SPDX-License-Identifier: MIT
// Where a workspace stands in a pipeline: which passes are under way, and the marks by which this
// device and its neighbours on the way wait for each other. Each pass that is under way has a call
// table of its own on the host.
// Thread rule: as the workspace.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"

namespace sharpi::device {

class StageMarks {
 public:
  /// For n passes at once; 1 = no pipeline, and no marks.
  Status create(const Device& device, uint32_t n) {
    n_passes_ = n;
    if (n == 1) return Status::ok();
    ended_.resize(n);
    for (std::unique_ptr<Event>& e : ended_) {
      SHARPI_TRY_ASSIGN(e, device.create_event());
    }
    SHARPI_TRY_ASSIGN(taken_, device.create_event());
    SHARPI_TRY_ASSIGN(sent_, device.create_event());
    return Status::ok();
  }
  /// Of the pass that is being given; the first one's where none is.
  uint32_t table() const { return table_; }
  /// Of the oldest pass. Pre: not is_empty().
  uint32_t oldest_table() const { return static_cast<uint32_t>(n_finished_ % n_passes_); }
  bool is_full() const { return n_started_ - n_finished_ == n_passes_; }
  bool is_empty() const { return n_started_ == n_finished_; }
  /// A pass is about to be given; it counts from started() on. Pre: not is_full().
  void begin() { table_ = static_cast<uint32_t>(n_started_ % n_passes_); }
  Status started(const Queue& queue) {
    SHARPI_TRY(queue.record(*ended_[table_], "the end of a pass"));
    ++n_started_;
    return Status::ok();
  }
  /// Waits for the oldest pass. Pre: not is_empty().
  Status finish() {
    SHARPI_TRY(ended_[n_finished_ % n_passes_]->wait("waiting for a pass"));
    ++n_finished_;
    return Status::ok();
  }
  /// Everything has ended, or will never be asked for.
  void forget() {
    n_started_ = n_finished_ = 0;
    table_ = 0;
  }
  /// The last pass that was given has taken the rows that were handed over to it; its own rows are
  /// where the next device takes them.
  const Event& taken() const { return *taken_; }
  const Event& sent() const { return *sent_; }

 private:
  uint32_t n_passes_ = 1, table_ = 0;
  uint64_t n_started_ = 0, n_finished_ = 0;
  std::vector<std::unique_ptr<Event>> ended_;
  std::unique_ptr<Event> taken_, sent_;
};

}  // namespace sharpi::device
