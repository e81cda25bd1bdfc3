// SPDX-License-Identifier: MIT
// Speculative decoding without a second model (prompt lookup, n-gram drafts; Saxena 2023, "Prompt
// Lookup Decoding"): the draft is what followed the last tokens where they occurred before in the
// session's own text. Memory is taken once.
// Thread rule: one owner (the session).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sharpi {

class NgramDrafter {
 public:
  /// For histories of up to n_ctx tokens. Throws std::bad_alloc.
  explicit NgramDrafter(uint32_t n_ctx);
  uint64_t bytes() const { return (newest_.size() + older_.size()) * sizeof(uint32_t); }

  /// Tokens from position n on are no longer what they were.
  void truncate(uint32_t n) { n_indexed_ = n < n_indexed_ ? n : n_indexed_; }
  /// What is likely to follow `history` and then `next`: up to most tokens, written to out[most].
  /// *match: how many tokens before them agree with the place that they are from.
  uint32_t propose(std::span<const int32_t> history, int32_t next, uint32_t most, int32_t* out,
                   uint32_t* match);

 private:
  struct Found {
    uint32_t from = 0, match = 0;  // the draft starts at history[from]
  };
  void index(std::span<const int32_t> history);
  Found longest(std::span<const int32_t> history, int32_t next) const;
  uint32_t bucket(int32_t a, int32_t b, int32_t c) const;

  // Chains of positions behind equal hashes of three tokens, newest first. Entries of positions
  // that were truncated stay until they are written over; a chain only ever descends.
  std::vector<uint32_t> newest_, older_;
  uint32_t n_indexed_ = 0;
};

}  // namespace sharpi
