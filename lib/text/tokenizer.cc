// SPDX-License-Identifier: MIT
#include "text/tokenizer.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <span>

#include "base/utf8.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/fragment_encoder.h"
#include "text/normalize.h"
#include "text/pretokenizer.h"
#include "text/score_merger.h"
#include "text/special_tokens.h"
#include "text/unigram.h"
#include "text/utf8_stream.h"
#include "text/vocabulary.h"
#include "text/wordpiece.h"

namespace sharpi {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // symbol indices have 32 bits
constexpr std::string_view kSpaceMarker =
    "\xE2\x96\x81";  // U+2581, how SentencePiece spells a space

/// What one call of encode() works with.
struct Scratch {
  BpeMerger merger;
  ScoreMerger score_merger;
  std::string normalized, spelled;
  std::optional<PreTokenizer::Matcher> matcher;
};

Result<std::string_view> read_chat_template(const GgufFile& file) {
  SHARPI_TRY_ASSIGN(const auto plain, file.get_string("tokenizer.chat_template"));
  if (plain) return *plain;
  SHARPI_TRY_ASSIGN(const auto names, file.get_string_array("tokenizer.chat_templates"));
  if (!names || names->empty()) return std::string_view();
  const bool has_default = std::find(names->begin(), names->end(), "default") != names->end();
  const std::string name(has_default ? std::string_view("default") : names->front());
  SHARPI_TRY_ASSIGN(const auto named, file.get_string("tokenizer.chat_template." + name));
  if (!named) {
    return Status::error(Code::kFormat, "tokenizer.chat_templates names \"%.64s\", which is absent",
                         name.c_str());
  }
  return *named;
}

}  // namespace

struct Tokenizer::Impl {
  std::shared_ptr<const GgufFile> file;
  std::optional<PreTokenizer> pre_tokenizer;  // byte-level models only
  std::unique_ptr<FragmentEncoder> encoder;   // of models of encoders only
  bool scores = false;                        // SentencePiece: pairs are joined by score
  bool space_prefix = false;                  // a space before each text, and after special tokens
  Vocabulary vocabulary;
  SpecialTokens user_defined, all_special;
  std::string_view chat_template;

  bool byte_level() const { return pre_tokenizer.has_value(); }
  Status read_model();
  Status read_encoders_model(std::string_view model);
  Status index_special();
  Status find_byte(uint8_t byte, uint32_t* id) const;
  Status push_byte(uint8_t byte, BpeMerger* merger) const;
  Status encode(std::string_view text, const SpecialTokens& special,
                std::span<const SpecialTokens::Span> foreign, std::vector<int32_t>* out) const;
  Status encode_byte_level(std::string_view text, Scratch* scratch,
                           std::vector<int32_t>* out) const;
  Status encode_pieces(std::string_view text, Scratch* scratch, std::vector<int32_t>* out) const;
  bool encode_whole(std::string_view piece, Scratch* scratch, std::vector<int32_t>* out) const;
  Status encode_scored(std::string_view text, Scratch* scratch, std::vector<int32_t>* out) const;
  Status encode_lines(std::string_view text, Scratch* scratch, std::vector<int32_t>* out) const;
  Status encode_line(std::string_view line, Scratch* scratch, std::vector<int32_t>* out) const;
  void decode_byte_level(std::string_view text, std::string* out) const;
  void decode_marked(std::string_view text, std::string* out) const;
};

