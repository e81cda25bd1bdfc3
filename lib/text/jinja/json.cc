// SPDX-License-Identifier: MIT
#include "text/jinja/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/utf8.h"
#include "os/c_locale.h"
#include "text/jinja/characters.h"

namespace sharpi::jinja {
namespace {

constexpr int kMaxJsonDepth = 64;  // reading so many takes 16 KiB of stack, and begins at the host
constexpr size_t kMaxDigits = 4300;  // of an integer, as in Python

class Reader {
 public:
  Reader(std::string_view text, const char* what, JsonNumbers numbers, Heap* heap)
      : s_(text), what_(what), numbers_(numbers), heap_(*heap) {}

  Status document(Value* out) {
    SHARPI_TRY(value(out, 0));
    blanks();
    return at_ == s_.size() ? Status::ok() : fail("something follows the value");
  }

  JsonPrefix prefix(Value* out, size_t* used) {
    const bool whole = value(out, 0).is_ok();
    *used = at_;
    if (whole) return JsonPrefix::kWhole;
    return s_.size() - at_ <= kLongestWord ? JsonPrefix::kOpen : JsonPrefix::kNone;
  }

 private:
  /// What a failure is about begins where the reader stands: it is no longer than this.
  static constexpr size_t kLongestWord = 8;

