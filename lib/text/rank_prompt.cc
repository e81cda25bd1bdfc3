// SPDX-License-Identifier: MIT
#include "text/rank_prompt.h"

#include <string>

#include "text/jinja/marked_text.h"

namespace sharpi {
namespace {

// How Qwen3-Reranker is asked (its model card).
constexpr std::string_view kChatMl =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
constexpr std::string_view kUsualTask =
    "Given a web search query, retrieve relevant passages that answer the query";

/// The template with its places filled in, which are foreign to it.
jinja::MarkedText fill_in(std::string_view form, const RankPair& pair) {
  const std::pair<std::string_view, std::string_view> places[] = {
      {"{query}", pair.query},
      {"{document}", pair.document},
      {"{instruction}", pair.instruction.value_or(kUsualTask)}};
  jinja::MarkedText text;
  for (size_t at = 0; at < form.size();) {
    const size_t brace = std::min(form.find('{', at), form.size());
    text.append(form.substr(at, brace - at), false);
    at = brace;
    if (at == form.size()) break;
    bool filled = false;
    for (const auto& [place, value] : places) {
      if (form.compare(at, place.size(), place) != 0) continue;
      text.append(value, true);
      at += place.size();
      filled = true;
      break;
    }
    if (!filled) text.append(form.substr(at++, 1), false);
  }
  return text;
}

Status refuse_instruction(const RankPair& pair) {
  if (!pair.instruction) return Status::ok();
  return Status::error(Code::kUnsupported,
                       "an instruction was given, but the model's pairs have no place for one");
}

/// [CLS] query [SEP] document [SEP], with two separators between where the vocabulary is RoBERTa's.
Status encode_for_encoder(const Tokenizer& tokenizer, const RankPair& pair,
                          std::vector<int32_t>* out, uint32_t* n_first) {
  SHARPI_TRY(refuse_instruction(pair));
  const size_t before = out->size();
  SHARPI_TRY(tokenizer.encode(pair.query, true, false, out));
  *n_first = static_cast<uint32_t>(out->size() - before);
  if (tokenizer.doubles_separators()) out->push_back(tokenizer.eos());
  SHARPI_TRY(tokenizer.encode(pair.document, false, false, out));
  out->push_back(tokenizer.eos());
  return Status::ok();
}

}  // namespace

Status encode_pair(const Tokenizer& tokenizer, const GgufFile& file, const RankPair& pair,
                   std::vector<int32_t>* out, uint32_t* n_first) {
  if (tokenizer.is_encoders() && tokenizer.eos() >= 0)
    return encode_for_encoder(tokenizer, pair, out, n_first);
  SHARPI_TRY_ASSIGN(const auto own, file.get_string("tokenizer.chat_template.rerank"));
  if (!own && tokenizer.find("<|im_start|>") < 0) {
    return Status::error(
        Code::kUnsupported,
        "the file has no tokenizer.chat_template.rerank, and its vocabulary is not "
        "ChatML's: no form of a query and a document is known for it");
  }
  const std::string_view form = own.value_or(kChatMl);
  if (form.find("{instruction}") == std::string_view::npos) SHARPI_TRY(refuse_instruction(pair));
  const size_t before = out->size();
  SHARPI_TRY(tokenizer.encode_marked(fill_in(form, pair), out));
  *n_first = static_cast<uint32_t>(out->size() - before);
  return Status::ok();
}

}  // namespace sharpi