Status Tokenizer::Impl::read_model() {
  SHARPI_TRY_ASSIGN(const auto model, file->get_string("tokenizer.ggml.model"));
  if (!model) return Status::error(Code::kFormat, "tokenizer.ggml.model is absent");
  Vocabulary::Rules rules;
  if (*model == "gpt2") {
    SHARPI_TRY_ASSIGN(const auto pre, file->get_string("tokenizer.ggml.pre"));
    if (!pre) {
      return Status::error(Code::kUnsupported,
                           "tokenizer.ggml.pre is absent, so the pre-tokenizer is unknown");
    }
    SHARPI_TRY_ASSIGN(pre_tokenizer, PreTokenizer::create(*pre));
    rules.byte_level = true;
    rules.default_bos = pre_tokenizer->default_bos();
  } else if (*model == "llama") {
    scores = rules.scores = rules.default_bos = true;
    SHARPI_TRY_ASSIGN(const auto prefix, file->get_bool("tokenizer.ggml.add_space_prefix"));
    space_prefix = prefix.value_or(true);
    SHARPI_TRY_ASSIGN(const auto squeeze,
                      file->get_bool("tokenizer.ggml.remove_extra_whitespaces"));
    if (squeeze.value_or(false)) {
      return Status::error(Code::kUnsupported,
                           "tokenizer.ggml.remove_extra_whitespaces is not supported");
    }
  } else if (*model == "gemma4") {
    rules.force_bos = true;
  } else if (*model == "bert" || *model == "t5") {
    return read_encoders_model(*model);
  } else {
    return Status::error(Code::kUnsupported,
                         "tokenizer model \"%.*s\" is not one of bert, gpt2, llama, gemma4, t5",
                         static_cast<int>(std::min<size_t>(model->size(), 64)), model->data());
  }
  return vocabulary.load(*file, rules);
}

Status Tokenizer::Impl::read_encoders_model(std::string_view model) {
  Vocabulary::Rules rules;
  rules.merges = false;
  rules.encoders = rules.default_bos = true;
  rules.scores = model == "t5";
  SHARPI_TRY(vocabulary.load(*file, rules));
  if (rules.scores) {
    SHARPI_TRY_ASSIGN(encoder, Unigram::create(*file, vocabulary));
  } else {
    SHARPI_TRY_ASSIGN(encoder, WordPiece::create(*file, vocabulary));
  }
  return Status::ok();
}

Status Tokenizer::Impl::index_special() {
  std::vector<SpecialTokens::Entry> user, all;
  for (uint32_t id = 0; id < vocabulary.size(); ++id) {
    const TokenKind kind = vocabulary.kind(id);
    const bool is_user = kind == TokenKind::kUserDefined;
    if (!is_user && kind != TokenKind::kControl && kind != TokenKind::kUnknown) continue;
    const std::string_view text = vocabulary.text(id);
    if (text.size() > SpecialTokens::kMaxBytes) {
      return Status::error(Code::kFormat, "special token %u has %zu bytes, which is more than %zu",
                           id, text.size(), SpecialTokens::kMaxBytes);
    }
    if (text.empty()) continue;
    all.push_back({text, static_cast<int32_t>(id), is_user});
    if (is_user) user.push_back(all.back());
  }
  user_defined = SpecialTokens(user);
  all_special = SpecialTokens(all);
  return Status::ok();
}

Status Tokenizer::Impl::find_byte(uint8_t byte, uint32_t* id) const {
  *id = vocabulary.byte_token(byte);
  if (*id != Vocabulary::kNone) return Status::ok();
  return Status::error(Code::kUnsupported, "the vocabulary has no token for byte 0x%02X", byte);
}

Status Tokenizer::Impl::push_byte(uint8_t byte, BpeMerger* merger) const {
  uint32_t id = 0;
  const Status found = find_byte(byte, &id);
  if (found.is_ok()) merger->push(id);
  // Byte-level vocabularies without a token for it drop the byte, as the reference does.
  if (!found.is_ok() && !byte_level()) return found;
  return Status::ok();
}

Status Tokenizer::Impl::encode(std::string_view text, const SpecialTokens& special,
                               std::span<const SpecialTokens::Span> foreign,
                               std::vector<int32_t>* out) const {
  Scratch scratch;
  if (byte_level()) {
    SHARPI_TRY_ASSIGN(scratch.matcher, PreTokenizer::Matcher::create(*pre_tokenizer));
  }
  SpecialTokens::Search search(special, text, foreign);
  for (size_t at = 0; at < text.size();) {
    const SpecialTokens::Match match = search.next(at);
    const std::string_view fragment = text.substr(at, match.at - at);
    if (encoder != nullptr) {
      SHARPI_TRY(encoder->encode(fragment, out));
    } else if (byte_level()) {
      SHARPI_TRY(encode_byte_level(fragment, &scratch, out));
    } else {
      SHARPI_TRY(scores ? encode_scored(fragment, &scratch, out)
                        : encode_lines(fragment, &scratch, out));
    }
    if (match.id >= 0) out->push_back(match.id);
    at = match.at + match.bytes;
  }
  return Status::ok();
}

