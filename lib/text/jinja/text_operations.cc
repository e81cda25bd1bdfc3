// SPDX-License-Identifier: MIT
// Operations on strings that methods and filters share.
#include <utf8proc.h>

#include <algorithm>
#include <cstdio>

#include "base/utf8.h"
#include "text/jinja/characters.h"
#include "text/jinja/methods.h"
#include "text/jinja/numbers.h"
#include "text/jinja/text_search.h"

namespace sharpi::jinja {
namespace {

uint32_t code_point_at(std::string_view s, size_t at, uint32_t* n) {
  *n = std::max(utf8_character(s, at), 1u);
  return *n == 1 ? static_cast<unsigned char>(s[at]) : utf8_code_point(s, at, *n);
}

bool is_cased(uint32_t cp) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(cp));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

/// Where the character begins that ends before byte `end`, as far back as one can be. pre: end > 0.
size_t character_before(std::string_view s, size_t end) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<unsigned char>(s[at]) & 0xC0) == 0x80) --at;
  return at;
}

/// Sigma at the end of a word has a lower case of its own.
bool is_final_sigma(std::string_view s, size_t at) {
  uint32_t n = 0;
  if (at == 0 || !is_cased(code_point_at(s, character_before(s, at), &n))) return false;
  const size_t after = at + 2;
  return after >= s.size() || !is_cased(code_point_at(s, after, &n));
}

}  // namespace

Status strip_text(const Value& text, const Value* characters, Side side, Heap* heap, Value* out) {
  const std::string& s = text.text->bytes();
  const auto goes = [&](size_t at, uint32_t* n) {
    const uint32_t cp = code_point_at(s, at, n);
    if (characters == nullptr) return is_blank(cp);
    heap->owe_work(characters->text->size());
    return characters->bytes().find(std::string_view(s).substr(at, *n)) != std::string_view::npos;
  };
  size_t begin = 0, end = s.size();
  uint32_t n = 0;
  if (side != Side::kRight) {
    for (; begin < end && goes(begin, &n); begin += n) SHARPI_TRY(heap->work(1));
  }
  while (side != Side::kLeft && end > begin) {
    SHARPI_TRY(heap->work(1));
    size_t last = std::max(character_before(s, end), begin);
    if (last + std::max(utf8_character(s, last), 1u) != end) last = end - 1;  // no whole character
    if (!goes(last, &n)) break;
    end = last;
  }
  *out = text;
  if (begin == 0 && end == s.size()) return Status::ok();
  MarkedText rest;
  rest.append(*text.text, begin, end);
  *out = heap->text(std::move(rest), text.safe);
  return Status::ok();
}

Status change_case(const Value& text, Case how, Heap* heap, Value* out) {
  const std::string& s = text.text->bytes();
  SHARPI_TRY(heap->charge(s.size()));
  MarkedText result;
  bool in_word = false;
  for (size_t at = 0; at < s.size();) {
    uint32_t n = 0;
    const uint32_t cp = code_point_at(s, at, &n);
    const bool upper = how == Case::kUpper || (how != Case::kLower && !in_word);
    in_word = how == Case::kTitle ? is_cased(cp)
              : how == Case::kTitleFilter
                  ? !(is_blank(cp) || cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<')
                  : true;
    const auto code = static_cast<utf8proc_int32_t>(cp);
    const bool foreign = text.text->foreign_in(at, at + n);
    if (n == 1 && cp >= 0x80) {
      result.append(*text.text, at, at + 1);  // a byte that is no character
    } else if (cp == 0xDF && upper) {
      result.append(how == Case::kUpper || how == Case::kTitleFilter ? "SS" : "Ss", foreign);
    } else if (cp == 0x3A3 && !upper && is_final_sigma(s, at)) {
      result.append("\xCF\x82", foreign);
    } else {
      const utf8proc_int32_t mapped = !upper ? utf8proc_tolower(code)
                                      : how == Case::kUpper || how == Case::kTitleFilter
                                          ? utf8proc_toupper(code)
                                          : utf8proc_totitle(code);
      std::string bytes;
      utf8_append(static_cast<uint32_t>(mapped), &bytes);
      result.append(bytes, foreign);
    }
    at += n;
  }
  *out = heap->text(std::move(result), text.safe);
  return Status::ok();
}

Status replace_text(const Value& text, const Value& from, const Value& to, int64_t count,
                    Heap* heap, Value* out) {
  const std::string& s = text.text->bytes();
  const std::string_view old = from.bytes();
  MarkedText result;
  size_t at = 0;
  int64_t left = count < 0 ? INT64_MAX : count;
  SHARPI_TRY(heap->charge(s.size()));
  TextSearch search(s, old);
  SHARPI_TRY(search.prepare(heap));
  while (left > 0 && at <= s.size()) {
    const size_t found = search.next(at);
    if (found == s.npos) break;
    // Two changes of origin, where one comes from a value.
    SHARPI_TRY(heap->charge(to.text->size() + to.text->mark_bytes() + 8));
    result.append(*text.text, at, found);
    result.append(*to.text);
    at = found + old.size();
    --left;
    if (!old.empty()) continue;
    // An empty text stands before every character and at the end.
    if (at >= s.size()) break;
    const size_t next = at + std::max(utf8_character(s, at), 1u);
    result.append(*text.text, at, next);
    at = next;
  }
  if (at < s.size()) result.append(*text.text, at, s.size());
  *out = heap->text(std::move(result), text.safe);
  return Status::ok();
}

Status join_texts(const MarkedText& separator, const std::vector<Value>& items, bool convert,
                  Heap* heap, MarkedText* out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (!convert && !items[i].is_string()) {
      return Status::error(Code::kInvalidArgument,
                           "sequence item %zu: expected str instance, %s found", i,
                           type_name(items[i]));
    }
    SHARPI_TRY(heap->charge(separator.size() + separator.mark_bytes() + 8));
    if (i > 0) out->append(separator);
    SHARPI_TRY(print(items[i], heap, out));
  }
  return Status::ok();
}

