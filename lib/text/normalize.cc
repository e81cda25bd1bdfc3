// SPDX-License-Identifier: MIT
#include "text/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/utf8.h"

namespace sharpi {
namespace {

struct Range {
  uint32_t first, last;
};

/// The common scripts whose characters are stable under NFC, have combining class 0 and never
/// compose with what precedes them. Text of these alone skips the tables (a unit test proves the
/// claim for each code point).
constexpr Range kInert[] = {
    {0x0000, 0x02FF},   {0x0388, 0x0389}, {0x038E, 0x03FF}, {0x0400, 0x0482}, {0x048A, 0x058F},
    {0x0621, 0x064A},   {0x0660, 0x066F}, {0x0E01, 0x0E37}, {0x1E00, 0x1EFF}, {0x2010, 0x2027},
    {0x2030, 0x205E},   {0x20A0, 0x20CF}, {0x2190, 0x2328}, {0x232B, 0x23FF}, {0x2500, 0x2ADB},
    {0x3000, 0x3029},   {0x3041, 0x3096}, {0x309B, 0x30FF}, {0x3105, 0x312F}, {0x31F0, 0x9FFF},
    {0xAC00, 0xD7A3},   {0xFE00, 0xFE0F}, {0xFE30, 0xFE6F}, {0xFF01, 0xFFEF}, {0x1F300, 0x1FAFF},
    {0x20000, 0x2A6DF},
};

/// Characters that got a combining class or a decomposition after Unicode 9, of which the tables of
/// the reference tokenizers' normaliser are. It takes them for letters, and what models were
/// trained on was normalised by it. tools/compare_tokenizers.py finds what is missing here.
constexpr Range kUnknown[] = {
    {0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},
    {0x0C3C, 0x0C3C},   {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x16FF0, 0x16FF1}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
};

template <size_t N>
bool is_in(const Range (&ranges)[N], uint32_t cp) {
  const Range* r = std::lower_bound(std::begin(ranges), std::end(ranges), cp,
                                    [](const Range& a, uint32_t c) { return a.last < c; });
  return r != std::end(ranges) && cp >= r->first;
}

bool is_unknown(utf8proc_int32_t cp) {
  return is_nfc_unknown(static_cast<uint32_t>(cp));
}

/// What utf8proc must not see when it composes: the unknown, and U+11A7, a vowel just before the
/// trailing consonants of Hangul, which it takes for one of them, of which nothing is left.
bool composes_with_nothing(utf8proc_int32_t cp) {
  return cp == 0x11A7 || is_unknown(cp);
}

using CodePoints = std::vector<utf8proc_int32_t>;

Status utf8proc_status(utf8proc_ssize_t code) {
  return Status::error(code == UTF8PROC_ERROR_NOMEM ? Code::kOutOfMemory : Code::kInternal,
                       "Unicode normalisation failed: %s", utf8proc_errmsg(code));
}

Status decompose(std::string_view text, CodePoints* out) {
  for (size_t at = 0; at < text.size();) {
    const uint32_t n = utf8_character(text, at);
    const auto cp = static_cast<utf8proc_int32_t>(utf8_code_point(text, at, n));
    at += n;
    if (is_unknown(cp)) {
      out->push_back(cp);
      continue;
    }
    utf8proc_int32_t parts[8];  // the longest canonical decomposition has 4
    int boundclass = 0;
    const utf8proc_ssize_t written = utf8proc_decompose_char(
        cp, parts, 8, static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE),
        &boundclass);
    if (written < 0) return utf8proc_status(written);
    if (written > 8) return Status::error(Code::kInternal, "U+%04X decomposes too far", cp);
    out->insert(out->end(), parts, parts + written);
  }
  return Status::ok();
}

int combining_class(utf8proc_int32_t cp) {
  return is_unknown(cp) ? 0 : utf8proc_get_property(cp)->combining_class;
}

/// Canonical ordering: each run of non-starters by combining class, equal classes in place.
void order_marks(CodePoints* code_points) {
  auto it = code_points->begin();
  while (it != code_points->end()) {
    if (combining_class(*it) == 0) {
      ++it;
      continue;
    }
    const auto run_end =
        std::find_if(it, code_points->end(), [](auto cp) { return combining_class(cp) == 0; });
    std::stable_sort(it, run_end,
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    it = run_end;
  }
}

Status append_normalized(std::string_view text, CodePoints* scratch, std::string* out) {
  scratch->clear();
  SHARPI_TRY(decompose(text, scratch));
  order_marks(scratch);
  for (auto from = scratch->begin(); from != scratch->end();) {
    const auto to = std::find_if(from, scratch->end(), &composes_with_nothing);
    const utf8proc_ssize_t n = utf8proc_normalize_utf32(
        &*from, to - from, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    if (n < 0) return utf8proc_status(n);
    for (utf8proc_ssize_t i = 0; i < n; ++i) utf8_append(static_cast<uint32_t>(from[i]), out);
    if (to == scratch->end()) break;
    utf8_append(static_cast<uint32_t>(*to), out);
    from = to + 1;
  }
  return Status::ok();
}

}  // namespace

bool is_nfc_unknown(uint32_t code_point) {
  return is_in(kUnknown, code_point);
}

bool is_nfc_inert(uint32_t code_point) {
  return is_in(kInert, code_point);
}

Status normalize_nfc(std::string_view text, std::string* storage, std::string_view* out) {
  storage->clear();
  CodePoints scratch;
  size_t copied = 0;    // text[0, copied) is in *storage, normalised
  size_t previous = 0;  // start of the character before `at`, which a mark at `at` may change
  size_t at = 0;
  const auto inert_at = [&](size_t i, uint32_t* n) {
    *n = utf8_character(text, i);
    return *n == 1 || is_nfc_inert(utf8_code_point(text, i, *n));
  };
  while (at < text.size()) {
    uint32_t n = 0;
    if (inert_at(at, &n)) {
      previous = at;
      at += n;
      continue;
    }
    size_t end = at + n;
    while (end < text.size() && !inert_at(end, &n)) end += n;
    storage->append(text, copied, previous - copied);
    SHARPI_TRY(append_normalized(text.substr(previous, end - previous), &scratch, storage));
    copied = previous = at = end;
  }
  if (copied == 0) {
    *out = text;
    return Status::ok();
  }
  storage->append(text, copied, text.size() - copied);
  *out = *storage;
  return Status::ok();
}

}  // namespace sharpi
