// SPDX-License-Identifier: MIT
// What a file says about text: tokenizer, chat template, metadata. It needs no weights, so files of
// a vocabulary alone have it, too.
// Thread rule: immutable after create(); any thread.
#pragma once

#include <memory>
#include <mutex>

#include "gguf/gguf_file.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace sharpi {

namespace grammar {
struct Vocabulary;
}

class TextModel {
 public:
  /// A tokenizer that is not supported is no error here: tokenizer() is null then, and
  /// tokenizer_status() says why. kFormat: a malformed one.
  static Result<std::shared_ptr<const TextModel>> create(std::shared_ptr<const GgufFile> file);

  const GgufFile& file() const { return *file_; }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  const Status& tokenizer_status() const { return tokenizer_status_; }
  /// Null when the tokenizer is.
  const ChatTemplate* chat() const { return chat_.get(); }
  /// Made at the first call, in some hundred milliseconds. pre: tokenizer() is not null.
  std::shared_ptr<const grammar::Vocabulary> grammar_vocabulary() const;

 private:
  TextModel() = default;
  std::shared_ptr<const GgufFile> file_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Status tokenizer_status_;
  std::shared_ptr<const ChatTemplate> chat_;
  mutable std::mutex vocabulary_mutex_;
  mutable std::shared_ptr<const grammar::Vocabulary> vocabulary_;
};

}  // namespace sharpi