Status Tokenizer::Impl::encode_byte_level(std::string_view text, Scratch* scratch,
                                          std::vector<int32_t>* out) const {
  for (size_t at = 0; at < text.size();) {
    const size_t valid = utf8_valid_prefix(text.substr(at));
    if (valid > 0) SHARPI_TRY(encode_pieces(text.substr(at, valid), scratch, out));
    at += valid;
    // Bytes that are no character stay themselves; there is nothing to normalise or split.
    for (; at < text.size() && utf8_character(text, at) == 0; ++at) {
      scratch->merger.clear();
      SHARPI_TRY(push_byte(static_cast<uint8_t>(text[at]), &scratch->merger));
      scratch->merger.merge(vocabulary.merges(), out);
    }
  }
  return Status::ok();
}

Status Tokenizer::Impl::encode_pieces(std::string_view text, Scratch* scratch,
                                      std::vector<int32_t>* out) const {
  std::string_view normal = text;
  if (pre_tokenizer->nfc()) SHARPI_TRY(normalize_nfc(text, &scratch->normalized, &normal));
  scratch->matcher->start(normal);
  for (;;) {
    std::string_view piece;
    SHARPI_TRY(scratch->matcher->next(&piece));
    if (piece.empty()) return Status::ok();
    if (pre_tokenizer->whole_pieces() && encode_whole(piece, scratch, out)) continue;
    scratch->merger.clear();
    for (const char c : piece) SHARPI_TRY(push_byte(static_cast<uint8_t>(c), &scratch->merger));
    scratch->merger.merge(vocabulary.merges(), out);
  }
}

bool Tokenizer::Impl::encode_whole(std::string_view piece, Scratch* scratch,
                                   std::vector<int32_t>* out) const {
  scratch->spelled.clear();
  for (const char c : piece) {
    utf8_append(kByteAlphabet[static_cast<uint8_t>(c)], &scratch->spelled);
  }
  const uint32_t id = vocabulary.find_mergeable(scratch->spelled);
  if (id == Vocabulary::kNone) return false;
  out->push_back(static_cast<int32_t>(id));
  return true;
}

Status Tokenizer::Impl::encode_scored(std::string_view text, Scratch* scratch,
                                      std::vector<int32_t>* out) const {
  if (text.empty()) return Status::ok();
  std::string& marked = scratch->spelled;
  marked.assign(space_prefix ? kSpaceMarker : std::string_view());
  for (const char c : text) {
    if (c == ' ') {
      marked.append(kSpaceMarker);
    } else {
      marked.push_back(c);
    }
  }
  for (const ScoreMerger::Piece& piece : scratch->score_merger.split(vocabulary, marked)) {
    if (piece.id != Vocabulary::kNone) {
      out->push_back(static_cast<int32_t>(piece.id));
      continue;
    }
    for (const char c : piece.text) {
      uint32_t byte = 0;
      const Status found = find_byte(static_cast<uint8_t>(c), &byte);
      if (!found.is_ok() && vocabulary.unknown() >= 0) {  // one for the whole character
        out->push_back(vocabulary.unknown());
        break;
      }
      SHARPI_TRY(found);
      out->push_back(static_cast<int32_t>(byte));
    }
  }
  return Status::ok();
}

