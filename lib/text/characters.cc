// SPDX-License-Identifier: MIT
#include "text/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <span>

#include "base/utf8.h"

namespace sharpi {
namespace {

utf8proc_category_t category(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

void append_lower(uint32_t c, bool lower_case, std::string* out) {
  constexpr uint32_t kCapitalIWithDot = 0x130, kDotAbove = 0x307;
  if (!lower_case) {
    utf8_append(c, out);
  } else if (c == kCapitalIWithDot) {  // the one letter whose lower case is two characters
    utf8_append('i', out);
    utf8_append(kDotAbove, out);
  } else {
    utf8_append(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
}

}  // namespace

bool is_white_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_other(uint32_t c) {
  const utf8proc_category_t k = category(c);
  return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
}

bool is_punctuation(uint32_t c) {
  if (c < 0x80) {
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
           (c >= 123 && c <= 126);
  }
  switch (category(c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return true;
    default:
      return false;
  }
}

bool is_chinese(uint32_t c) {
  constexpr uint32_t kBlocks[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                     {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                     {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kBlocks), std::end(kBlocks),
                     [c](const uint32_t(&b)[2]) { return c >= b[0] && c <= b[1]; });
}

void append_folded(uint32_t c, bool strip_accents, bool lower_case, std::string* out) {
  if (!strip_accents || c < 0x80) return append_lower(c, lower_case, out);
  constexpr utf8proc_ssize_t kMost = 18;  // the longest decomposition of a character
  utf8proc_int32_t parts[kMost];
  int boundary = 0;
  const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, kMost,
                                                     UTF8PROC_DECOMPOSE, &boundary);
  if (n < 0 || n > kMost) return append_lower(c, lower_case, out);
  for (const utf8proc_int32_t part : std::span(parts, static_cast<size_t>(n))) {
    if (utf8proc_category(part) == UTF8PROC_CATEGORY_MN) continue;
    append_lower(static_cast<uint32_t>(part), lower_case, out);
  }
}

}  // namespace sharpi