  Status fail(const char* why) const {
    return Status::error(Code::kInvalidArgument, "%s is not JSON at byte %zu: %s", what_, at_, why);
  }
  void blanks() {
    while (at_ < s_.size() && std::string_view(" \t\r\n").find(s_[at_]) != std::string_view::npos) {
      ++at_;
    }
  }
  bool skip(std::string_view word) {
    if (s_.substr(std::min(at_, s_.size()), word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Status value(Value* out, int depth) {
    if (depth > kMaxJsonDepth) return fail("it is nested too deeply");
    SHARPI_TRY(heap_.charge(sizeof(Value)));
    blanks();
    if (skip("{")) return object(out, depth);
    if (skip("[")) return array(out, depth);
    if (skip("\"")) return string(out);
    if (skip("null")) {
      *out = Value::none();
    } else if (skip("true")) {
      *out = Value::of(true);
    } else if (skip("false")) {
      *out = Value::of(false);
    } else {
      SHARPI_TRY(number(out));
    }
    out->foreign = true;
    return Status::ok();
  }

  Status object(Value* out, int depth) {
    Dict* dict = heap_.dict();
    *out = Value::of(Kind::kDict, dict);
    blanks();
    if (skip("}")) return Status::ok();
    for (;;) {
      Value key, item;
      blanks();
      if (!skip("\"")) return fail("a key is expected");
      SHARPI_TRY(string(&key));
      blanks();
      if (!skip(":")) return fail("a colon is expected");
      SHARPI_TRY(value(&item, depth + 1));
      SHARPI_TRY(set_key(dict, key, item, &heap_));
      blanks();
      if (skip("}")) return Status::ok();
      if (!skip(",")) return fail("a comma or a closing brace is expected");
    }
  }

  Status array(Value* out, int depth) {
    List* list = heap_.list();
    *out = Value::of(Kind::kList, list);
    blanks();
    if (skip("]")) return Status::ok();
    for (;;) {
      Value item;
      SHARPI_TRY(value(&item, depth + 1));
      list->items.push_back(item);
      blanks();
      if (skip("]")) return Status::ok();
      if (!skip(",")) return fail("a comma or a closing bracket is expected");
    }
  }

  Status hex(uint32_t* out) {
    const std::string digits(s_.substr(std::min(at_, s_.size()), 4));
    char* end = nullptr;
    *out = static_cast<uint32_t>(std::strtoul(digits.c_str(), &end, 16));
    if (digits.size() != 4 || end != digits.c_str() + 4 || digits[0] == '-' || digits[0] == '+' ||
        digits[0] == ' ') {
      return fail("four hexadecimal digits are expected");
    }
    at_ += 4;
    return Status::ok();
  }

  Status escape(std::string* out) {
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (at_ >= s_.size()) return fail("a string has no end");
    const char c = s_[at_++];
    if (const size_t i = kFrom.find(c); i != kFrom.npos) {
      out->push_back(kTo[i]);
      return Status::ok();
    }
    if (c != 'u') return fail("an escape is unknown");
    uint32_t cp = 0;
    SHARPI_TRY(hex(&cp));
    if (const size_t after = at_; cp >= 0xD800 && cp < 0xDC00 && skip("\\u")) {
      uint32_t low = 0;
      SHARPI_TRY(hex(&low));
      if (low >= 0xDC00 && low <= 0xDFFF) {
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
      } else {
        at_ = after;  // it is a character of its own
      }
    }
    utf8_append(cp >= 0xD800 && cp < 0xE000 ? 0xFFFD : cp, out);
    return Status::ok();
  }

  Status string(Value* out) {
    std::string text;
    while (at_ < s_.size() && s_[at_] != '"') {
      if (static_cast<unsigned char>(s_[at_]) < 0x20)
        return fail("a string contains a control character");
      const char c = s_[at_++];
      if (c == '\\')
        SHARPI_TRY(escape(&text));
      else
        text.push_back(c);
    }
    if (!skip("\"")) return fail("a string has no end");
    SHARPI_TRY(heap_.charge(text.size()));
    *out = heap_.text(text, true);
    return Status::ok();
  }

  Status number(Value* out) {
    const char *begin = s_.data() + at_, *end = s_.data() + s_.size(), *p = begin;
    const auto digit = [&] { return p < end && *p >= '0' && *p <= '9'; };
    const auto wants_digit = [&] {
      at_ += static_cast<size_t>(p - begin);
      return fail("a digit is expected");
    };
    bool real = false;
    if (p < end && *p == '-') ++p;
    if (!digit()) return fail("a value is expected");
    if (*p == '0' && p + 1 < end && p[1] >= '0' && p[1] <= '9')
      return fail("a number begins with 0");
    while (digit()) ++p;
    if (p < end && *p == '.') {
      real = true;
      ++p;
      if (!digit()) return wants_digit();
      while (digit()) ++p;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
      real = true;
      ++p;
      if (p < end && (*p == '+' || *p == '-')) ++p;
      if (!digit()) return wants_digit();
      while (digit()) ++p;
    }
    if (real) {
      double d = 0;
      if (std::from_chars(begin, p, d).ec == std::errc::result_out_of_range) {
        d = os::real_of_digits(std::string(begin, p).c_str());
      }
      *out = Value::of(d);
      if (std::isinf(d) && numbers_ == JsonNumbers::kAsWritten) SHARPI_TRY(numeral(begin, p, out));
    } else {
      int64_t i = 0;
      *out = Value::of(i);
      if (static_cast<size_t>(p - begin) > kMaxDigits + (*begin == '-' ? 1 : 0))
        return fail("an integer has more than 4300 digits");
      if (std::from_chars(begin, p, i).ec == std::errc())
        *out = Value::of(i);
      else
        SHARPI_TRY(numeral(begin, p, out));
    }
    at_ += static_cast<size_t>(p - begin);
    return Status::ok();
  }

  Status numeral(const char* begin, const char* end, Value* out) {
    const std::string_view text(begin, static_cast<size_t>(end - begin));
    SHARPI_TRY(heap_.charge(text.size()));
    *out = Value::numeral(heap_.text(text, true));
    return Status::ok();
  }

  std::string_view s_;
  const char* what_;
  JsonNumbers numbers_;
  Heap& heap_;
  size_t at_ = 0;
};

void append_u(uint32_t unit, bool foreign, MarkedText* out) {
  char text[12];
  std::snprintf(text, sizeof text, "\\u%04x", unit);
  out->append(text, foreign);
}

void write_string(const MarkedText& text, bool ensure_ascii, MarkedText* out) {
  const std::string& s = text.bytes();
  static constexpr std::string_view kFrom = "\"\\\b\f\n\r\t", kTo = "\"\\bfnrt";
  out->append("\"", false);
  size_t plain = 0;  // bytes [plain, at) are written as they are
  for (size_t at = 0; at < s.size();) {
    const auto byte = static_cast<unsigned char>(s[at]);
    const uint32_t n = byte < 0x80 ? 1 : std::max(utf8_character(s, at), 1u);
    const size_t escape = kFrom.find(s[at]);
    const bool ascii_only = ensure_ascii && byte >= 0x7F;
    if (byte >= 0x20 && escape == kFrom.npos && !ascii_only) {
      at += n;
      continue;
    }
    out->append(text, plain, at);
    const bool foreign = text.foreign_in(at, at + n);
    if (escape != kFrom.npos) {
      const char pair[2] = {'\\', kTo[escape]};
      out->append({pair, 2}, foreign);
    } else {
      const uint32_t cp = n == 1 ? byte : utf8_code_point(s, at, n);
      if (cp >= 0x10000) append_u(0xD800 + ((cp - 0x10000) >> 10), foreign, out);
      append_u(cp >= 0x10000 ? 0xDC00 + ((cp - 0x10000) & 0x3FF) : cp, foreign, out);
    }
    at += n;
    plain = at;
  }
  out->append(text, plain, s.size());
  out->append("\"", false);
}

void new_line(const JsonLayout& layout, int depth, MarkedText* out) {
  if (!layout.indented) return;
  out->append("\n", false);
  for (int i = 0; i < depth; ++i) out->append(layout.indent);
}

std::string real_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return represent_real(value);
}

Status write_key(const Value& key, const JsonLayout& layout, MarkedText* out) {
  std::string text;
  switch (key.kind) {
    case Kind::kString:
      write_string(*key.text, layout.ensure_ascii, out);
      return Status::ok();
    case Kind::kNone:
      text = "null";
      break;
    case Kind::kBool:
      text = key.boolean ? "true" : "false";
      break;
    case Kind::kInt:
      text = std::to_string(key.integer);
      break;
    case Kind::kNumeral:
      text = key.bytes();
      break;
    case Kind::kFloat:
      text = real_text(key.real);
      break;
    default:
      return Status::error(Code::kInvalidArgument, "keys of JSON cannot be %s", type_name(key));
  }
  out->append("\"", false);
  out->append(text, is_foreign(key));
  out->append("\"", false);
  return Status::ok();
}

Status write_value(const Value& value, const JsonLayout& layout, Heap* heap, MarkedText* out,
                   int depth);

Status write_object(const Dict& dict, const JsonLayout& layout, Heap* heap, MarkedText* out,
                    int depth) {
  auto items = dict.items;
  if (layout.sort_keys) {
    for (const auto& [key, value] : items) {
      if (!key.is_string()) {
        return Status::error(Code::kUnsupported, "sort_keys wants keys that are strings");
      }
    }
    std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
      return a.first.bytes() < b.first.bytes();
    });
  }
  out->append("{", false);
  bool first = true;
  for (const auto& [key, value] : items) {
    if (!first) out->append(layout.item_separator);
    first = false;
    new_line(layout, depth + 1, out);
    SHARPI_TRY(write_key(key, layout, out));
    out->append(layout.key_separator);
    SHARPI_TRY(write_value(value, layout, heap, out, depth + 1));
  }
  if (!first) new_line(layout, depth, out);
  out->append("}", false);
  return Status::ok();
}

Status write_array(const List& list, const JsonLayout& layout, Heap* heap, MarkedText* out,
                   int depth) {
  out->append("[", false);
  bool first = true;
  for (const Value& value : list.items) {
    if (!first) out->append(layout.item_separator);
    first = false;
    new_line(layout, depth + 1, out);
    SHARPI_TRY(write_value(value, layout, heap, out, depth + 1));
  }
  if (!first) new_line(layout, depth, out);
  out->append("]", false);
  return Status::ok();
}

Status write_value(const Value& value, const JsonLayout& layout, Heap* heap, MarkedText* out,
                   int depth) {
  if (depth > kMaxJsonDepth) {
    return Status::error(Code::kDoesNotFit, "a value is nested deeper than %d", kMaxJsonDepth);
  }
  if (heap->stack().is_spent()) return StackBound::spent();
  // A line of every level's indentation is the most that a value adds besides itself.
  const size_t each = layout.item_separator.mark_bytes() + layout.key_separator.mark_bytes() + 8;
  const size_t level = layout.indent.size() + layout.indent.mark_bytes();
  SHARPI_TRY(heap->charge(each + level * static_cast<size_t>(depth + 1)));
  switch (value.kind) {
    case Kind::kNone:
      out->append("null", value.foreign);
      return Status::ok();
    case Kind::kBool:
      out->append(value.boolean ? "true" : "false", value.foreign);
      return Status::ok();
    case Kind::kInt:
      out->append(std::to_string(value.integer), value.foreign);
      return Status::ok();
    case Kind::kFloat:
      out->append(real_text(value.real), value.foreign);
      return Status::ok();
    case Kind::kNumeral:
      SHARPI_TRY(heap->charge(value.text->size() + 8));
      out->append(*value.text);
      return Status::ok();
    case Kind::kString:
      SHARPI_TRY(heap->charge(value.text->size() * 2));
      write_string(*value.text, layout.ensure_ascii, out);
      return Status::ok();
    case Kind::kList:
    case Kind::kTuple:
      return write_array(*value.list, layout, heap, out, depth);
    case Kind::kDict:
      return write_object(*value.dict, layout, heap, out, depth);
    default:
      return Status::error(Code::kInvalidArgument, "Object of type %s is not JSON serializable",
                           type_name(value));
  }
}

}  // namespace

Status parse_json(std::string_view text, const char* what, Heap* heap, Value* out,
                  JsonNumbers numbers) {
  return Reader(text, what, numbers, heap).document(out);
}

JsonPrefix read_json_prefix(std::string_view text, Heap* heap, Value* out, size_t* used) {
  return Reader(text, "a call", JsonNumbers::kAsWritten, heap).prefix(out, used);
}

Status write_json(const Value& value, const JsonLayout& layout, Heap* heap, MarkedText* out) {
  const StackEntry entry(&heap->stack());
  return write_value(value, layout, heap, out, 0);
}

}  // namespace sharpi::jinja