Status Tokenizer::Impl::encode_lines(std::string_view text, Scratch* scratch,
                                     std::vector<int32_t>* out) const {
  for (size_t at = 0; at < text.size();) {
    const bool newlines = text[at] == '\n';
    const size_t found = newlines ? text.find_first_not_of('\n', at) : text.find('\n', at);
    const size_t end = std::min(found, text.size());
    const std::string_view line = text.substr(at, end - at);
    const uint32_t whole = newlines ? vocabulary.find(line) : Vocabulary::kNone;
    if (whole != Vocabulary::kNone) {
      out->push_back(static_cast<int32_t>(whole));
    } else {
      SHARPI_TRY(encode_line(line, scratch, out));
    }
    at = end;
  }
  return Status::ok();
}

Status Tokenizer::Impl::encode_line(std::string_view line, Scratch* scratch,
                                    std::vector<int32_t>* out) const {
  scratch->merger.clear();
  for (size_t at = 0; at < line.size();) {
    const uint32_t n = std::max(utf8_character(line, at), 1u);
    const std::string_view here = line.substr(at, n);
    const std::string_view character = here == " " ? kSpaceMarker : here;
    at += n;
    const uint32_t id = vocabulary.find(character);
    if (id != Vocabulary::kNone) {
      scratch->merger.push(id);
      continue;
    }
    for (const char c : character) SHARPI_TRY(push_byte(static_cast<uint8_t>(c), &scratch->merger));
  }
  scratch->merger.merge(vocabulary.merges(), out);
  return Status::ok();
}

void Tokenizer::Impl::decode_byte_level(std::string_view text, std::string* out) const {
  for (size_t at = 0; at < text.size();) {
    const uint32_t n = std::max(utf8_character(text, at), 1u);
    const uint32_t cp =
        n == 1 ? static_cast<unsigned char>(text[at]) : utf8_code_point(text, at, n);
    if (cp < kByteAlphabetEnd && kByteOfAlphabet[cp] >= 0) {
      out->push_back(static_cast<char>(kByteOfAlphabet[cp]));
    } else {
      out->append(text, at, n);  // outside the alphabet: no merge makes such a token
    }
    at += n;
  }
}

void Tokenizer::Impl::decode_marked(std::string_view text, std::string* out) const {
  for (size_t at = 0; at < text.size();) {
    const size_t marker = std::min(text.find(kSpaceMarker, at), text.size());
    out->append(text, at, marker - at);
    if (marker < text.size()) out->push_back(' ');
    at = marker + kSpaceMarker.size();
  }
}

Tokenizer::Tokenizer() : impl_(std::make_unique<Impl>()) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::create(std::shared_ptr<const GgufFile> file) {
  std::shared_ptr<Tokenizer> out(new Tokenizer());
  Impl& impl = *out->impl_;
  impl.file = std::move(file);
  SHARPI_TRY(impl.read_model());
  SHARPI_TRY(impl.index_special());
  SHARPI_TRY_ASSIGN(impl.chat_template, read_chat_template(*impl.file));
  return std::shared_ptr<const Tokenizer>(std::move(out));
}

int32_t Tokenizer::find_decoded(std::string_view text) const {
  const Vocabulary& vocabulary = impl_->vocabulary;
  std::string bytes, words;  // how the two kinds of vocabularies spell it
  for (const char c : text) {
    utf8_append(kByteAlphabet[static_cast<unsigned char>(c)], &bytes);
    if (c == ' ') {
      words += "\xE2\x96\x81";
    } else {
      words += c;
    }
  }
  const uint32_t single =
      text.size() == 1 ? vocabulary.byte_token(static_cast<uint8_t>(text[0])) : Vocabulary::kNone;
  for (const uint32_t id :
       {vocabulary.find(text), vocabulary.find(bytes), vocabulary.find(words), single}) {
    std::string back;
    const bool same = id != Vocabulary::kNone &&
                      decode(static_cast<int32_t>(id), true, &back).is_ok() && back == text;
    if (same) return static_cast<int32_t>(id);
  }
  return -1;
}

uint32_t Tokenizer::n_vocab() const {
  return impl_->vocabulary.size();
}