Status escape_text(const MarkedText& text, Heap* heap, MarkedText* out) {
  SHARPI_TRY(heap->charge(text.size() * 5));
  for (size_t at = 0; at < text.size(); ++at) {
    const bool foreign = text.foreign_at(at);
    switch (text.bytes()[at]) {
      case '&':
        out->append("&amp;", foreign);
        break;
      case '<':
        out->append("&lt;", foreign);
        break;
      case '>':
        out->append("&gt;", foreign);
        break;
      case '"':
        out->append("&#34;", foreign);
        break;
      case '\'':
        out->append("&#39;", foreign);
        break;
      default:
        out->append(text, at, at + 1);
    }
  }
  return Status::ok();
}

Status format_percent(const Value& text, const Value& values, Heap* heap, Value* out) {
  const std::string& s = text.text->bytes();
  const bool tuple = values.is(Kind::kTuple);
  const size_t n_values = tuple ? values.list->items.size() : 1;
  size_t used = 0;
  MarkedText result;
  SHARPI_TRY(heap->charge(s.size()));
  for (size_t at = 0; at < s.size(); ++at) {
    if (s[at] != '%') {
      result.append(*text.text, at, at + 1);
      continue;
    }
    const char type = at + 1 < s.size() ? s[++at] : '\0';
    if (type == '%') {
      result.append(*text.text, at, at + 1);
      continue;
    }
    if (type != 's' && type != 'd' && type != 'i' && type != 'r') {
      return Status::error(Code::kUnsupported, "the format %%%c is not supported", type);
    }
    if (used >= n_values) {
      return Status::error(Code::kInvalidArgument, "not enough arguments for format string");
    }
    const Value& value = tuple ? values.list->items[used] : values;
    ++used;
    const bool number = type == 'd' || type == 'i';
    if (number && !value.is_number() && !value.is(Kind::kNumeral)) {
      return Status::error(Code::kInvalidArgument, "%%%c format: a real number is required, not %s",
                           type, type_name(value));
    }
    if (number && !value.is(Kind::kNumeral)) {
      Value integer = value;
      if (value.is(Kind::kBool)) integer = Value::of(int64_t{value.boolean});
      if (value.is(Kind::kFloat)) SHARPI_TRY(integer_of_real(value.real, heap, &integer));
      integer.foreign = value.foreign;
      SHARPI_TRY(print(integer, heap, &result));
    } else {
      SHARPI_TRY(type != 'r' ? print(value, heap, &result) : represent(value, heap, &result));
    }
  }
  if (used < n_values && !values.is(Kind::kDict)) {
    return Status::error(Code::kInvalidArgument,
                         "not all arguments converted during string formatting");
  }
  *out = heap->text(std::move(result), text.safe);
  return Status::ok();
}

}  // namespace sharpi::jinja
