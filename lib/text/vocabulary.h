// SPDX-License-Identifier: MIT
// The tokens of a GGUF file: texts, kinds, ids by text, merges, and the roles some of them play.
// Everything about them that is data; the Tokenizer holds the procedures.
// Thread rule: immutable after load(); any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "gguf/gguf_file.h"
#include "text/bpe.h"
#include "text/text_table.h"
#include "text/tokenizer.h"

namespace sharpi {

class Vocabulary {
 public:
  static constexpr uint32_t kNone = TextTable::kNone;

  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  /// How a kind of tokenizer reads the file's lists.
  struct Rules {
    bool byte_level = false;   // bytes are spelled in the byte alphabet; otherwise as "<0xXX>"
    bool scores = false;       // pairs are joined by tokenizer.ggml.scores instead of merges
    bool force_bos = false;    // texts begin with BOS whatever the file says
    bool default_bos = false;  // ... where the file says nothing
    bool merges = true;        // there are pairs to join at all
    bool encoders = false;     // CLS and SEP are around texts: they are BOS and EOS
  };
  /// Views into `file`, which must outlive this.
  Status load(const GgufFile& file, const Rules& rules);

  uint32_t size() const { return static_cast<uint32_t>(texts_.size()); }
  std::string_view text(uint32_t id) const { return texts_[id]; }
  TokenKind kind(uint32_t id) const { return kinds_[id]; }
  uint32_t find(std::string_view text) const {
    return table_.find(text);
  }  // id or kNone; the first of equal texts
  /// As find(), but only tokens that joining characters may give: normal and user-defined ones.
  uint32_t find_mergeable(std::string_view text) const {
    const uint32_t id = find(text);
    const bool may =
        id != kNone && (kinds_[id] == TokenKind::kNormal || kinds_[id] == TokenKind::kUserDefined);
    return may ? id : kNone;
  }
  float score(uint32_t id) const { return scores_[id]; }   // only with Rules::scores
  uint32_t longest_text() const { return longest_text_; }  // in bytes
  /// The token that stands for one byte, or kNone.
  uint32_t byte_token(uint8_t byte) const { return byte_tokens_[byte]; }
  const MergeTable& merges() const { return merges_; }

  int32_t bos() const { return bos_; }
  int32_t eos() const { return eos_; }
  int32_t unknown() const { return unknown_; }
  bool add_bos() const { return add_bos_; }
  bool add_eos() const { return add_eos_; }
  bool ends_generation(int32_t id) const;
  const std::vector<int32_t>& never_sample() const { return never_sample_; }

 private:
  Status load_kinds(const GgufFile& file);
  Status index_bytes(bool byte_level);
  Status load_merges(const GgufFile& file);
  Status load_scores(const GgufFile& file);
  Status load_roles(const GgufFile& file, const Rules& rules);
  Status load_never_sample(const GgufFile& file);
  Status role(const GgufFile& file, const char* key, int32_t* id) const;
  void mark_control(int32_t id);

  uint64_t seed_ = 0;
  std::vector<std::string_view> texts_;
  TextTable table_;  // over texts_
  std::vector<TokenKind> kinds_;
  std::array<uint32_t, 256> byte_tokens_{};
  MergeTable merges_;
  std::vector<float> scores_;
  uint32_t longest_text_ = 0;
  int32_t bos_ = -1, eos_ = -1, unknown_ = -1;
  bool add_bos_ = false, add_eos_ = false;
  std::vector<int32_t> ends_;  // ascending
  std::vector<int32_t> never_sample_;
};

/// The byte that "<0xXX>" stands for, or -1 for any other text.
int byte_of_hex_token(std::string_view text);

}  // namespace sharpi
