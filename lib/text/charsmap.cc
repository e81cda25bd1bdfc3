// SPDX-License-Identifier: MIT
#include "text/charsmap.h"

#include <algorithm>
#include <cstring>

#include "base/utf8.h"

namespace sharpi {
namespace {

// A unit of the trie: an 8-bit label, whether a value hangs below it, and the offset to its
// children; or a value.
bool has_value(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t value_of(uint32_t unit) {
  return unit & 0x7FFFFFFFu;
}
uint32_t label_of(uint32_t unit) {
  return unit & 0x800000FFu;
}
uint32_t offset_of(uint32_t unit) {
  return (unit >> 10) << ((unit & 0x200u) >> 6);
}

}  // namespace

Result<CharsMap> CharsMap::create(std::string bytes) {
  CharsMap m;
  if (bytes.empty()) return m;
  uint32_t size = 0;
  if (bytes.size() >= sizeof size) std::memcpy(&size, bytes.data(), sizeof size);
  if (bytes.size() < sizeof size || size % sizeof(uint32_t) != 0 || size == 0 ||
      size > bytes.size() - sizeof size) {
    return Status::error(Code::kFormat,
                         "tokenizer.ggml.precompiled_charsmap has %zu bytes, which is not what it "
                         "says of its trie",
                         bytes.size());
  }
  m.units_.resize(size / sizeof(uint32_t));
  std::memcpy(m.units_.data(), bytes.data() + sizeof size, size);
  m.replacements_ = bytes.substr(sizeof size + size);
  return m;
}

std::string_view CharsMap::find(std::string_view text, size_t* length) const {
  *length = 0;
  if (units_.empty()) return {};
  std::string_view found;
  uint32_t at = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    at ^= c;
    if (at >= units_.size() || label_of(units_[at]) != c) break;
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (!has_value(unit) || at >= units_.size()) continue;
    const uint32_t value = value_of(units_[at]);
    if (value >= replacements_.size()) continue;
    const size_t end = std::min(replacements_.find('\0', value), replacements_.size());
    found = std::string_view(replacements_).substr(value, end - value);
    *length = i + 1;
  }
  return found;
}

std::string CharsMap::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    const std::string_view replaced = find(text.substr(at), &length);
    if (length != 0) {
      out.append(replaced);
      at += length;
      continue;
    }
    const uint32_t n = utf8_character(text, at);
    if (n == 0) {
      out.append("\xEF\xBF\xBD");
      ++at;
      continue;
    }
    out.append(text.substr(at, n));
    at += n;
  }
  return out;
}

}  // namespace sharpi