Status Tokenizer::encode(std::string_view text, bool add_special, bool parse_special,
                         std::vector<int32_t>* out) const {
  if (text.size() > kMaxTextBytes) {
    return Status::error(Code::kInvalidArgument, "the text has %zu bytes, which is more than %zu",
                         text.size(), kMaxTextBytes);
  }
  const Vocabulary& vocabulary = impl_->vocabulary;
  const SpecialTokens& special = parse_special ? impl_->all_special : impl_->user_defined;
  const size_t before = out->size();
  if (add_special && vocabulary.add_bos()) {
    const std::string_view begin = text.substr(0, SpecialTokens::kMaxBytes);
    const SpecialTokens::Match first = SpecialTokens::Search(special, begin).next(0);
    const bool has_bos = first.at == 0 && first.id == vocabulary.bos();
    if (!has_bos) out->push_back(vocabulary.bos());
  }
  Status status = impl_->encode(text, special, {}, out);
  if (!status.is_ok()) {
    out->resize(before);
    return status;
  }
  if (add_special && vocabulary.add_eos()) out->push_back(vocabulary.eos());
  return status;
}

Status Tokenizer::encode_marked(const jinja::MarkedText& text, std::vector<int32_t>* out) const {
  std::vector<SpecialTokens::Span> foreign;
  for (const jinja::ForeignSpan& span : text.foreign_spans()) {
    foreign.push_back({span.begin, span.end});
  }
  const size_t before = out->size();
  Status status = impl_->encode(text.bytes(), impl_->all_special, foreign, out);
  if (!status.is_ok()) out->resize(before);
  return status;
}

Status Tokenizer::decode(int32_t token, bool render_special, std::string* out) const {
  const Vocabulary& vocabulary = impl_->vocabulary;
  if (token < 0 || static_cast<uint32_t>(token) >= vocabulary.size()) {
    return Status::error(Code::kInvalidArgument, "token %d is not one of the %u of the vocabulary",
                         token, vocabulary.size());
  }
  const auto id = static_cast<uint32_t>(token);
  const std::string_view text = vocabulary.text(id);
  switch (vocabulary.kind(id)) {
    case TokenKind::kControl:
    case TokenKind::kUnknown:
    case TokenKind::kUnused:
      if (render_special) out->append(text);
      break;
    case TokenKind::kUserDefined:
      out->append(text);
      break;
    case TokenKind::kByte:
      if (const int byte = byte_of_hex_token(text); byte >= 0) {
        out->push_back(static_cast<char>(byte));
        break;
      }
      [[fallthrough]];
    case TokenKind::kNormal:
      if (impl_->byte_level())
        impl_->decode_byte_level(text, out);
      else
        impl_->decode_marked(text, out);
      break;
  }
  return Status::ok();
}

TokenKind Tokenizer::kind(int32_t token) const {
  assert(token >= 0 && static_cast<uint32_t>(token) < n_vocab());
  return impl_->vocabulary.kind(static_cast<uint32_t>(token));
}

std::string_view Tokenizer::raw_text(int32_t token) const {
  assert(token >= 0 && static_cast<uint32_t>(token) < n_vocab());
  return impl_->vocabulary.text(static_cast<uint32_t>(token));
}

int32_t Tokenizer::find(std::string_view text) const {
  const uint32_t id = impl_->vocabulary.find(text);
  return id == Vocabulary::kNone ? -1 : static_cast<int32_t>(id);
}

bool Tokenizer::add_bos() const {
  return impl_->vocabulary.add_bos();
}

int32_t Tokenizer::bos() const {
  return impl_->vocabulary.bos();
}
int32_t Tokenizer::eos() const {
  return impl_->vocabulary.eos();
}

bool Tokenizer::is_encoders() const {
  return impl_->encoder != nullptr;
}
bool Tokenizer::doubles_separators() const {
  return is_encoders() && find("<s>") == bos();
}

bool Tokenizer::is_end_of_generation(int32_t token) const {
  return impl_->vocabulary.ends_generation(token);
}

const std::vector<int32_t>& Tokenizer::never_sample() const {
  return impl_->vocabulary.never_sample();
}

std::string_view Tokenizer::chat_template() const {
  return impl_->chat_template;
}

}  // namespace sharpi
