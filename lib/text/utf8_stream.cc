// SPDX-License-Identifier: MIT
#include "text/utf8_stream.h"

#include <cstring>

#include "base/utf8.h"

namespace sharpi {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// Bytes of text[at..] that begin a character, of one that is not whole; at least 1.
size_t beginning(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const size_t n = utf8_bytes_from_lead(byte(0)), left = text.size() - at;
  if (n < 2 || left < 2 || !utf8_second_fits(byte(0), byte(1))) return 1;
  size_t fits = 2;
  while (fits < n && fits < left && (byte(fits) & 0xC0) == 0x80) ++fits;
  return fits;
}

}  // namespace

size_t utf8_valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word = 0;
    if (text.size() - at >= sizeof word) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const uint32_t n = utf8_character(text, at);
    if (n == 0) break;
    at += n;
  }
  return at;
}

void Utf8Stream::push(std::string_view bytes, std::string* out) {
  std::string joined(tail_, n_);
  joined.append(bytes);
  std::string_view left = joined;
  n_ = 0;
  while (true) {
    const size_t good = utf8_valid_prefix(left);
    out->append(left.substr(0, good));
    left.remove_prefix(good);
    if (left.empty()) return;
    const size_t bad = beginning(left, 0);
    if (bad == left.size() && bad < utf8_bytes_from_lead(static_cast<unsigned char>(left[0]))) {
      n_ = static_cast<uint32_t>(bad);  // more may come
      std::memcpy(tail_, left.data(), n_);
      return;
    }
    out->append(kReplacement);
    left.remove_prefix(bad);
  }
}

void Utf8Stream::flush(std::string* out) {
  if (n_ != 0) out->append(kReplacement);
  n_ = 0;
}

}  // namespace sharpi
