// SPDX-License-Identifier: MIT
#include "text/jinja/marked_text.h"

#include <algorithm>

namespace sharpi::jinja {

bool MarkedText::foreign_at(size_t at) const {
  const auto it = std::upper_bound(flips_.begin(), flips_.end(), at);
  return ((it - flips_.begin()) & 1) != 0;
}

bool MarkedText::foreign_in(size_t from, size_t to) const {
  const auto it = std::upper_bound(flips_.begin(), flips_.end(), from);
  return ((it - flips_.begin()) & 1) != 0 || (it != flips_.end() && *it < to);
}

std::vector<ForeignSpan> MarkedText::foreign_spans() const {
  std::vector<ForeignSpan> out;
  for (size_t i = 0; i < flips_.size(); i += 2) {
    out.push_back({flips_[i], i + 1 < flips_.size() ? flips_[i + 1] : bytes_.size()});
  }
  return out;
}

void MarkedText::append(std::string_view bytes, bool foreign) {
  if (bytes.empty()) return;
  const bool now = (flips_.size() & 1) != 0;
  if (foreign != now) flips_.push_back(static_cast<uint32_t>(bytes_.size()));
  bytes_.append(bytes);
}

void MarkedText::append(const MarkedText& other, size_t from, size_t to) {
  const std::string_view bytes(other.bytes_);
  auto it = std::upper_bound(other.flips_.begin(), other.flips_.end(), from);
  bool foreign = ((it - other.flips_.begin()) & 1) != 0;
  while (from < to) {
    const size_t end = it == other.flips_.end() ? to : std::min<size_t>(*it++, to);
    append(bytes.substr(from, end - from), foreign);
    foreign = !foreign;
    from = end;
  }
}

void MarkedText::mark_all(bool foreign) {
  flips_.clear();
  if (foreign && !bytes_.empty()) flips_.push_back(0);
}

}  // namespace sharpi::jinja
