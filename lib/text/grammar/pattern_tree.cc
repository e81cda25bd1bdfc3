// SPDX-License-Identifier: MIT
#include "text/grammar/pattern_tree.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"

namespace sharpi::grammar {
namespace {

using PatternKind = PatternNode::Kind;

constexpr int kMaxGroups = 48;  // within each other
constexpr uint32_t kMaxCount = 1u << 24;
constexpr uint32_t kNoCharacter = UINT32_MAX;

CodePoints digits() {
  CodePoints out;
  out.add('0', '9');
  return out;
}

CodePoints word_characters() {
  CodePoints out = digits();
  out.add('a', 'z');
  out.add('A', 'Z');
  out.add('_', '_');
  return out;
}

CodePoints blanks() {
  CodePoints out;
  out.add('\t', '\r');
  for (const uint32_t c :
       {0x20u, 0xA0u, 0x1680u, 0x2028u, 0x2029u, 0x202Fu, 0x205Fu, 0x3000u, 0xFEFFu}) {
    out.add(c, c);
  }
  out.add(0x2000, 0x200A);
  return out;
}

CodePoints line_ends() {
  CodePoints out = CodePoints::one('\n');
  out.add('\r', '\r');
  out.add(0x2028, 0x2029);
  return out;
}

// General categories by the letters of their names: "L" is every kind of letter.
bool category_set(std::string_view name, CodePoints* out) {
  if (name.empty() || name.size() > 2) return false;
  static constexpr std::string_view kAll =
      "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCo";
  bool known = false;
  for (size_t i = 0; i < kAll.size(); i += 2) known |= kAll.substr(i, name.size()) == name;
  if (!known) return false;
  uint32_t first = kNoCharacter;
  for (uint32_t c = 0; c <= CodePoints::kLast + 1; ++c) {
    const bool inside = c <= CodePoints::kLast &&
                        std::string_view(utf8proc_category_string(static_cast<utf8proc_int32_t>(c)))
                            .starts_with(name);
    if (inside && first == kNoCharacter) first = c;
    if (!inside && first != kNoCharacter) {
      out->add(first, c - 1);
      first = kNoCharacter;
    }
  }
  return true;
}

class PatternParser {
 public:
  explicit PatternParser(std::string_view text) : s_(text) {}

  Result<PatternNode> whole() {
    PatternNode out = choice(0);
    if (status_.is_ok() && at_ < s_.size()) fail("has a ) without a (");
    if (!status_.is_ok()) return status_;
    return out;
  }

