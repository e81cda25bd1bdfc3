// SPDX-License-Identifier: MIT
// How values print: Python's str() and repr().
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/utf8.h"
#include "text/jinja/characters.h"
#include "text/jinja/value.h"

namespace sharpi::jinja {
namespace {

constexpr int kMaxPrintDepth = 64;

bool is_printable(uint32_t cp) {
  if (cp == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(cp))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

void append_escape(uint32_t cp, bool foreign, MarkedText* out) {
  char text[16];
  const char* format = cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(text, sizeof text, format, cp);
  out->append(text, foreign);
}

/// A string in quotes: single ones, unless it has only those inside.
void represent_string(const MarkedText& text, MarkedText* out) {
  const std::string& s = text.bytes();
  const bool twice = s.find('\'') != std::string::npos && s.find('"') == std::string::npos;
  const char quote = twice ? '"' : '\'';
  out->append({&quote, 1}, false);
  for (size_t at = 0; at < s.size();) {
    const uint32_t n = std::max(utf8_character(s, at), 1u);
    const uint32_t cp = n == 1 ? static_cast<unsigned char>(s[at]) : utf8_code_point(s, at, n);
    const bool foreign = text.foreign_in(at, at + n);
    if (cp == '\n' || cp == '\r' || cp == '\t') {
      out->append(cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t", foreign);
    } else if (cp == '\\' || cp == static_cast<uint32_t>(quote)) {
      out->append("\\", foreign);
      out->append(text, at, at + n);
    } else if (is_printable(cp)) {
      out->append(text, at, at + n);
    } else {
      append_escape(cp, foreign, out);
    }
    at += n;
  }
  out->append({&quote, 1}, false);
}

Status represent_items(const List& list, const char* open, const char* close, Heap* heap,
                       MarkedText* out, int depth) {
  out->append(open, false);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out->append(", ", false);
    SHARPI_TRY(represent(list.items[i], heap, out, depth + 1));
  }
  out->append(close, false);
  return Status::ok();
}

Status represent_dict(const Dict& dict, Heap* heap, MarkedText* out, int depth) {
  out->append("{", false);
  bool first = true;
  for (const auto& [key, value] : dict.items) {
    if (!first) out->append(", ", false);
    first = false;
    SHARPI_TRY(represent(key, heap, out, depth + 1));
    out->append(": ", false);
    SHARPI_TRY(represent(value, heap, out, depth + 1));
  }
  out->append("}", false);
  return Status::ok();
}

}  // namespace

std::string represent_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[40];
  const auto end =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific);
  std::string_view text(digits, static_cast<size_t>(end.ptr - digits));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  const char* from = text.data() + e + 1;
  std::from_chars(*from == '+' ? from + 1 : from, text.data() + text.size(), exponent);
  std::string mantissa(text.substr(0, e));
  mantissa.erase(std::remove(mantissa.begin(), mantissa.end(), '.'), mantissa.end());
  const auto n = static_cast<int>(mantissa.size());
  if (exponent < -4 || exponent >= 16) {
    out += mantissa.substr(0, 1);
    if (n > 1) out.append(1, '.').append(mantissa, 1);
    char power[16];
    std::snprintf(power, sizeof power, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return out + power;
  }
  if (exponent < 0) {
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + mantissa;
  }
  if (n <= exponent + 1) {
    return out + mantissa + std::string(static_cast<size_t>(exponent + 1 - n), '0') + ".0";
  }
  const auto point = static_cast<size_t>(exponent) + 1;
  return out + mantissa.substr(0, point) + "." + mantissa.substr(point);
}

Status represent(const Value& value, Heap* heap, MarkedText* out, int depth) {
  if (depth > kMaxPrintDepth) {
    return Status::error(Code::kDoesNotFit, "a value is nested deeper than %d", kMaxPrintDepth);
  }
  if (heap->stack().is_spent()) return StackBound::spent();
  const size_t before = out->size();
  switch (value.kind) {
    case Kind::kString:
      SHARPI_TRY(heap->charge(value.text->size()));
      represent_string(*value.text, out);
      break;
    case Kind::kList:
      SHARPI_TRY(represent_items(*value.list, "[", "]", heap, out, depth));
      break;
    case Kind::kTuple:
      SHARPI_TRY(represent_items(*value.list, "(", value.list->items.size() == 1 ? ",)" : ")", heap,
                                 out, depth));
      break;
    case Kind::kDict:
      SHARPI_TRY(represent_dict(*value.dict, heap, out, depth));
      break;
    case Kind::kUndefined:
      out->append("Undefined", false);
      break;
    default:
      return print(value, heap, out);
  }
  return heap->charge(out->size() - before);
}

Status print(const Value& value, Heap* heap, MarkedText* out) {
  switch (value.kind) {
    case Kind::kUndefined:
      return Status::ok();
    case Kind::kNone:
      out->append("None", value.foreign);
      return Status::ok();
    case Kind::kBool:
      out->append(value.boolean ? "True" : "False", value.foreign);
      return Status::ok();
    case Kind::kInt:
      out->append(std::to_string(value.integer), value.foreign);
      return Status::ok();
    case Kind::kFloat:
      out->append(represent_real(value.real), value.foreign);
      return Status::ok();
    case Kind::kNumeral:
    case Kind::kString:
      SHARPI_TRY(heap->charge(value.text->size() + value.text->mark_bytes()));
      out->append(*value.text);
      return Status::ok();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return represent(value, heap, out);
    default:
      // What these print names addresses or Python's own types; no template means that.
      return Status::error(Code::kUnsupported, "printing a %s is not supported", type_name(value));
  }
}

}  // namespace sharpi::jinja
