// SPDX-License-Identifier: MIT
#include "text/jinja/lexer.h"

#include <algorithm>
#include <cstdlib>

#include "base/utf8.h"
#include "text/jinja/characters.h"
#include "text/jinja/value.h"

namespace sharpi::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_byte(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

/// End of the blanks (Python's) that begin at `at`.
size_t skip_blanks(std::string_view s, size_t at) {
  while (at < s.size()) {
    const uint32_t n = utf8_character(s, at);
    if (n == 0 || !is_blank(utf8_code_point(s, at, n))) break;
    at += n;
  }
  return at;
}

/// Length of `s` without the blanks at its end.
size_t without_blanks(std::string_view s) {
  size_t end = 0;
  for (size_t at = 0; at < s.size();) {
    const uint32_t n = utf8_character(s, at);
    const bool blank = n != 0 && is_blank(utf8_code_point(s, at, n));
    at += std::max(n, 1u);
    if (!blank) end = at;
  }
  return end;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : s_(source) {}
  Status run();
  std::vector<Token> take() { return std::move(tokens_); }

 private:
  Status fail(size_t at, const char* what) const {
    return Status::error(Code::kFormat, "chat template, %s: %s", position_text(s_, at).c_str(),
                         what);
  }
  void push(TokenType type, size_t at, std::string_view text = {}) {
    tokens_.push_back({type, static_cast<uint32_t>(at), std::string(text)});
  }
  void push_data(size_t from, size_t to, char sign, bool strips_line);
  Status comment(size_t begin);
  Status tag(size_t begin, bool variable);
  bool raw_tag(size_t begin, const char* name, size_t* end, bool trims) const;
  Status raw(size_t begin, size_t content);
  bool ends_tag(bool variable);
  Status token();
  Status string_literal();
  void number();
  Status escape(std::string* out);

  std::string_view s_;
  size_t at_ = 0;
  std::string open_;  // brackets that wait for their end
  std::vector<Token> tokens_;
};

void Lexer::push_data(size_t from, size_t to, char sign, bool strips_line) {
  std::string_view text = s_.substr(from, to - from);
  if (sign == '-') {
    text = text.substr(0, without_blanks(text));
  } else if (sign != '+' && strips_line) {
    const size_t newline = text.rfind('\n');
    const size_t line = newline == text.npos ? 0 : newline + 1;
    const bool at_line_start = line > 0 || from == 0 || s_[from - 1] == '\n';
    if (at_line_start && skip_blanks(text, line) == text.size()) text = text.substr(0, line);
  }
  if (!text.empty()) push(TokenType::kData, from, text);
}

Status Lexer::run() {
  while (at_ < s_.size()) {
    size_t begin = at_;
    for (;; ++begin) {
      begin = s_.find('{', begin);
      if (begin == s_.npos || begin + 1 >= s_.size()) {
        push_data(at_, s_.size(), '+', false);
        at_ = s_.size();
        return Status::ok();
      }
      const char kind = s_[begin + 1];
      if (kind == '%' || kind == '{' || kind == '#') break;
    }
    const char kind = s_[begin + 1];
    const char sign = begin + 2 < s_.size() ? s_[begin + 2] : '\0';
    push_data(at_, begin, sign, kind != '{');
    size_t content = 0;
    if (kind == '#') {
      SHARPI_TRY(comment(begin));
    } else if (kind == '%' && raw_tag(begin, "raw", &content, false)) {
      SHARPI_TRY(raw(begin, content));
    } else {
      SHARPI_TRY(tag(begin, kind == '{'));
    }
  }
  return Status::ok();
}

Status Lexer::comment(size_t begin) {
  size_t from = begin + 2;
  if (from < s_.size() && (s_[from] == '-' || s_[from] == '+')) ++from;
  const size_t end = s_.find("#}", from);
  if (end == s_.npos) return fail(begin, "a comment has no end");
  const char sign = end > from ? s_[end - 1] : '\0';
  at_ = end + 2;
  if (sign == '-') {
    at_ = skip_blanks(s_, at_);
  } else if (sign != '+' && at_ < s_.size() && s_[at_] == '\n') {
    ++at_;
  }
  return Status::ok();
}

/// Whether the tag at `begin` is {% name %}; *end is where what follows it begins.
bool Lexer::raw_tag(size_t begin, const char* name, size_t* end, bool trims) const {
  size_t at = begin + 2;
  if (at < s_.size() && (s_[at] == '-' || s_[at] == '+')) ++at;
  at = skip_blanks(s_, at);
  const std::string_view word(name);
  if (s_.substr(std::min(at, s_.size()), word.size()) != word) return false;
  at = skip_blanks(s_, at + word.size());
  const char sign = at < s_.size() ? s_[at] : '\0';
  if (sign == '-' || (trims && sign == '+')) ++at;
  if (s_.substr(std::min(at, s_.size()), 2) != "%}") return false;
  at += 2;
  if (sign == '-') {
    at = skip_blanks(s_, at);
  } else if (trims && sign != '+' && at < s_.size() && s_[at] == '\n') {
    ++at;
  }
  *end = at;
  return true;
}

Status Lexer::raw(size_t begin, size_t content) {
  for (size_t end = content;; ++end) {
    end = s_.find("{%", end);
    if (end == s_.npos) return fail(begin, "a raw block has no endraw");
    size_t after = 0;
    if (!raw_tag(end, "endraw", &after, true)) continue;
    push_data(content, end, end + 2 < s_.size() ? s_[end + 2] : '\0', true);
    at_ = after;
    return Status::ok();
  }
}

/// Takes the end of a tag if it stands here.
bool Lexer::ends_tag(bool variable) {
  if (!open_.empty()) return false;
  const std::string_view rest = s_.substr(at_);
  const std::string_view mark = variable ? "}}" : "%}";
  const char sign = rest.empty() ? '\0' : rest[0];
  const bool signed_end = (sign == '-' || (sign == '+' && !variable)) && rest.substr(1, 2) == mark;
  if (!signed_end && rest.substr(0, 2) != mark) return false;
  push(variable ? TokenType::kVariableEnd : TokenType::kBlockEnd, at_);
  at_ += signed_end ? 3 : 2;
  if (signed_end && sign == '-') {
    at_ = skip_blanks(s_, at_);
  } else if (!variable && !signed_end && at_ < s_.size() && s_[at_] == '\n') {
    ++at_;
  }
  return true;
}

Status Lexer::tag(size_t begin, bool variable) {
  push(variable ? TokenType::kVariableBegin : TokenType::kBlockBegin, begin);
  at_ = begin + 2;
  if (at_ < s_.size() && (s_[at_] == '-' || s_[at_] == '+')) {
    // A sign that belongs to the end, as in {{-}}, does not belong to the beginning as well.
    ++at_;
  }
  open_.clear();
  for (;;) {
    at_ = skip_blanks(s_, at_);
    if (at_ >= s_.size()) return fail(begin, "a tag has no end");
    if (ends_tag(variable)) return Status::ok();
    SHARPI_TRY(token());
  }
}

Status Lexer::token() {
  const char c = s_[at_];
  if (c == '\'' || c == '"') return string_literal();
  if (is_digit(c)) {
    number();
    return Status::ok();
  }
  if (is_name_byte(c)) {
    const size_t begin = at_;
    while (at_ < s_.size() && is_name_byte(s_[at_])) ++at_;
    push(TokenType::kName, begin, s_.substr(begin, at_ - begin));
    return Status::ok();
  }
  static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
  const std::string_view pair = s_.substr(at_, 2);
  size_t n = std::find(std::begin(kTwo), std::end(kTwo), pair) != std::end(kTwo) ? 2 : 1;
  if (n == 1 && std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
    return fail(at_, "this character has no meaning in a template");
  }
  if (c == '(' || c == '[' || c == '{') {
    open_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
  } else if (c == ')' || c == ']' || c == '}') {
    if (open_.empty() || open_.back() != c) return fail(at_, "a bracket closes that none opened");
    open_.pop_back();
  }
  push(TokenType::kOperator, at_, s_.substr(at_, n));
  at_ += n;
  return Status::ok();
}

void Lexer::number() {
  const size_t begin = at_;
  const auto digits = [&] {
    while (at_ < s_.size() && (is_digit(s_[at_]) ||
                               (s_[at_] == '_' && at_ + 1 < s_.size() && is_digit(s_[at_ + 1])))) {
      ++at_;
    }
  };
  const auto digit_at = [&](size_t i) { return i < s_.size() && is_digit(s_[i]); };
  const auto mark_at = [&](size_t i, char lower) {
    return i < s_.size() && (s_[i] | 0x20) == lower;
  };
  bool real = false;
  const bool prefixed =
      s_[at_] == '0' && (mark_at(at_ + 1, 'x') || mark_at(at_ + 1, 'o') || mark_at(at_ + 1, 'b'));
  if (prefixed) {
    at_ += 2;
    while (at_ < s_.size() && is_name_byte(s_[at_])) ++at_;
  } else {
    digits();
    const bool after_dot = begin > 0 && s_[begin - 1] == '.';
    if (!after_dot && at_ < s_.size() && s_[at_] == '.' && digit_at(at_ + 1)) {
      real = true;
      ++at_;
      digits();
    }
    if (!after_dot && mark_at(at_, 'e')) {
      const size_t sign = at_ + 1 < s_.size() && (s_[at_ + 1] == '+' || s_[at_ + 1] == '-') ? 1 : 0;
      if (digit_at(at_ + 1 + sign)) {
        real = true;
        at_ += 1 + sign;
        digits();
      }
    }
  }
  std::string text(s_.substr(begin, at_ - begin));
  text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
  push(real ? TokenType::kFloat : TokenType::kInteger, begin, text);
}

Status Lexer::string_literal() {
  const size_t begin = at_;
  const char quote = s_[at_++];
  std::string value;
  while (at_ < s_.size() && s_[at_] != quote) {
    if (s_[at_] == '\\' && at_ + 1 < s_.size()) {
      SHARPI_TRY(escape(&value));
    } else {
      value.push_back(s_[at_++]);
    }
  }
  if (at_ >= s_.size()) return fail(begin, "a string has no end");
  ++at_;
  push(TokenType::kString, begin, value);
  return Status::ok();
}

/// One escape of a Python string literal.
Status Lexer::escape(std::string* out) {
  const size_t begin = at_;
  const char c = s_[at_ + 1];
  at_ += 2;
  static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
  if (const size_t i = kFrom.find(c); i != kFrom.npos) {
    out->push_back(kTo[i]);
    return Status::ok();
  }
  if (c == '\n') return Status::ok();  // the line goes on
  if (c >= '0' && c <= '7') {
    uint32_t cp = static_cast<uint32_t>(c - '0');
    for (int i = 0; i < 2 && at_ < s_.size() && s_[at_] >= '0' && s_[at_] <= '7'; ++i) {
      cp = cp * 8 + static_cast<uint32_t>(s_[at_++] - '0');
    }
    utf8_append(cp, out);
    return Status::ok();
  }
  const size_t n = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (c == 'N') return fail(begin, "names of characters (\\N) are not supported");
  if (n == 0) {
    out->append(s_.substr(begin, 2));  // an unknown escape stays as it is
    return Status::ok();
  }
  const std::string digits(s_.substr(at_, n));
  char* end = nullptr;
  const uint64_t cp = std::strtoull(digits.c_str(), &end, 16);
  const bool hex = digits.size() == n && end == digits.c_str() + n &&
                   digits.find_first_not_of("0123456789abcdefABCDEF") == digits.npos;
  if (!hex || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) {
    return fail(begin, "this escape stands for no character");
  }
  at_ += n;
  utf8_append(static_cast<uint32_t>(cp), out);
  return Status::ok();
}

}  // namespace

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
    } else {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

std::string position_text(std::string_view normalized, size_t at) {
  const std::string_view before = normalized.substr(0, std::min(at, normalized.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const std::string_view in_line = newline == before.npos ? before : before.substr(newline + 1);
  return "line " + std::to_string(line) + ", column " +
         std::to_string(count_characters(in_line) + 1);
}

Result<std::vector<Token>> tokenize_template(std::string_view normalized) {
  Lexer lexer(normalized);
  SHARPI_TRY(lexer.run());
  return lexer.take();
}

}  // namespace sharpi::jinja
