// SPDX-License-Identifier: MIT
#include "text/unigram.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/utf8.h"
#include "text/characters.h"

namespace sharpi {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581
constexpr float kUnknownPenalty = 10.0f;                 // below the worst token

/// The words of a text, each with a mark before it.
std::vector<std::string> marked_words(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t n = std::max(utf8_character(text, at), 1u);
    const bool space = is_white_space(utf8_code_point(text, at, n));
    if (!space && !inside) words.emplace_back(kSpaceMark);
    if (!space) words.back().append(text.substr(at, n));
    inside = !space;
    at += n;
  }
  return words;
}

std::string marked(std::string_view text, bool prefix) {
  std::string out(prefix ? kSpaceMark : std::string_view());
  for (const char c : text) c == ' ' ? out.append(kSpaceMark) : out.append(1, c);
  return out;
}

}  // namespace

Result<std::unique_ptr<FragmentEncoder>> Unigram::create(const GgufFile& file,
                                                         const Vocabulary& vocabulary) {
  std::unique_ptr<Unigram> u(new Unigram(vocabulary));
  SHARPI_TRY_ASSIGN(const auto prefix, file.get_bool("tokenizer.ggml.add_space_prefix"));
  SHARPI_TRY_ASSIGN(const auto squeeze, file.get_bool("tokenizer.ggml.remove_extra_whitespaces"));
  u->space_prefix_ = prefix.value_or(true);
  u->squeeze_ = squeeze.value_or(true);
  if (u->squeeze_ && !u->space_prefix_) {
    return Status::error(Code::kUnsupported,
                         "tokenizer.ggml.remove_extra_whitespaces without add_space_prefix is not "
                         "supported");
  }
  SHARPI_TRY_ASSIGN(const auto map, file.get_int_array("tokenizer.ggml.precompiled_charsmap"));
  std::string bytes;
  if (map) {
    for (const int64_t b : *map) bytes.push_back(static_cast<char>(static_cast<uint8_t>(b)));
  }
  SHARPI_TRY_ASSIGN(u->map_, CharsMap::create(std::move(bytes)));
  u->unknown_ = vocabulary.unknown();
  for (uint32_t id = 0; u->unknown_ < 0 && id < vocabulary.size(); ++id) {
    if (vocabulary.kind(id) == TokenKind::kUnknown) u->unknown_ = static_cast<int32_t>(id);
  }
  if (u->unknown_ < 0) {
    return Status::error(Code::kFormat,
                         "the vocabulary has no unknown token, and "
                         "tokenizer.ggml.unknown_token_id is absent");
  }
  float least = std::numeric_limits<float>::max();
  for (uint32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.kind(id) == TokenKind::kNormal) least = std::min(least, vocabulary.score(id));
  }
  u->unknown_score_ = least - kUnknownPenalty;
  return std::unique_ptr<FragmentEncoder>(std::move(u));
}

Status Unigram::encode(std::string_view text, std::vector<int32_t>* out) const {
  const std::string normal = map_.apply(text);
  std::vector<Step> steps;
  if (squeeze_) {
    for (const std::string& word : marked_words(normal)) encode_piece(word, &steps, out);
  } else if (!normal.empty()) {
    encode_piece(marked(normal, space_prefix_), &steps, out);
  }
  return Status::ok();
}

void Unigram::encode_piece(std::string_view piece, std::vector<Step>* steps,
                           std::vector<int32_t>* out) const {
  std::vector<Step>& best = *steps;
  best.assign(piece.size() + 1, {});
  best[0].id = 0;
  const auto offer = [&](size_t from, size_t to, int32_t id, float score) {
    const float sum = best[from].score + score;
    if (best[to].id < 0 || sum > best[to].score) best[to] = {sum, id, static_cast<uint32_t>(from)};
  };
  for (size_t at = 0; at < piece.size();) {
    const size_t character = std::max(utf8_character(piece, at), 1u);
    const size_t most = std::min<size_t>(piece.size() - at, vocabulary_.longest_text());
    bool single = false;
    for (size_t n = character; n <= most;) {
      const uint32_t id = vocabulary_.find_mergeable(piece.substr(at, n));
      if (id != Vocabulary::kNone) {
        offer(at, at + n, static_cast<int32_t>(id), vocabulary_.score(id));
        single = single || n == character;
      }
      if (at + n >= piece.size()) break;
      n += std::max(utf8_character(piece, at + n), 1u);
    }
    if (!single) offer(at, at + character, unknown_, unknown_score_);
    at += character;
  }
  const size_t before = out->size();
  for (size_t at = piece.size(); at > 0; at = best[at].from) {
    const bool again = best[at].id == unknown_ && out->size() > before && out->back() == unknown_;
    if (!again) out->push_back(best[at].id);  // unknown characters in a row are one token
  }
  std::reverse(out->begin() + static_cast<ptrdiff_t>(before), out->end());
}

}  // namespace sharpi
