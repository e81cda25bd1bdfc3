// SPDX-License-Identifier: MIT
// What a model whose layers are spread over a group's processes has of the group: its number there,
// the message in which hidden rows come from the rank before and go to the next, and how ranks
// agree about a call. Owns the message. Thread rule: as Group; calls hold a GroupCall.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/limits.h"
#include "base/status.h"
#include "group/group.h"
#include "plan/part_plan.h"
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
  int32_t value = 0;       // from the last rank: a token; from rank 0: the parts of a batch
  uint32_t n_done = 0;     // tokens that it has committed
  std::span<const int32_t> tokens;  // from the last rank, of a batch; they go where `status` is ok
};

/// What all ranks have said comes to the same for all of them.
struct RankVerdict {
  Status status;      // ok, or of the first rank that has failed, with its number
  int32_t value = 0;  // of the last rank
  int32_t first_value = 0;
  uint32_t n_done = 0;                    // the least
  std::array<int32_t, kMaxBatch> tokens;  // of the last rank
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
  /// Rank 0's choice for sessions with so many tokens.
  uint32_t parts_of(std::span<const uint32_t> lengths) const;

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
  std::vector<RankCost> costs_;  // of all ranks
};

/// A rank's place in a line down which pieces of a call go one behind the other: it computes one
/// while the next rank has that before. Rank 0 alone stops. A rank that fails says so to the next
/// one, once, and takes what still comes, so that nobody waits for it.
class RankLine {
 public:
  explicit RankLine(RankLink& link) : link_(link) {}
  /// The next piece; whether it is to be computed.
  Status take(uint32_t n_rows, bool stop, bool* compute);
  /// `own`: how this rank's share of the call goes; whether another piece comes.
  Status give(uint32_t n_rows, const Status& own, bool* more);

 private:
  RankLink& link_;
  RowsState state_ = RowsState::kRows;
  bool failed_ = false, told_ = false;  // the next rank expects nothing more
};

}  // namespace sharpi
