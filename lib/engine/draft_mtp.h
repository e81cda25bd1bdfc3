// SPDX-License-Identifier: MIT
// Speculative decoding with the model's own block for multi-token prediction (arXiv 2412.19437,
// section 2.2). The block has KV rows of its own, one for every token that the session reads: row i
// is computed from the embedding of token i + 1 and the model's hidden row of token i. Rows of
// tokens that the session has read are computed from the model's hidden rows and stay. Rows of
// drafts are computed from the block's own hidden rows; they stand behind the others and are
// overwritten. Hidden rows of passes wait in a queue until there are enough for a pass over the
// block.
// Thread rule: one owner (the session).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/mtp_model.h"
#include "kv/ledger.h"

namespace sharpi {

class MtpDrafter {
 public:
  /// For a session of this shape. `n_chunk`: the most rows of a pass over the trunk. May throw
  /// std::bad_alloc.
  static Result<std::unique_ptr<MtpDrafter>> create(const MtpModel& model,
                                                    const SessionShape& shape, uint32_t n_chunk);
  uint64_t bytes() const;                      // of the hidden rows that it keeps
  std::vector<MemoryRow> memory_rows() const;  // of the rest
  const TierSession& tier() const { return *tier_; }
  const KvLedger& rows() const { return rows_; }

  /// Where the hidden rows of the next pass go; room for a chunk. Pre: !is_behind().
  float* hidden_rows() { return queue_.data() + uint64_t{waiting_} * n_embd_; }
  /// True when so many hidden rows wait that the next pass has no room for its own: then catch_up()
  /// comes first.
  bool is_behind() const;
  /// The pass that left its rows in hidden_rows() was over these tokens, and they are committed.
  void committed(std::span<const int32_t> tokens) noexcept;
  /// Builds the rows of all tokens but the last one. history[0] stands at position `first`. Failing
  /// costs nothing: the rows are built another time.
  Status catch_up(std::span<const int32_t> history, uint64_t first);
  /// What the block takes to follow `next`, which follows the history: up to `most` tokens, to
  /// out[]. None where it has no hidden row of the last token. scratch: [n_vocab].
  Status propose(std::span<const int32_t> history, uint64_t first, int32_t next, uint32_t most,
                 float* scratch, int32_t* out, uint32_t* out_n);

  /// Forgets everything about the tokens before position n.
  void restart(uint64_t n) noexcept;
  /// Tokens from position n on are no longer what they were; `checkpoint`: the one of that length,
  /// -1 = none.
  void truncate(uint64_t n, int32_t checkpoint) noexcept;
  void save_checkpoint(size_t index) noexcept;
  Status copy_from(const MtpDrafter& from);

 private:
  explicit MtpDrafter(const MtpModel& model) : model_(&model), n_embd_(model.spec().n_embd) {}
  Status make_room(uint32_t n);
  Status run(std::span<const int32_t> tokens, const float* hidden, bool draft);
  Status read(std::span<const int32_t> tokens, bool draft);
  Status draft_on(uint32_t n, float* scratch, int32_t* out);
  int32_t best(float* scratch, Status* status) const;
  void drop_waiting(uint32_t n) noexcept;
  uint32_t capacity() const { return tier_->store().capacity(0); }

  const MtpModel* model_;
  const uint64_t n_embd_;
  uint32_t kv_budget_ = 0;
  std::unique_ptr<TierSession> tier_;
  KvLedger rows_;             // of positions [base, next_position)
  std::vector<float> queue_;  // hidden rows of tokens from rows_.next_position() on
  uint32_t waiting_ = 0;
  int32_t drafted_ = -1;     // a row behind the others is of this token and the first that waits
  std::vector<float> last_;  // the block's own hidden row
  std::vector<float> checkpoints_;  // hidden row of the last token at each
  std::vector<uint8_t> has_checkpoint_;
  std::vector<uint32_t> kept_;  // scratch: rows that stay when a bounded session drops the oldest
};

}  // namespace sharpi
