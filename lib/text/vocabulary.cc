// SPDX-License-Identifier: MIT
#include "text/vocabulary.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/hash.h"

namespace sharpi {
namespace {

/// Tokens after which a model of these families has finished, whatever the eos key names.
constexpr std::string_view kEndTexts[] = {
    "<|im_end|>",  "<|endoftext|>",    "<end_of_turn>", "<eos>",        "<turn|>",
    "<|fim_pad|>", "<|tool_response>", "<|repo_name|>", "<|file_sep|>", "<|eot_id|>",
    "<|eom_id|>",  "<|end_of_text|>",  "<|end|>",       "<|return|>",   "<|call|>",
};

/// A turn of gpt-oss is several messages, each with an end of its own: the turn ends with its
/// answer or with a call (the harmony format of responses).
constexpr std::string_view kMessageEnd = "<|end|>", kTurnEnds[] = {"<|return|>", "<|call|>"};

/// Tokens that are control tokens whatever type the file gives them: converters are known to
/// declare some of them normal or user-defined, and text from outside must not smuggle them in.
constexpr std::string_view kControlTexts[] = {
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|turn>",
    "<turn|>",
    "<|tool_response>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<bos>",
    "<eos>",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
};

/// Differs from load to load, so that no file can be built to make the tables collide.
uint64_t table_seed(const void* somewhere) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return hash_mix(reinterpret_cast<uintptr_t>(somewhere) ^ static_cast<uint64_t>(now),
                  0xD6E8FEB86659FD93u) |
         1;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

constexpr uint32_t kMergeBatch = 32;  // keeps 96 lookups in flight; 16 and 64 were no faster

/// One line of the merges and the lookups of its left, right and joined text.
struct MergeLine {
  std::array<std::string_view, 3> texts;
  std::array<uint64_t, 3> hashes;
  std::string joined;
  MergeTable::Rule rule{};

