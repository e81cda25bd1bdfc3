// SPDX-License-Identifier: MIT
#include "text/grammar/gbnf.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/utf8.h"
#include "text/grammar/code_points.h"

namespace sharpi::grammar {
namespace {

constexpr int kMaxParentheses = 48;
constexpr uint32_t kMaxRepetitions = 1u << 20;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class GbnfParser {
 public:
  GbnfParser(Expressions& e, std::string_view text) : e_(e), s_(text) {}

  Result<Expr> whole();

 private:
  bool more() const { return status_.is_ok() && at_ < s_.size(); }
  char now() const { return at_ < s_.size() ? s_[at_] : '\0'; }
  bool skip(std::string_view what) {
    if (!s_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  void fail(const std::string& why) {
    if (!status_.is_ok()) return;
    const auto line = std::count(
        s_.begin(), s_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, s_.size())), '\n');
    status_ = Status::error(Code::kInvalidArgument, "line %zu of the grammar %.200s",
                            static_cast<size_t>(line) + 1, why.c_str());
  }
  void blanks(bool lines);
  std::string name();
  Expr rule_of(const std::string& rule);
  void definition();
  Expr choice(int depth);
  Expr sequence(int depth);
  Expr item(int depth);
  Expr repeated(Expr what);
  Expr quoted();
  Expr bracketed();
  uint32_t character();
  uint32_t hex(size_t n);
  bool number(uint32_t* out);

  Expressions& e_;
  std::string_view s_;
  size_t at_ = 0;
  Status status_;
  std::map<std::string, Expr> rules_;
};

void GbnfParser::blanks(bool lines) {
  while (at_ < s_.size()) {
    const char c = s_[at_];
    if (c == '#') {
      while (at_ < s_.size() && s_[at_] != '\n') ++at_;
    } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
      ++at_;
    } else {
      return;
    }
  }
}

std::string GbnfParser::name() {
  const size_t begin = at_;
  while (at_ < s_.size() && is_name(s_[at_])) ++at_;
  return std::string(s_.substr(begin, at_ - begin));
}

Expr GbnfParser::rule_of(const std::string& rule) {
  const auto [found, is_new] = rules_.try_emplace(rule, Expressions::kNothing);
  if (is_new) found->second = e_.rule();
  return found->second;
}

void GbnfParser::definition() {
  const std::string defined = name();
  if (defined.empty()) return fail("does not begin with the name of a rule");
  blanks(false);
  if (!skip("::=")) return fail("has no ::= behind the name " + defined);
  blanks(true);
  const Expr rule = rule_of(defined);
  if (e_.is_defined(rule)) return fail("defines " + defined + " again");
  e_.define(rule, choice(0));
}

Expr GbnfParser::choice(int depth) {
  std::vector<Expr> choices{sequence(depth)};
  for (;;) {
    // A line that begins with | goes on with the rule.
    const size_t before = at_;
    blanks(true);
    if (!skip("|")) {
      if (depth == 0) at_ = before;
      break;
    }
    blanks(true);
    choices.push_back(sequence(depth));
  }
  return e_.either(std::move(choices));
}

Expr GbnfParser::sequence(int depth) {
  std::vector<Expr> parts;
  for (;;) {
    blanks(depth > 0);
    const char c = now();
    const bool begins = c == '"' || c == '[' || c == '(' || c == '.' || is_name(c);
    if (!more() || !begins) break;
    parts.push_back(repeated(item(depth)));
  }
  return e_.sequence(parts);
}

Expr GbnfParser::item(int depth) {
  if (skip("\"")) return quoted();
  if (skip("[")) return bracketed();
  if (skip(".")) return characters(e_, CodePoints::all(), Spelling::kPlain);
  if (!skip("(")) return rule_of(name());
  if (depth >= kMaxParentheses) {
    fail("has parentheses within parentheses, more than 48");
    return Expressions::kNothing;
  }
  const Expr inside = choice(depth + 1);
  blanks(true);
  if (!skip(")")) fail("has a ( without a )");
  return inside;
}

bool GbnfParser::number(uint32_t* out) {
  const size_t begin = at_;
  uint64_t value = 0;
  while (now() >= '0' && now() <= '9') {
    value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(s_[at_++] - '0'), UINT32_MAX - 1);
  }
  *out = static_cast<uint32_t>(value);
  return at_ > begin;
}

