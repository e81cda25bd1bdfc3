// SPDX-License-Identifier: MIT
// What a model whose layers are spread over a group's processes has of the group: its number there,
// the message in which hidden rows come from the rank before and go to the next, and how ranks
// agree about a call. Owns the message. Thread rule: as Group; calls hold a GroupCall.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "group/group.h"
#include "plan/plan.h"

namespace sharpi {

/// Calls that all ranks make together.
enum class RankCall : uint32_t {
  kLoad = 1,
  kCreate,
  kPrefill,
  kPrefillEnd,
  kDecode,
  kStep,
  kPassEnd,
  kSample,
  kTruncate,
  kTruncateEnd
};

/// What a rank says of a call at an exchange. All ranks must say the same but for what follows
/// `arguments`.
struct RankWord {
  RankCall call = RankCall::kLoad;
  uint32_t session = 0;    // the n-th of its model
  uint32_t n_tokens = 0;   // that the session holds
  uint64_t arguments = 0;  // a hash
  Status status;           // whether it can go on, or has done it
  int32_t value = 0;       // from the last rank: a token
  uint32_t n_done = 0;     // tokens that it has committed
};

/// What all ranks have said comes to the same for all of them.
struct RankVerdict {
  Status status;        // ok, or of the first rank that has failed, with its number
  int32_t value = 0;    // of the last rank
  uint32_t n_done = 0;  // the least
};

/// What comes with hidden rows.
enum class RowsState : uint32_t { kRows = 1, kStopped, kFailed };

class RankLink {
 public:
  /// Ranks compare their plans. kMismatch: another file, split, context or chunk.
  static Result<std::shared_ptr<RankLink>> create(std::shared_ptr<Group> group, const Plan& plan);
  ~RankLink();
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;
  Group& group() const { return *group_; }
  bool is_first() const { return group_->is_first(); }
  bool is_last() const { return group_->is_last(); }
  uint32_t next_session() { return n_sessions_++; }
  RankVerdict agree(const RankWord& own, bool patient = false);

  /// [max_rows][n_embd]: of the call that is under way, in the message.
  float* rows() const { return reinterpret_cast<float*>(message_ + kHeader); }
  Status receive(uint32_t n_rows, RowsState* out);
  Status send(uint32_t n_rows, RowsState state);
  MemoryRow memory_row() const;

 private:
  struct Word;
  static constexpr size_t kHeader = 64;
  RankLink(std::shared_ptr<Group> group, uint64_t bytes, uint32_t n_embd);
  Word* words() const;
  const std::shared_ptr<Group> group_;
  const uint64_t bytes_;
  const uint64_t row_bytes_;
  std::byte* const message_;  // and behind it words()
  uint32_t model_ = 0;        // of the group's
  uint32_t n_sessions_ = 0;
};

}  // namespace sharpi
