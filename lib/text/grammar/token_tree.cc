// SPDX-License-Identifier: MIT
#include "text/grammar/token_tree.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "base/utf8.h"

namespace sharpi::grammar {
namespace {

// Subtrees of fewer nodes are walked through as fast.
constexpr uint32_t kWide = 16;

// Where a path stands within its characters.
struct Place {
  unsigned char lead = 0;
  uint32_t n_left = 0;  // bytes of the last character that are to come
  bool is_broken = false;
  bool begins = false;  // the last byte begins a character

  bool is_whole() const { return n_left == 0 && !is_broken; }
  Place behind(unsigned char byte) const {
    Place next = *this;
    next.begins = n_left == 0;
    if (next.begins) {
      const uint32_t n = utf8_bytes_from_lead(byte);
      next.lead = byte;
      next.n_left = n == 0 ? 0 : n - 1;
      next.is_broken = is_broken || n == 0;
      return next;
    }
    const bool is_second = n_left + 1 == utf8_bytes_from_lead(lead);
    next.is_broken |= is_second ? !utf8_second_fits(lead, byte) : (byte & 0xC0) != 0x80;
    --next.n_left;
    return next;
  }
};

}  // namespace

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
  find_characters();
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
      nodes_.push_back({0, static_cast<uint32_t>(ids_.size()), 0, 0, static_cast<uint8_t>(path[i]),
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

void TokenTree::find_characters() {
  std::vector<Place> places(kMaxToken + 1);
  std::vector<uint8_t> is_whole(nodes_.size()), begins(nodes_.size()), is_broken(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const uint32_t at = depth(nodes_[i]);
    // What marks a control token is before its characters.
    places[at] = nodes_[i].byte == kControl ? Place() : places[at - 1].behind(nodes_[i].byte);
    is_whole[i] = places[at].is_whole();
    begins[i] = places[at].begins;
    is_broken[i] = places[at].is_broken;
  }
  std::vector<std::bitset<256>> below(kMaxToken + 1);  // by depth, of the nodes behind this one
  for (size_t i = nodes_.size(); i-- > 0;) {
    Node& node = nodes_[i];
    const uint32_t at = depth(node);
    if (is_whole[i] && node.after - i > kWide && !below[at][kControl]) {
      characters_.push_back(below[at]);
      node.wide = static_cast<uint32_t>(characters_.size());
    }
    below[at - 1] |= below[at];
    below[at].reset();
    if (begins[i]) below[at - 1].set(node.byte);
    if (is_broken[i]) below[at - 1].set(kControl);
  }
}

bool TokenTree::is_end(int32_t token) const {
  return std::binary_search(ends_.begin(), ends_.end(), token);
}

std::string_view TokenTree::path(int32_t token) const {
  const uint32_t begin = path_ends_[static_cast<size_t>(token)];
  return std::string_view(bytes_).substr(begin, path_ends_[static_cast<size_t>(token) + 1] - begin);
}

}  // namespace sharpi::grammar
