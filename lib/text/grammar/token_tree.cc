// SPDX-License-Identifier: MIT
#include "text/grammar/token_tree.h"

#include <algorithm>
#include <tuple>

namespace sharpi::grammar {

TokenTree::TokenTree(const Tokenizer& tokenizer) : n_vocab_(tokenizer.n_vocab()) {
  const std::vector<int32_t>& never = tokenizer.never_sample();
  std::vector<Token> tokens;
  path_ends_.assign(n_vocab_ + 1, 0);
  for (int32_t id = 0; static_cast<uint32_t>(id) < n_vocab_; ++id) {
    path_ends_[static_cast<size_t>(id) + 1] = static_cast<uint32_t>(bytes_.size());
    if (tokenizer.is_end_of_generation(id)) ends_.push_back(id);
    const TokenKind kind = tokenizer.kind(id);
    const bool is_never = std::binary_search(never.begin(), never.end(), id) ||
                          kind == TokenKind::kUnknown || kind == TokenKind::kUnused;
    if (is_never || tokenizer.is_end_of_generation(id)) continue;
    std::string path;
    if (!tokenizer.decode(id, true, &path).is_ok()) continue;
    // A vocabulary of bytes has a token for this one, too, which would pass for a control token's.
    if (path.find(static_cast<char>(kControl)) != path.npos) continue;
    if (kind == TokenKind::kControl) path.insert(path.begin(), static_cast<char>(kControl));
    if (path.empty() || path.size() > kMaxToken) continue;
    bytes_ += path;
    path_ends_[static_cast<size_t>(id) + 1] = static_cast<uint32_t>(bytes_.size());
    tokens.push_back({std::move(path), id});
  }
  std::sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) {
    return std::tie(a.path, a.id) < std::tie(b.path, b.id);
  });
  add(tokens);
}

void TokenTree::add(const std::vector<Token>& sorted) {
  std::vector<uint32_t> open;  // nodes from the root down to the last token's
  std::string_view last;
  for (const Token& token : sorted) {
    const std::string_view path = token.path;
    const auto [end, other] = std::mismatch(last.begin(), last.end(), path.begin(), path.end());
    const auto common = static_cast<size_t>(end - last.begin());
    for (; open.size() > common; open.pop_back()) {
      nodes_[open.back()].after = static_cast<uint32_t>(nodes_.size());
    }
    for (size_t i = common; i < path.size(); ++i) {
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<uint32_t>(ids_.size()), 0, static_cast<uint8_t>(path[i]),
                        static_cast<uint8_t>((i + 1) & 0xFF)});
    }
    if (nodes_[open.back()].n_tokens < UINT16_MAX) {
      ids_.push_back(token.id);
      ++nodes_[open.back()].n_tokens;
    }
    longest_ = std::max(longest_, static_cast<uint32_t>(path.size()));
    last = path;
  }
  for (const uint32_t node : open) nodes_[node].after = static_cast<uint32_t>(nodes_.size());
}

bool TokenTree::is_end(int32_t token) const {
  return std::binary_search(ends_.begin(), ends_.end(), token);
}

std::string_view TokenTree::path(int32_t token) const {
  const uint32_t begin = path_ends_[static_cast<size_t>(token)];
  return std::string_view(bytes_).substr(begin, path_ends_[static_cast<size_t>(token) + 1] - begin);
}

}  // namespace sharpi::grammar
