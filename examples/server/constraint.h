// SPDX-License-Identifier: MIT
// What one answer has to match, followed token by token: its masks, made on a thread beside the one
// that computes. A model that thinks first is left alone until it has finished thinking.
// Thread rule: one thread at a time, but that a mask is made meanwhile.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "handles.h"

namespace server {

using GrammarHandle = std::unique_ptr<sharpi_grammar, Destroy<sharpi_grammar_destroy>>;
using MatcherHandle = std::unique_ptr<sharpi_matcher, Destroy<sharpi_matcher_destroy>>;

class Constraint {
 public:
  /// @param prompt_end the last tokens of the prompt as text: it may have opened thoughts.
  /// @param is_answer the grammar says what the answer is, which in the messages of gpt-oss begins
  /// behind a header of its own; otherwise what calls look like, whose headers are theirs.
  /// Makes the first mask where the answer begins with one. Throws LibraryError.
  Constraint(const sharpi_grammar* grammar, std::string prompt_end, bool is_answer);
  ~Constraint();

  /// The mask of the next draw is made, or waited for up to `patience`. False: it is not there yet.
  bool is_prepared(std::chrono::microseconds patience);
  /// The bits of the tokens that may come next; null = all may. Throws LibraryError where the mask
  /// could not be made.
  const std::vector<uint32_t>* mask();
  /// The token was drawn. @param text what it added. Throws LibraryError.
  void accept(int32_t token, const std::string& text);
  /// The answer is whole, and nothing may follow.
  bool complete() const { return complete_; }

 private:
  sharpi_part open_part(uint32_t kinds) const;
  bool waits() const;
  bool may_begin(const std::string& text);
  void prepare();
  void make_mask();

  MatcherHandle matcher_;
  const std::string prompt_end_;
  std::string thoughts_;
  size_t mark_ = 0;         // where the last mark of the thoughts may begin
  const bool in_messages_;  // the answer is one message of several
  bool active_;
  bool prepared_ = false, complete_ = false;
  std::future<void> making_;
  std::vector<uint32_t> mask_;
  sharpi_error failure_ = SHARPI_ERROR_INIT;
};

}  // namespace server
