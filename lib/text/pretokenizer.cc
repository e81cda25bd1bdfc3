// SPDX-License-Identifier: MIT
#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>

#include "text/pretokenizer_families.h"

namespace sharpi {
namespace {

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
  for (const PreTokenizerFamily& f : kPreTokenizerFamilies)
    all.append(all.empty() ? "" : " ").append(f.names);
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

struct PreTokenizer::Patterns {
  std::array<pcre2_code*, PreTokenizerFamily::kMostPatterns> codes = {};
  size_t n = 0;
  ~Patterns() {
    for (size_t i = 0; i < n; ++i) pcre2_code_free(codes[i]);
  }
};

PreTokenizer::PreTokenizer() : patterns_(std::make_unique<Patterns>()) {}
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
  const auto* family =
      std::find_if(std::begin(kPreTokenizerFamilies), std::end(kPreTokenizerFamilies),
                   [&](const PreTokenizerFamily& f) { return is_among(name, f.names); });
  if (family == std::end(kPreTokenizerFamilies)) {
    return Status::error(Code::kUnsupported, "pre-tokenizer \"%.*s\" is not one of these: %s",
                         static_cast<int>(std::min<size_t>(name.size(), 64)), name.data(),
                         all_names().c_str());
  }
  PreTokenizer out;
  out.nfc_ = family->nfc;
  out.whole_pieces_ = family->whole_pieces;
  out.default_bos_ = family->default_bos;
  // Anchored at compile time: as an option of the match call it would switch the JIT off.
  const uint32_t covers = family->patterns[1] == nullptr ? PCRE2_ANCHORED : 0;
  for (const char* published : family->patterns) {
    if (published == nullptr) break;
    const std::string pattern = with_new_characters(published);
    int error = 0;
    PCRE2_SIZE error_at = 0;
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.c_str()), pattern.size(),
                      PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | covers, &error, &error_at, nullptr);
    if (code == nullptr) {
      return Status::error(code_of(error),
                           "the pre-tokenizer's pattern cannot be compiled, at byte %zu: %s",
                           error_at, error_text(error).c_str());
    }
    out.patterns_->codes[out.patterns_->n++] = code;
    // Without executable memory the interpreter runs the same pattern, only slower.
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  return out;
}

/// How far one pattern has cut the part of the text that it was given.
struct Cut {
  std::string_view part;
  size_t at = 0;                          // what is in front was given on
  size_t match_begin = 0, match_end = 0;  // the next match, behind `at`; equal: not looked for yet
};

struct PreTokenizer::Matcher::State {
  const PreTokenizer::Patterns* patterns = nullptr;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  std::string_view text;
  std::array<Cut, PreTokenizerFamily::kMostPatterns> cuts = {};
  ~State() {
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  Status find(size_t level);
  Status piece_of(size_t level, std::string_view* piece);
};

/// Sets the next match of a pattern in its part; behind the part's end if there is none.
Status PreTokenizer::Matcher::State::find(size_t level) {
  Cut& cut = cuts[level];
  // The text was validated once; checking it again per match would make the walk quadratic.
  const int rc = pcre2_match(patterns->codes[level], reinterpret_cast<PCRE2_SPTR>(cut.part.data()),
                             cut.part.size(), cut.at, PCRE2_NO_UTF_CHECK, data, context);
  if (rc == PCRE2_ERROR_NOMATCH && patterns->n > 1) {
    cut.match_begin = cut.part.size();
    cut.match_end = cut.match_begin + 1;
    return Status::ok();
  }
  const size_t at = static_cast<size_t>(cut.part.data() - text.data()) + cut.at;
  if (rc < 0) {
    return Status::error(code_of(rc), "the pre-tokenizer failed at byte %zu of %zu: %s", at,
                         text.size(), error_text(rc).c_str());
  }
  cut.match_begin = pcre2_get_ovector_pointer(data)[0];
  cut.match_end = pcre2_get_ovector_pointer(data)[1];
  if (cut.match_begin < cut.at || cut.match_end <= cut.match_begin ||
      cut.match_end > cut.part.size()) {
    return Status::error(Code::kInternal, "the pre-tokenizer matched nothing at byte %zu of %zu",
                         at, text.size());
  }
  return Status::ok();
}

/// Sets *piece to what a pattern cuts off next: a match, or what lies in front of it.
Status PreTokenizer::Matcher::State::piece_of(size_t level, std::string_view* piece) {
  Cut& cut = cuts[level];
  *piece = {};
  if (cut.at >= cut.part.size()) {
    if (level == 0) return Status::ok();
    cut = {};
    SHARPI_TRY(piece_of(level - 1, &cut.part));
    if (cut.part.empty()) return Status::ok();
  }
  if (cut.match_end <= cut.at) SHARPI_TRY(find(level));
  const size_t end = cut.at < cut.match_begin ? cut.match_begin : cut.match_end;
  *piece = cut.part.substr(cut.at, end - cut.at);
  cut.at = end;
  return Status::ok();
}

PreTokenizer::Matcher::Matcher() : state_(std::make_unique<State>()) {}
PreTokenizer::Matcher::~Matcher() = default;
PreTokenizer::Matcher::Matcher(Matcher&&) noexcept = default;
PreTokenizer::Matcher& PreTokenizer::Matcher::operator=(Matcher&&) noexcept = default;

Result<PreTokenizer::Matcher> PreTokenizer::Matcher::create(const PreTokenizer& owner) {
  Matcher out;
  out.state_->patterns = owner.patterns_.get();
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
  s.cuts = {};
  s.cuts[0].part = text;
  // The patterns backtrack over one run of characters at most, so work proportional to the text
  // is always enough; the limit turns anything worse into an error.
  const uint64_t limit = 4096 + 16 * static_cast<uint64_t>(text.size());
  const uint64_t most = std::numeric_limits<uint32_t>::max();
  pcre2_set_match_limit(s.context, static_cast<uint32_t>(std::min(limit, most)));
}

Status PreTokenizer::Matcher::next(std::string_view* piece) {
  return state_->piece_of(state_->patterns->n - 1, piece);
}

}  // namespace sharpi
