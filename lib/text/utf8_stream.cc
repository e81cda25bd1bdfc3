// SPDX-License-Identifier: MIT
#include "text/utf8_stream.h"

#include <cstring>

#include "text/utf8.h"

namespace sharpi {
namespace {

/// Length of the unfinished character at the end of `bytes` that more bytes could complete.
uint32_t unfinished_tail(std::string_view bytes) {
  const auto reach = static_cast<uint32_t>(bytes.size() < 3 ? bytes.size() : 3);
  for (uint32_t n = 1; n <= reach; ++n) {
    const size_t at = bytes.size() - n;
    const auto lead = static_cast<unsigned char>(bytes[at]);
    if ((lead & 0xC0) == 0x80) continue;
    if (utf8_bytes_from_lead(lead) <= n) return 0;
    return n == 1 || utf8_second_fits(lead, static_cast<unsigned char>(bytes[at + 1])) ? n : 0;
  }
  return 0;
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
  const size_t start = out->size();
  out->append(tail_, n_);
  out->append(bytes);
  n_ = unfinished_tail(std::string_view(*out).substr(start));
  std::memcpy(tail_, out->data() + out->size() - n_, n_);
  out->resize(out->size() - n_);
}

void Utf8Stream::flush(std::string* out) {
  out->append(tail_, n_);
  n_ = 0;
}

}  // namespace sharpi
