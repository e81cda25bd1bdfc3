// SPDX-License-Identifier: MIT
#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>

namespace sharpi {
namespace {

// White_Space of Unicode, as class members. Spelled out because PCRE2's \s takes in U+180E, which
// the regex engine of the reference tokenizers does not.
#define SHARPI_SPACE                                                         \
  "\\t-\\r\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}" \
  "\\x{202F}\\x{205F}\\x{3000}"
#define SHARPI_RUN "[" SHARPI_SPACE "]+"
// A whitespace run leaves its last character to the word that follows it.
#define SHARPI_RUN_BEFORE_WORD SHARPI_RUN "(?![^" SHARPI_SPACE "])"
#define SHARPI_CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"

// Words whose capitals come first, as o200k and what follows it split them; `after`: what may
// follow.
#define SHARPI_CAPITALS "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define SHARPI_SMALL "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define SHARPI_WORDS_BY_CASE(after)                                       \
  "[^\\r\\n\\p{L}\\p{N}]?[" SHARPI_CAPITALS "]*[" SHARPI_SMALL "]+" after \
  "|[^\\r\\n\\p{L}\\p{N}]?[" SHARPI_CAPITALS "]+[" SHARPI_SMALL "]*" after
#define SHARPI_AFTER_NUMBERS                                         \
  "|\\x20?[^" SHARPI_SPACE "\\p{L}\\p{N}]+[\\r\\n/]*|[" SHARPI_SPACE \
  "]*[\\r\\n]+"                                                      \
  "|" SHARPI_RUN_BEFORE_WORD "|" SHARPI_RUN
// DeepSeek V3 takes numbers, then runs of these, out of the text first, and splits what they are
// and what lies between them for itself.
#define SHARPI_CJK "\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}"
#define SHARPI_IN_CJK "(?=[" SHARPI_CJK "])"
#define SHARPI_NO_CJK "(?![" SHARPI_CJK "])"

struct Family {
  std::string_view names;  // of tokenizer.ggml.pre, separated by spaces
  const char* pattern;
  bool nfc = false, whole_pieces = false, default_bos = false;
};

// Every pattern matches at every position of every text, so that pieces have no gaps.
constexpr Family kFamilies[] = {
    {.names = "qwen2 deepseek-r1-qwen megrez kormo f2llmv2",
     .pattern = "(?i:" SHARPI_CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                "|\\x20?[^" SHARPI_SPACE "\\p{L}\\p{N}]+[\\r\\n]*"
                "|[" SHARPI_SPACE "]*[\\r\\n]+|" SHARPI_RUN_BEFORE_WORD "|" SHARPI_RUN,
     .nfc = true},
    {.names = "qwen35",
     .pattern = "(?i:" SHARPI_CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                "|\\x20?[^" SHARPI_SPACE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
                "|[" SHARPI_SPACE "]*[\\r\\n]+|" SHARPI_RUN_BEFORE_WORD "|" SHARPI_RUN,
     .nfc = true},
    {.names = "olmo",
     .pattern =
         SHARPI_CONTRACTIONS "|\\x20?\\p{L}+|\\x20?\\p{N}+|\\x20?[^" SHARPI_SPACE "\\p{L}\\p{N}]+"
                             "|" SHARPI_RUN_BEFORE_WORD "|" SHARPI_RUN,
     .nfc = true},
    // Llama 3: up to three digits together.
    {.names = "llama-bpe llama3 llama-v3",
     .pattern = "(?i:" SHARPI_CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                "|\\x20?[^" SHARPI_SPACE "\\p{L}\\p{N}]+[\\r\\n]*"
                "|[" SHARPI_SPACE "]*[\\r\\n]+|" SHARPI_RUN_BEFORE_WORD "|" SHARPI_RUN,
     .whole_pieces = true,
     .default_bos = true},
    // Every digit alone, and the pattern of GPT-2 on what lies between them: for it, a digit is the
    // end of the text.
    {.names = "smollm",
     .pattern = "\\p{N}|" SHARPI_CONTRACTIONS "|\\x20?\\p{L}+|\\x20?[^" SHARPI_SPACE
                "\\p{L}\\p{N}]+|" SHARPI_RUN "(?![^" SHARPI_SPACE "\\p{N}])|" SHARPI_RUN},
    {.names = "gpt-2 phi-2 gigachat mellum",
     .pattern =
         SHARPI_CONTRACTIONS "|\\x20?\\p{L}+|\\x20?\\p{N}+|\\x20?[^" SHARPI_SPACE "\\p{L}\\p{N}]+"
                             "|" SHARPI_RUN_BEFORE_WORD "|" SHARPI_RUN},
    // Mistral.
    {.names = "tekken",
     .pattern = SHARPI_WORDS_BY_CASE("") "|\\p{N}" SHARPI_AFTER_NUMBERS,
     .whole_pieces = true,
     .default_bos = true},
    {.names = "gpt-4o llama4",
     .pattern =
         SHARPI_WORDS_BY_CASE("(?i:" SHARPI_CONTRACTIONS ")?") "|\\p{N}{1,3}" SHARPI_AFTER_NUMBERS},
    // The last two alternatives are what lies between matches of the published pattern.
    {.names = "deepseek-v3",
     .pattern = "\\p{N}{1,3}|(?:" SHARPI_IN_CJK "[^\\p{L}\\p{P}\\p{S}])?(?:" SHARPI_IN_CJK
                "[\\p{L}\\p{M}])+|(?:" SHARPI_IN_CJK "[\\p{P}\\p{S}])+|[!-/:-@\\[-`{-~][A-Za-z]+"
                "|(?:" SHARPI_NO_CJK "[^\\r\\n\\p{L}\\p{N}\\p{P}\\p{S}])?(?:" SHARPI_NO_CJK
                "[\\p{L}\\p{M}])+|\\x20?(?:" SHARPI_NO_CJK "[\\p{P}\\p{S}])+[\\r\\n]*"
                "|[" SHARPI_SPACE "]*[\\r\\n]+|" SHARPI_RUN "(?![^" SHARPI_SPACE "\\p{N}" SHARPI_CJK
                "])|" SHARPI_RUN "|(?:" SHARPI_IN_CJK "[^\\p{L}\\p{M}\\p{P}\\p{S}](?!" SHARPI_IN_CJK
                "[\\p{L}\\p{M}]))+|(?:" SHARPI_NO_CJK "[^" SHARPI_SPACE
                "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}](?!" SHARPI_NO_CJK "[\\p{L}\\p{M}]))+",
     .default_bos = true},
};

/// Whether `name` is one of the space-separated `names`.
bool is_among(std::string_view name, std::string_view names) {
  while (!names.empty()) {
    const size_t end = std::min(names.find(' '), names.size());
    if (names.substr(0, end) == name) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

std::string all_names() {
  std::string all;
  for (const Family& f : kFamilies) all.append(all.empty() ? "" : " ").append(f.names);
  return all;
}

#include "text/unicode_ranges.inc"

struct NewCharacters {
  std::string_view name;  // of a category, in a pattern
  const char* members;
};
constexpr NewCharacters kNew[] = {
    {"\\p{L}", kNewLetters}, {"\\p{N}", kNewNumbers},     {"\\p{M}", kNewMarks},
    {"\\p{Lu}", kNewUpper},  {"\\p{Ll}", kNewLower},      {"\\p{Lm}", kNewModifiers},
    {"\\p{Lo}", kNewOthers}, {"\\p{P}", kNewPunctuation}, {"\\p{S}", kNewSymbols},
};

/// The pattern with its categories as the reference tokenizers' version of Unicode has them, which
/// is newer than PCRE2's.
std::string with_new_characters(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t at = 0; at < pattern.size();) {
    const std::string_view rest = pattern.substr(at);
    const auto* more = std::find_if(std::begin(kNew), std::end(kNew), [&](const NewCharacters& n) {
      return rest.starts_with(n.name);
    });
    if (more != std::end(kNew)) {
      if (!in_class) out.push_back('[');
      out.append(more->name).append(more->members);
      if (!in_class) out.push_back(']');
      at += more->name.size();
      continue;
    }
    if (pattern[at] == '[') in_class = true;
    if (pattern[at] == ']') in_class = false;
    out.push_back(pattern[at++]);
  }
  return out;
}

std::string error_text(int code) {
  PCRE2_UCHAR buffer[160] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct PreTokenizer::Pattern {
  pcre2_code* code = nullptr;
  ~Pattern() { pcre2_code_free(code); }
};

PreTokenizer::PreTokenizer() : pattern_(std::make_unique<Pattern>()) {}
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

namespace {

/// The patterns are ours: whatever is not a want of memory is a bug.
Code code_of(int pcre2_error) {
  return pcre2_error == PCRE2_ERROR_NOMEMORY || pcre2_error == PCRE2_ERROR_HEAP_FAILED
             ? Code::kOutOfMemory
             : Code::kInternal;
}

}  // namespace

Result<PreTokenizer> PreTokenizer::create(std::string_view name) {
  const auto* family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                    [&](const Family& f) { return is_among(name, f.names); });
  if (family == std::end(kFamilies)) {
    return Status::error(Code::kUnsupported, "pre-tokenizer \"%.*s\" is not one of these: %s",
                         static_cast<int>(std::min<size_t>(name.size(), 64)), name.data(),
                         all_names().c_str());
  }
  PreTokenizer out;
  out.nfc_ = family->nfc;
  out.whole_pieces_ = family->whole_pieces;
  out.default_bos_ = family->default_bos;
  const std::string pattern = with_new_characters(family->pattern);
  int error = 0;
  PCRE2_SIZE error_at = 0;
  // Anchored at compile time: as an option of the match call it would switch the JIT off.
  out.pattern_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.c_str()), pattern.size(),
                                     PCRE2_UTF | PCRE2_ANCHORED, &error, &error_at, nullptr);
  if (out.pattern_->code == nullptr) {
    return Status::error(code_of(error),
                         "the pre-tokenizer's pattern cannot be compiled, at byte %zu: %s",
                         error_at, error_text(error).c_str());
  }
  // Without executable memory the interpreter runs the same pattern, only slower.
  (void)pcre2_jit_compile(out.pattern_->code, PCRE2_JIT_COMPLETE);
  return out;
}

struct PreTokenizer::Matcher::State {
  const pcre2_code* pattern = nullptr;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  std::string_view text;
  size_t at = 0;
  ~State() {
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

PreTokenizer::Matcher::Matcher() : state_(std::make_unique<State>()) {}
PreTokenizer::Matcher::~Matcher() = default;
PreTokenizer::Matcher::Matcher(Matcher&&) noexcept = default;
PreTokenizer::Matcher& PreTokenizer::Matcher::operator=(Matcher&&) noexcept = default;

Result<PreTokenizer::Matcher> PreTokenizer::Matcher::create(const PreTokenizer& owner) {
  Matcher out;
  out.state_->pattern = owner.pattern_->code;
  out.state_->data = pcre2_match_data_create(1, nullptr);
  out.state_->context = pcre2_match_context_create(nullptr);
  if (out.state_->data == nullptr || out.state_->context == nullptr) {
    return Status::error(Code::kOutOfMemory, "there is no memory for the state of a pre-tokenizer");
  }
  return out;
}

void PreTokenizer::Matcher::start(std::string_view text) {
  State& s = *state_;
  s.text = text;
  s.at = 0;
  // The patterns backtrack over one run of characters at most, so work proportional to the text
  // is always enough; the limit turns anything worse into an error.
  const uint64_t limit = 4096 + 16 * static_cast<uint64_t>(text.size());
  const uint64_t most = std::numeric_limits<uint32_t>::max();
  pcre2_set_match_limit(s.context, static_cast<uint32_t>(std::min(limit, most)));
}

Status PreTokenizer::Matcher::next(std::string_view* piece) {
  State& s = *state_;
  *piece = {};
  if (s.at >= s.text.size()) return Status::ok();
  // The text was validated once; checking it again per match would make the walk quadratic.
  const int rc = pcre2_match(s.pattern, reinterpret_cast<PCRE2_SPTR>(s.text.data()), s.text.size(),
                             s.at, PCRE2_NO_UTF_CHECK, s.data, s.context);
  if (rc < 0) {
    return Status::error(code_of(rc), "the pre-tokenizer failed at byte %zu of %zu: %s", s.at,
                         s.text.size(), error_text(rc).c_str());
  }
  const size_t end = pcre2_get_ovector_pointer(s.data)[1];
  if (end <= s.at || end > s.text.size()) {
    return Status::error(Code::kInternal, "the pre-tokenizer matched nothing at byte %zu of %zu",
                         s.at, s.text.size());
  }
  *piece = s.text.substr(s.at, end - s.at);
  s.at = end;
  return Status::ok();
}

}  // namespace sharpi
