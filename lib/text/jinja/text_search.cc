// SPDX-License-Identifier: MIT
#include "text/jinja/text_search.h"

#include <algorithm>

namespace sharpi::jinja {

Status TextSearch::prepare(Heap* heap) {
  SHARPI_TRY(heap->work(text_.size()));
  if (needle_.size() > text_.size()) return Status::ok();
  SHARPI_TRY(heap->charge(needle_.size() * sizeof(uint32_t)));
  SHARPI_TRY(heap->work(needle_.size()));
  borders_.assign(needle_.size(), 0);
  for (size_t i = 1; i < needle_.size(); ++i) {
    borders_[i] = static_cast<uint32_t>(matched_with(borders_[i - 1], byte(i)));
  }
  return Status::ok();
}

size_t TextSearch::forward(size_t at) const {
  if (needle_.empty()) return at <= text_.size() ? at : text_.npos;
  if (needle_.size() > text_.size()) return text_.npos;
  size_t matched = 0;
  for (; at < text_.size(); ++at) {
    if (matched == 0 && text_[at] != needle_.front()) {
      at = text_.find(needle_.front(), at);
      if (at == text_.npos) break;
    }
    matched = matched_with(matched, text_[at]);
    if (matched == needle_.size()) return at + 1 - matched;
  }
  return text_.npos;
}

size_t TextSearch::backward(size_t at) const {
  at = std::min(at, text_.size());
  if (needle_.empty()) return at;
  if (needle_.size() > text_.size()) return text_.npos;
  size_t matched = 0;
  while (at > 0) {
    matched = matched_with(matched, text_[--at]);
    if (matched == needle_.size()) return at;
  }
  return text_.npos;
}

}  // namespace sharpi::jinja
