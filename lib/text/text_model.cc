// SPDX-License-Identifier: MIT
#include "text/text_model.h"

#include "text/grammar/grammar.h"

namespace sharpi {

Result<std::shared_ptr<const TextModel>> TextModel::create(std::shared_ptr<const GgufFile> file) {
  std::shared_ptr<TextModel> out(new TextModel());
  auto tokenizer = Tokenizer::create(file);
  if (tokenizer.is_ok()) {
    out->tokenizer_ = tokenizer.take();
    SHARPI_TRY_ASSIGN(const auto architecture, file->get_string("general.architecture"));
    out->chat_ = ChatTemplate::create(*out->tokenizer_, architecture.value_or(std::string_view()));
  } else if (tokenizer.status().code() == Code::kUnsupported) {
    out->tokenizer_status_ = tokenizer.take_status();
  } else {
    return tokenizer.take_status();
  }
  out->file_ = std::move(file);
  return std::shared_ptr<const TextModel>(std::move(out));
}

std::shared_ptr<const grammar::Vocabulary> TextModel::grammar_vocabulary() const {
  const std::lock_guard lock(vocabulary_mutex_);
  if (vocabulary_ == nullptr)
    vocabulary_ = std::make_shared<const grammar::Vocabulary>(*tokenizer_);
  return vocabulary_;
}

}  // namespace sharpi
