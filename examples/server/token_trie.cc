// SPDX-License-Identifier: MIT
#include "token_trie.h"

#include <algorithm>

namespace server {
namespace {

void allow(std::vector<uint32_t>* mask, int32_t token) {
  (*mask)[static_cast<size_t>(token) / 32] |= 1u << (static_cast<uint32_t>(token) % 32);
}

}  // namespace

TokenTrie::TokenTrie(std::vector<Token> tokens, uint32_t n_vocab, std::vector<int32_t> ends)
    : n_words_((n_vocab + 31) / 32), ends_(std::move(ends)), paths_(n_vocab) {
  std::erase_if(tokens, [](const Token& t) { return t.path.empty() || t.path.size() > kMaxPath; });
  std::sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) {
    return std::tie(a.path, a.id) < std::tie(b.path, b.id);
  });
  std::vector<uint32_t> open;  // nodes from the root down to the last token's
  const std::string none;
  const std::string* last = &none;
  for (const Token& token : tokens) {
    const auto [end, other] =
        std::mismatch(last->begin(), last->end(), token.path.begin(), token.path.end());
    const auto common = static_cast<size_t>(end - last->begin());
    for (; open.size() > common; open.pop_back()) {
      nodes_[open.back()].after = static_cast<uint32_t>(nodes_.size());
    }
    for (size_t i = common; i < token.path.size(); ++i) {
      const auto at = static_cast<uint32_t>(ids_.size());
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back(
          {static_cast<unsigned char>(token.path[i]), static_cast<uint16_t>(i + 1), 0, at, at});
    }
    ids_.push_back(token.id);
    nodes_[open.back()].end_token = static_cast<uint32_t>(ids_.size());
    paths_[static_cast<size_t>(token.id)] = token.path;
    last = &token.path;
  }
  for (const uint32_t node : open) nodes_[node].after = static_cast<uint32_t>(nodes_.size());
}

std::vector<uint32_t> TokenTrie::mask(Matcher& matcher, Matcher::State state) const {
  std::vector<uint32_t> out(n_words_);
  std::vector<Matcher::State> states(kMaxPath + 1);
  states[0] = state;
  for (size_t i = 0; i < nodes_.size();) {
    const Node& node = nodes_[i];
    const Matcher::State next = matcher.step(states[node.depth - 1u], node.byte);
    if (next == Matcher::kDead) {
      i = node.after;
      continue;
    }
    states[node.depth] = next;
    for (uint32_t t = node.first_token; t < node.end_token; ++t) allow(&out, ids_[t]);
    ++i;
  }
  if (matcher.accepts(state)) {
    for (const int32_t token : ends_) allow(&out, token);
  }
  return out;
}

}  // namespace server
