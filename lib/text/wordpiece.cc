// SPDX-License-Identifier: MIT
#include "text/wordpiece.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/characters.h"

namespace sharpi {
namespace {

constexpr std::string_view kWordMark = "\xE2\x96\x81";  // U+2581
constexpr size_t kMostCharacters = 100;                 // longer words are unknown

/// The character at `at` and its bytes; bytes that are part of none are skipped (0).
uint32_t next_character(std::string_view text, size_t* at) {
  const uint32_t n = utf8_character(text, *at);
  const uint32_t c = n == 0 ? 0 : utf8_code_point(text, *at, n);
  *at += std::max(n, 1u);
  return c;
}

}  // namespace

Result<std::unique_ptr<FragmentEncoder>> WordPiece::create(const GgufFile& file,
                                                           const Vocabulary& vocabulary) {
  std::unique_ptr<WordPiece> w(new WordPiece(vocabulary));
  SHARPI_TRY_ASSIGN(const auto lower, file.get_bool("tokenizer.ggml.normalizer.lowercase"));
  SHARPI_TRY_ASSIGN(const auto strip, file.get_bool("tokenizer.ggml.normalizer.strip_accents"));
  w->lower_case_ = lower.value_or(true);
  w->strip_accents_ = strip.value_or(w->lower_case_);
  w->unknown_ = vocabulary.unknown();
  if (w->unknown_ < 0 && vocabulary.find("[UNK]") != Vocabulary::kNone)
    w->unknown_ = static_cast<int32_t>(vocabulary.find("[UNK]"));
  if (w->unknown_ < 0) {
    return Status::error(
        Code::kFormat,
        "the vocabulary has no [UNK], and tokenizer.ggml.unknown_token_id is absent");
  }
  for (uint32_t id = 0; id < vocabulary.size(); ++id)
    w->longest_ = std::max(w->longest_, vocabulary.text(id).size());
  return std::unique_ptr<FragmentEncoder>(std::move(w));
}

/// Words apart by single spaces where they were apart by any, Chinese characters by spaces too.
std::string WordPiece::normalize(std::string_view text) const {
  constexpr uint32_t kReplacement = 0xFFFD;
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = next_character(text, &at);
    const bool spaces = c == '\t' || c == '\n' || c == '\r';
    if (c == 0 || c == kReplacement || (!spaces && is_other(c))) continue;
    if (spaces || is_white_space(c)) {
      out += ' ';
    } else if (is_chinese(c)) {
      out += ' ';
      append_folded(c, strip_accents_, lower_case_, &out);
      out += ' ';
    } else {
      append_folded(c, strip_accents_, lower_case_, &out);
    }
  }
  return out;
}

Status WordPiece::encode(std::string_view text, std::vector<int32_t>* out) const {
  const std::string clean = normalize(text);
  size_t word = 0;
  const auto end_word = [&](size_t end) {
    if (end > word) encode_word(std::string_view(clean).substr(word, end - word), out);
  };
  for (size_t at = 0; at < clean.size();) {
    const size_t here = at;
    const uint32_t c = next_character(clean, &at);
    const bool space = is_white_space(c), mark = is_punctuation(c);
    if (!space && !mark) continue;
    end_word(here);
    word = here;
    if (mark) end_word(at);
    word = at;
  }
  end_word(clean.size());
  return Status::ok();
}

void WordPiece::encode_word(std::string_view word, std::vector<int32_t>* out) const {
  size_t n_characters = 0;
  for (const char c : word) n_characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  const size_t before = out->size();
  std::string piece;
  bool known = n_characters <= kMostCharacters;
  for (size_t at = 0; known && at < word.size();) {
    const std::string_view mark = at == 0 ? kWordMark : std::string_view();
    size_t n = std::min(word.size() - at, longest_);
    uint32_t id = Vocabulary::kNone;
    for (; n > 0; --n) {
      const bool whole =
          at + n == word.size() || (static_cast<unsigned char>(word[at + n]) & 0xC0) != 0x80;
      if (!whole) continue;  // not in the middle of a character
      piece.assign(mark).append(word.substr(at, n));
      id = vocabulary_.find(piece);
      if (id != Vocabulary::kNone) break;
    }
    known = id != Vocabulary::kNone;
    if (known) out->push_back(static_cast<int32_t>(id));
    at += n;
  }
  if (known) return;
  out->resize(before);
  out->push_back(unknown_);
}

}  // namespace sharpi