  Status split(std::string_view line, uint32_t rank, const TextTable& table) {
    const size_t space = line.find(' ', 1);  // the left part may itself be a space
    if (space == std::string_view::npos || space + 1 == line.size()) {
      return Status::error(Code::kFormat, "tokenizer.ggml.merges[%u] does not consist of two parts",
                           rank);
    }
    joined.assign(line, 0, space);
    joined.append(line, space + 1);
    texts = {line.substr(0, space), line.substr(space + 1), joined};
    for (size_t i = 0; i < texts.size(); ++i) {
      hashes[i] = table.hash(texts[i]);
      table.prefetch_slot(hashes[i]);
    }
    return Status::ok();
  }
  void prefetch_views(const TextTable& table) const {
    for (const uint64_t h : hashes) table.prefetch_view(h);
  }
  void prefetch_bytes(const TextTable& table) const {
    for (const uint64_t h : hashes) table.prefetch_bytes(h);
  }
  void resolve(const TextTable& table) {
    rule = {table.find(texts[0], hashes[0]), table.find(texts[1], hashes[1]),
            table.find(texts[2], hashes[2])};
  }
};

using MergeBatch = std::array<MergeLine, kMergeBatch>;

}  // namespace

int byte_of_hex_token(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const int high = hex_digit(text[3]), low = hex_digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

Status Vocabulary::load(const GgufFile& file, const Rules& rules) {
  SHARPI_TRY_ASSIGN(auto tokens, file.get_string_array("tokenizer.ggml.tokens"));
  if (!tokens || tokens->empty()) {
    return Status::error(Code::kFormat, "tokenizer.ggml.tokens is absent or empty");
  }
  if (tokens->size() > INT32_MAX) {
    return Status::error(Code::kFormat,
                         "tokenizer.ggml.tokens has %zu entries, but ids have 31 bits",
                         tokens->size());
  }
  texts_ = std::move(*tokens);
  seed_ = table_seed(this);
  SHARPI_TRY(load_kinds(file));
  table_.build(texts_, seed_);
  SHARPI_TRY(index_bytes(rules.byte_level));
  if (rules.scores) SHARPI_TRY(load_scores(file));
  if (rules.merges && !rules.scores) SHARPI_TRY(load_merges(file));
  SHARPI_TRY(load_roles(file, rules));
  return load_never_sample(file);
}

Status Vocabulary::load_kinds(const GgufFile& file) {
  kinds_.assign(texts_.size(), TokenKind::kNormal);
  SHARPI_TRY_ASSIGN(const auto types, file.get_int_array("tokenizer.ggml.token_type"));
  if (!types) return Status::ok();
  if (types->size() != texts_.size()) {
    return Status::error(Code::kFormat,
                         "tokenizer.ggml.token_type has %zu entries, but there are %zu tokens",
                         types->size(), texts_.size());
  }
  for (size_t i = 0; i < types->size(); ++i) {
    const int64_t type = (*types)[i];
    if (type < 0 || type > 6) {
      return Status::error(Code::kFormat, "tokenizer.ggml.token_type[%zu] is %lld, expected 0 to 6",
                           i, static_cast<long long>(type));
    }
    if (type != 0) kinds_[i] = static_cast<TokenKind>(type);  // 0 is "not declared"
  }
  return Status::ok();
}

Status Vocabulary::index_bytes(bool byte_level) {
  byte_tokens_.fill(kNone);
  if (byte_level) {
    std::string spelled;
    for (uint32_t b = 0; b < 256; ++b) {
      spelled.clear();
      utf8_append(kByteAlphabet[b], &spelled);
      byte_tokens_[b] = find(spelled);
    }
    return Status::ok();
  }
  for (uint32_t id = 0; id < size(); ++id) {
    if (kinds_[id] != TokenKind::kByte) continue;
    const int byte = byte_of_hex_token(texts_[id]);
    if (byte < 0) {
      return Status::error(Code::kFormat, "token %u has type byte, but its text is not <0xXX>", id);
    }
    byte_tokens_[static_cast<size_t>(byte)] = id;
  }
  return Status::ok();
}

Status Vocabulary::load_merges(const GgufFile& file) {
  SHARPI_TRY_ASSIGN(const auto merges, file.get_string_array("tokenizer.ggml.merges"));
  if (!merges) return Status::error(Code::kFormat, "tokenizer.ggml.merges is absent");
  if (merges->size() >= UINT32_MAX / 4) {
    return Status::error(Code::kFormat, "tokenizer.ggml.merges has %zu entries, which is too many",
                         merges->size());
  }
  const auto n = static_cast<uint32_t>(merges->size());
  merges_.reset(n, seed_);
  MergeBatch batch;
  for (uint32_t first = 0; first < n; first += kMergeBatch) {
    const uint32_t here = std::min(kMergeBatch, n - first);
    for (uint32_t i = 0; i < here; ++i) {
      SHARPI_TRY(batch[i].split((*merges)[first + i], first + i, table_));
    }
    for (uint32_t i = 0; i < here; ++i) batch[i].prefetch_views(table_);
    for (uint32_t i = 0; i < here; ++i) batch[i].prefetch_bytes(table_);
    for (uint32_t i = 0; i < here; ++i) {
      batch[i].resolve(table_);
      merges_.prefetch(batch[i].rule.left, batch[i].rule.right);
    }
    for (uint32_t i = 0; i < here; ++i) {
      const MergeTable::Rule& rule = batch[i].rule;
      // A merge of or into something that is no token can never be part of an encoding.
      if (rule.left == kNone || rule.right == kNone || rule.merged == kNone) continue;
      merges_.add(first + i, rule);
    }
  }
  return Status::ok();
}

Status Vocabulary::load_scores(const GgufFile& file) {
  SHARPI_TRY_ASSIGN(auto scores, file.get_float_array("tokenizer.ggml.scores"));
  if (!scores) return Status::error(Code::kFormat, "tokenizer.ggml.scores is absent");
  if (scores->size() != texts_.size()) {
    return Status::error(Code::kFormat,
                         "tokenizer.ggml.scores has %zu entries, but there are %zu tokens",
                         scores->size(), texts_.size());
  }
  for (size_t i = 0; i < scores->size(); ++i) {
    if (std::isnan((*scores)[i])) {
      return Status::error(Code::kFormat, "tokenizer.ggml.scores[%zu] is not a number", i);
    }
  }
  scores_ = std::move(*scores);
  for (const std::string_view text : texts_) {
    longest_text_ = std::max(longest_text_, static_cast<uint32_t>(text.size()));
  }
  return Status::ok();
}

Status Vocabulary::role(const GgufFile& file, const char* key, int32_t* id) const {
  SHARPI_TRY_ASSIGN(const auto value, file.get_uint(key));
  *id = -1;
  if (!value || *value == UINT32_MAX) return Status::ok();  // converters write "none" as -1
  if (*value >= size()) {
    return Status::error(Code::kFormat, "%s is %llu, but there are %u tokens", key,
                         static_cast<unsigned long long>(*value), size());
  }
  *id = static_cast<int32_t>(*value);
  return Status::ok();
}

void Vocabulary::mark_control(int32_t id) {
  if (id < 0) return;
  TokenKind& kind = kinds_[static_cast<size_t>(id)];
  if (kind == TokenKind::kNormal || kind == TokenKind::kUserDefined) kind = TokenKind::kControl;
}

Status Vocabulary::load_roles(const GgufFile& file, const Rules& rules) {
  SHARPI_TRY(role(file, "tokenizer.ggml.bos_token_id", &bos_));
  SHARPI_TRY(role(file, "tokenizer.ggml.eos_token_id", &eos_));
  SHARPI_TRY(role(file, "tokenizer.ggml.unknown_token_id", &unknown_));
  int32_t eot = -1, eom = -1, cls = -1, sep = -1;
  SHARPI_TRY(role(file, "tokenizer.ggml.cls_token_id", &cls));
  SHARPI_TRY(role(file, "tokenizer.ggml.seperator_token_id", &sep));  // sic
  if (rules.encoders && cls >= 0) bos_ = cls;
  if (rules.encoders && sep >= 0) eos_ = sep;
  SHARPI_TRY(role(file, "tokenizer.ggml.eot_token_id", &eot));
  SHARPI_TRY(role(file, "tokenizer.ggml.eom_token_id", &eom));
  SHARPI_TRY_ASSIGN(const auto add_bos, file.get_bool("tokenizer.ggml.add_bos_token"));
  SHARPI_TRY_ASSIGN(const auto add_eos, file.get_bool("tokenizer.ggml.add_eos_token"));
  add_bos_ = rules.force_bos || add_bos.value_or(rules.default_bos);
  add_eos_ = add_eos.value_or(rules.encoders);
  if (add_bos_ && bos_ < 0) {
    return Status::error(Code::kFormat,
                         "texts begin with BOS, but tokenizer.ggml.bos_token_id is absent");
  }
  if (add_eos_ && eos_ < 0) {
    return Status::error(Code::kFormat,
                         "texts end with EOS, but tokenizer.ggml.eos_token_id is absent");
  }
  for (const std::string_view text : kControlTexts) mark_control(static_cast<int32_t>(find(text)));
  for (const int32_t id : {eos_, eot, eom}) {
    if (id >= 0) ends_.push_back(id);
  }
  for (const std::string_view text : kEndTexts) {
    if (const uint32_t id = find(text); id != kNone) ends_.push_back(static_cast<int32_t>(id));
  }
  std::sort(ends_.begin(), ends_.end());
  ends_.erase(std::unique(ends_.begin(), ends_.end()), ends_.end());
  const bool has_messages = std::all_of(std::begin(kTurnEnds), std::end(kTurnEnds),
                                        [&](auto text) { return find(text) != kNone; });
  if (has_messages) std::erase(ends_, static_cast<int32_t>(find(kMessageEnd)));
  return Status::ok();
}

Status Vocabulary::load_never_sample(const GgufFile& file) {
  for (uint32_t id = 0; id < size(); ++id) {
    if (kinds_[id] == TokenKind::kUnused) never_sample_.push_back(static_cast<int32_t>(id));
  }
  SHARPI_TRY_ASSIGN(const auto suppress, file.get_int_array("tokenizer.ggml.suppress_tokens"));
  if (!suppress) return Status::ok();
  for (const int64_t id : *suppress) {
    if (id < 0 || id >= static_cast<int64_t>(size())) {
      return Status::error(Code::kFormat,
                           "tokenizer.ggml.suppress_tokens names %lld, but there are %u tokens",
                           static_cast<long long>(id), size());
    }
    never_sample_.push_back(static_cast<int32_t>(id));
  }
  std::sort(never_sample_.begin(), never_sample_.end());
  never_sample_.erase(std::unique(never_sample_.begin(), never_sample_.end()), never_sample_.end());
  return Status::ok();
}

bool Vocabulary::ends_generation(int32_t id) const {
  return std::binary_search(ends_.begin(), ends_.end(), id);
}

}  // namespace sharpi
