// SPDX-License-Identifier: MIT
// Passes over chunks of one prompt that go through a model's devices one behind the other (pipeline
// parallelism): while a device computes a chunk, the one in front of it computes the next. The
// devices wait for each other; the host gives a pass to all of them and waits for none but the
// oldest. What is given is computed to its end, so a cancel is answered by giving no more.
// Owns a workspace of the model while it lives.
// Thread rule: of the call that makes it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "engine/model.h"

namespace sharpi {

class Pipeline {
 public:
  /// Waits for a workspace. For passes over up to n_rows rows of one session. Pre:
  /// Model::passes_under_way(n_rows) > 1.
  Pipeline(const Model& model, std::span<TierSession* const> sessions, uint32_t n_rows);
  /// Nothing is under way any more.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  bool is_empty() const { return n_started_ == n_finished_; }
  bool is_full() const { return n_started_ - n_finished_ == n_passes_; }
  /// Another call waits for the workspace, which somebody who is not in a hurry leaves to it.
  bool is_wanted() const { return model_.is_wanted(); }
  /// Rows that are under way.
  uint32_t n_rows() const { return n_rows_; }
  /// Gives a pass over the session's rows behind those that are under way; what the ledger says is
  /// of those in front of all. After a failure the passes in front go on, and no other is given.
  /// Pre: not is_full().
  Status start(const Submission& rows);
  /// Waits for the oldest pass, which is then to be committed. `hidden`: where its hidden rows go,
  /// if its start() named a place for some; null = nowhere. After a failure none that is under way
  /// counts. Pre: not is_empty().
  Status finish(float* hidden);

 private:
  static constexpr size_t kMostPasses = kMaxDevices + 1;
  struct Under {
    SequenceRows rows;
    uint32_t n_rows = 0;
  };
  Submission on_its_way(const Submission& rows, size_t segment) const;
  Status finish_on(size_t segment, const Under& pass, float* hidden) const;

  const Model& model_;
  const Model::SlotLease lease_;
  const std::span<TierSession* const> sessions_;
  const uint32_t n_passes_;
  std::array<Under, kMostPasses> passes_{};
  uint64_t n_started_ = 0, n_finished_ = 0;
  uint32_t n_rows_ = 0;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace sharpi