Expr GbnfParser::repeated(Expr what) {
  while (more()) {
    if (skip("*")) {
      what = e_.any_number(what);
    } else if (skip("+")) {
      what = e_.repeat(what, 1, Expressions::kAnyNumber);
    } else if (skip("?")) {
      what = e_.optional(what);
    } else if (skip("{")) {
      uint32_t low = 0, high = 0;
      blanks(false);
      const bool has_low = number(&low);
      high = low;
      blanks(false);
      if (skip(",")) {
        blanks(false);
        if (!number(&high)) high = Expressions::kAnyNumber;
      } else if (!has_low) {
        fail("has braces without a count");
      }
      blanks(false);
      if (!skip("}")) fail("has a { without a }");
      const bool large =
          low > kMaxRepetitions || (high > kMaxRepetitions && high != Expressions::kAnyNumber);
      if (large || low > high) fail("has a count that cannot be");
      what = e_.repeat(what, low, high);
    } else {
      break;
    }
  }
  return what;
}

uint32_t GbnfParser::hex(size_t n) {
  uint32_t value = 0;
  for (size_t i = 0; i < n; ++i) {
    const char c = now();
    const bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!letter && (c < '0' || c > '9')) return fail("has too few hexadecimal digits"), 0;
    value = value * 16 + static_cast<uint32_t>(letter ? (c | 0x20) - 'a' + 10 : c - '0');
    ++at_;
  }
  return value;
}

uint32_t GbnfParser::character() {
  if (skip("\\")) {
    const char c = now();
    if (c == '\0') return fail("ends with a backslash"), 0;
    ++at_;
    if (c == 'n') return '\n';
    if (c == 'r') return '\r';
    if (c == 't') return '\t';
    if (c == 'x') return hex(2);
    if (c == 'u') return hex(4);
    if (c == 'U') return hex(8);
    return static_cast<unsigned char>(c);
  }
  const uint32_t n = at_ < s_.size() ? utf8_character(s_, at_) : 0;
  if (n == 0) return fail("is not UTF-8, or ends too early"), 0;
  const uint32_t c = utf8_code_point(s_, at_, n);
  at_ += n;
  return c;
}

Expr GbnfParser::quoted() {
  std::string text;
  while (more() && s_[at_] != '"' && s_[at_] != '\n') {
    const uint32_t c = character();
    if (c > CodePoints::kLast) fail("has an escape that is no character");
    if (status_.is_ok()) utf8_append(c, &text);
  }
  if (!skip("\"")) fail("has a text without an end");
  return e_.bytes(text);
}

Expr GbnfParser::bracketed() {
  const bool inverted = skip("^");
  CodePoints set;
  while (more() && s_[at_] != ']') {
    const uint32_t first = character();
    uint32_t last = first;
    if (now() == '-' && at_ + 1 < s_.size() && s_[at_ + 1] != ']') {
      ++at_;
      last = character();
    }
    if (last < first) fail("has a range whose end is before its beginning");
    set.add(first, std::min(last, CodePoints::kLast));
  }
  if (!skip("]")) fail("has a [ without a ]");
  const Expr out = characters(e_, inverted ? set.inverted() : set, Spelling::kPlain);
  if (out != Expressions::kNothing) e_.mark_unit(out);
  return out;
}

Result<Expr> GbnfParser::whole() {
  for (blanks(true); more(); blanks(true)) {
    definition();
    blanks(false);
    if (more() && s_[at_] != '\n' && s_[at_] != '\r') fail("goes on with something unexpected");
  }
  if (!status_.is_ok()) return status_;
  for (const auto& [rule, expr] : rules_) {
    if (e_.is_defined(expr)) continue;
    return Status::error(Code::kInvalidArgument, "the grammar does not define the rule %.100s",
                         rule.c_str());
  }
  const auto root = rules_.find("root");
  if (root == rules_.end()) {
    return Status::error(Code::kInvalidArgument, "the grammar has no rule named root");
  }
  Expr culprit = 0;
  if (e_.settle(&culprit)) return root->second;
  for (const auto& [rule, expr] : rules_) {
    if (expr != culprit) continue;
    return Status::error(Code::kInvalidArgument,
                         "the rule %.100s of the grammar begins with itself, or through too many "
                         "others",
                         rule.c_str());
  }
  return Status::error(Code::kInvalidArgument, "a rule of the grammar begins with itself");
}

}  // namespace

Result<Expr> compile_gbnf(Expressions& e, std::string_view text) {
  return GbnfParser(e, text).whole();
}

}  // namespace sharpi::grammar