 private:
  bool more() const { return status_.is_ok() && at_ < s_.size(); }
  bool skip(std::string_view what) {
    if (!s_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  void fail(const char* why, Code code = Code::kInvalidArgument) {
    if (status_.is_ok()) status_ = Status::error(code, "%s at byte %zu", why, at_);
  }
  PatternNode choice(int depth);
  PatternNode atom(int depth);
  PatternNode group(int depth);
  PatternNode quantified(PatternNode what);
  bool counts(uint32_t* low, uint32_t* high);
  bool number(uint32_t* out);
  uint32_t character();
  uint32_t hex(size_t n);
  bool class_escape(CodePoints* out);
  bool property(bool inverted, CodePoints* out);
  uint32_t escaped_character(bool in_class);
  CodePoints bracketed();

  std::string_view s_;
  size_t at_ = 0;
  Status status_;
};

PatternNode PatternParser::choice(int depth) {
  PatternNode choices;
  choices.kind = PatternKind::kChoice;
  for (;;) {
    PatternNode sequence;
    while (more() && s_[at_] != '|' && s_[at_] != ')') {
      sequence.parts.push_back(quantified(atom(depth)));
    }
    choices.parts.push_back(std::move(sequence));
    if (!more() || !skip("|")) break;
  }
  if (choices.parts.size() > 1) return choices;
  PatternNode only = std::move(choices.parts[0]);
  return only;
}

PatternNode PatternParser::group(int depth) {
  PatternNode out;
  if (depth >= kMaxGroups) {
    fail("has groups within groups, more than 48");
    return out;
  }
  bool looks = false;
  if (skip("?")) {
    if (skip("=") || skip("!")) {
      looks = true;
      out.kind = s_[at_ - 1] == '=' ? PatternKind::kAhead : PatternKind::kNotAhead;
    } else if (skip("<=") || skip("<!")) {
      fail("looks back, which is not supported,", Code::kUnsupported);
    } else if (skip("<") || skip("P<")) {
      while (more() && s_[at_] != '>') ++at_;
      if (!skip(">")) fail("has a name of a group without an end");
    } else if (!skip(":")) {
      fail("has a group of a kind that is not supported,", Code::kUnsupported);
    }
  }
  PatternNode inside = choice(depth + 1);
  if (status_.is_ok() && !skip(")")) fail("has a ( without a )");
  if (!looks) return inside;
  out.parts.push_back(std::move(inside));
  return out;
}

PatternNode PatternParser::atom(int depth) {
  PatternNode out;
  out.kind = PatternKind::kClass;
  if (skip("(")) return group(depth);
  if (skip("^") || skip("$")) {
    out.kind = s_[at_ - 1] == '^' ? PatternKind::kBegin : PatternKind::kEnd;
  } else if (skip(".")) {
    out.which = line_ends().inverted();
  } else if (skip("[")) {
    out.which = bracketed();
  } else if (s_[at_] == '*' || s_[at_] == '+' || s_[at_] == '?') {
    fail("has nothing to repeat");
  } else if (skip("\\")) {
    if (!class_escape(&out.which)) {
      const uint32_t c = escaped_character(false);
      if (c != kNoCharacter) out.which.add(c, c);
    }
  } else {
    const uint32_t c = character();
    if (c != kNoCharacter) out.which.add(c, c);
  }
  return out;
}

uint32_t PatternParser::character() {
  const uint32_t n = utf8_character(s_, at_);
  if (n == 0) {
    fail("is not UTF-8");
    return kNoCharacter;
  }
  const uint32_t c = utf8_code_point(s_, at_, n);
  at_ += n;
  return c;
}

bool PatternParser::number(uint32_t* out) {
  const size_t begin = at_;
  uint64_t value = 0;
  while (at_ < s_.size() && s_[at_] >= '0' && s_[at_] <= '9') {
    value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(s_[at_++] - '0'), kMaxCount + 1);
  }
  *out = static_cast<uint32_t>(value);
  return at_ > begin;
}

// {n}, {n,} or {n,m}; anything else in braces stands for itself.
bool PatternParser::counts(uint32_t* low, uint32_t* high) {
  const size_t begin = at_;
  if (skip("{") && number(low)) {
    *high = *low;
    if (skip(",") && !number(high)) *high = Expressions::kAnyNumber;
    if (skip("}")) return true;
  }
  at_ = begin;
  return false;
}

PatternNode PatternParser::quantified(PatternNode what) {
  while (more()) {
    uint32_t low = 0, high = Expressions::kAnyNumber;
    if (skip("+")) {
      low = 1;
    } else if (skip("?")) {
      high = 1;
    } else if (!skip("*") && !counts(&low, &high)) {
      break;
    }
    skip("?");  // as few as possible: the same texts
    if (low > high) fail("has a count whose end is before its beginning");
    if (low > kMaxCount || (high > kMaxCount && high != Expressions::kAnyNumber)) {
      fail("has a count over 16777216", Code::kUnsupported);
    }
    const bool counts_nothing = what.kind == PatternKind::kBegin || what.kind == PatternKind::kEnd;
    if (counts_nothing) fail("repeats an anchor");
    PatternNode repeat;
    repeat.kind = PatternKind::kRepeat;
    repeat.low = low;
    repeat.high = high;
    repeat.parts.push_back(std::move(what));
    what = std::move(repeat);
    if (low == 0 || high != 1) {
      const bool again = more() && (s_[at_] == '*' || s_[at_] == '+' || s_[at_] == '?');
      if (again) fail("repeats a repetition");
    }
  }
  return what;
}

uint32_t PatternParser::hex(size_t n) {
  uint32_t value = 0;
  for (size_t i = 0; i < n; ++i, ++at_) {
    const char c = at_ < s_.size() ? s_[at_] : ' ';
    const bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!letter && (c < '0' || c > '9')) {
      fail("has an escape with too few hexadecimal digits");
      return kNoCharacter;
    }
    value = value * 16 + static_cast<uint32_t>(letter ? (c | 0x20) - 'a' + 10 : c - '0');
  }
  return value;
}

// Behind a backslash.
bool PatternParser::class_escape(CodePoints* out) {
  if (at_ >= s_.size()) return false;
  const char c = s_[at_];
  const char kind = static_cast<char>(c | 0x20);
  if (kind == 'p') {
    ++at_;
    return property(c == 'P', out);
  }
  if (kind != 'd' && kind != 'w' && kind != 's') return false;
  ++at_;
  const CodePoints set = kind == 'd' ? digits() : kind == 'w' ? word_characters() : blanks();
  out->add(c == kind ? set : set.inverted());
  return true;
}

bool PatternParser::property(bool inverted, CodePoints* out) {
  const size_t end = s_.find('}', at_);
  CodePoints set;
  if (!skip("{") || end == s_.npos || !category_set(s_.substr(at_, end - at_), &set)) {
    fail("asks for a property that is not supported (only general categories, \\p{L}, are)",
         Code::kUnsupported);
    return true;
  }
  at_ = end + 1;
  out->add(inverted ? set.inverted() : set);
  return true;
}

uint32_t PatternParser::escaped_character(bool in_class) {
  static constexpr std::string_view kLetters = "fnrtv", kMeant = "\f\n\r\t\v";
  if (at_ >= s_.size()) {
    fail("ends with a backslash");
    return kNoCharacter;
  }
  const char c = s_[at_];
  if (const size_t i = kLetters.find(c); i != kLetters.npos)
    return ++at_, static_cast<unsigned char>(kMeant[i]);
  if (c == 'b' && in_class) return ++at_, '\b';
  if (c == 'b' || c == 'B' || c == 'k' || (c >= '1' && c <= '9')) {
    fail(c == 'b' || c == 'B' ? "has a word boundary, which is not supported,"
                              : "refers back to a group, which is not supported,",
         Code::kUnsupported);
    return kNoCharacter;
  }
  if (skip("0")) return 0;
  if (skip("x")) return hex(2);
  if (skip("u{")) {
    const size_t end = s_.find('}', at_);
    const uint32_t code = end == s_.npos || end - at_ > 6 ? kNoCharacter : hex(end - at_);
    if (code > CodePoints::kLast || !skip("}")) fail("has an escape that is no character");
    return code;
  }
  if (skip("u")) {
    const uint32_t high = hex(4);
    const size_t after = at_;
    if (high < 0xD800 || high > 0xDBFF || !skip("\\u")) return high;
    const uint32_t low = hex(4);
    if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    at_ = after;
    return high;
  }
  if (skip("c") && at_ < s_.size()) return static_cast<uint32_t>(s_[at_++]) % 32;
  return character();
}

CodePoints PatternParser::bracketed() {
  const bool inverted = skip("^");
  CodePoints set;
  while (more() && s_[at_] != ']') {
    CodePoints one;
    bool is_set = false;
    uint32_t first = kNoCharacter;
    const auto next = [&] {
      if (!skip("\\")) return character();
      is_set = class_escape(&one);
      return is_set ? kNoCharacter : escaped_character(true);
    };
    first = next();
    if (is_set || first == kNoCharacter) {
      set.add(one);
      continue;
    }
    const bool is_range = at_ + 1 < s_.size() && s_[at_] == '-' && s_[at_ + 1] != ']';
    if (!is_range) {
      set.add(first, first);
      continue;
    }
    ++at_;
    const uint32_t last = next();
    if (is_set) {  // a hyphen between a character and a class stands for itself
      set.add(first, first);
      set.add('-', '-');
      set.add(one);
    } else if (last < first) {
      fail("has a range whose end is before its beginning");
    } else if (last != kNoCharacter) {
      set.add(first, last);
    }
  }
  if (!skip("]")) fail("has a [ without a ]");
  return inverted ? set.inverted() : set;
}

}  // namespace

Result<PatternNode> parse_pattern(std::string_view pattern) {
  return PatternParser(pattern).whole();
}

}  // namespace sharpi::grammar
