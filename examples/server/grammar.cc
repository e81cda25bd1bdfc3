// SPDX-License-Identifier: MIT
#include "grammar.h"

#include <algorithm>
#include <stdexcept>

namespace server {

Grammar::Grammar() {
  nodes_.push_back({Kind::kEmpty});
}

Expr Grammar::intern(const Node& node) {
  const Key key{node.kind, node.a, node.b, node.low, node.high};
  const auto [found, is_new] = known_.try_emplace(key, static_cast<Expr>(nodes_.size()));
  if (is_new) nodes_.push_back(node);
  if (nodes_.size() > kMaxNodes && !sealed_) throw std::length_error("too many expressions");
  return found->second;
}

Expr Grammar::byte(unsigned char value) {
  ByteSet bytes;
  bytes.set(value);
  return set(bytes);
}

Expr Grammar::set(const ByteSet& bytes) {
  auto found = std::find(sets_.begin(), sets_.end(), bytes);
  if (found == sets_.end()) found = sets_.insert(sets_.end(), bytes);
  Node node{Kind::kSet};
  node.a = static_cast<Expr>(found - sets_.begin());
  return intern(node);
}

Expr Grammar::bytes(std::string_view text) {
  std::vector<Expr> parts;
  for (const char c : text) parts.push_back(byte(static_cast<unsigned char>(c)));
  return sequence(parts);
}

Expr Grammar::sequence(std::initializer_list<Expr> parts) {
  return sequence(std::vector<Expr>(parts));
}

Expr Grammar::sequence(const std::vector<Expr>& parts) {
  Expr out = empty();
  for (size_t i = parts.size(); i-- > 0;) {
    if (out == empty()) {
      out = parts[i];
    } else if (parts[i] != empty()) {
      Node node{Kind::kSequence};
      node.possible = nodes_[parts[i]].possible && nodes_[out].possible;
      node.a = parts[i];
      node.b = out;
      out = intern(node);
    }
  }
  return out;
}

// A balanced tree: what expands it goes down by calls.
Expr Grammar::either(const std::vector<Expr>& choices) {
  std::vector<Expr> level = choices;
  while (level.size() > 1) {
    std::vector<Expr> above;
    for (size_t i = 0; i + 1 < level.size(); i += 2) {
      Node node{Kind::kEither};
      node.possible = nodes_[level[i]].possible || nodes_[level[i + 1]].possible;
      node.a = level[i];
      node.b = level[i + 1];
      above.push_back(intern(node));
    }
    if (level.size() % 2 == 1) above.push_back(level.back());
    level = std::move(above);
  }
  return level.front();
}

Expr Grammar::repeat(Expr what, uint32_t low, uint32_t high) {
  if (high == 0) return empty();
  Node node{Kind::kRepeat};
  node.possible = low == 0 || nodes_[what].possible;
  node.a = what;
  node.low = low;
  node.high = high;
  return intern(node);
}

Expr Grammar::rule() {
  nodes_.push_back({Kind::kRule});
  return static_cast<Expr>(nodes_.size() - 1);
}

bool Grammar::settle(Expr root) {
  // Which expressions contain each, so that one that turns out possible is told to those alone:
  // going over all of them again would take a round for each link of a chain of rules.
  std::vector<std::vector<Expr>> users(nodes_.size());
  std::vector<Expr> to_do;
  for (Expr e = 0; e < nodes_.size(); ++e) {
    Node& node = nodes_[e];
    node.possible = node.kind <= Kind::kSet || (node.kind == Kind::kRepeat && node.low == 0);
    if (node.possible) to_do.push_back(e);
    if (node.kind <= Kind::kSet) continue;
    users[node.a].push_back(e);
    if (node.kind == Kind::kSequence || node.kind == Kind::kEither) users[node.b].push_back(e);
  }
  while (!to_do.empty()) {
    const Expr known = to_do.back();
    to_do.pop_back();
    for (const Expr user : users[known]) {
      Node& node = nodes_[user];
      if (node.possible) continue;
      node.possible =
          node.kind != Kind::kSequence || (nodes_[node.a].possible && nodes_[node.b].possible);
      if (node.possible) to_do.push_back(user);
    }
  }
  return nodes_[root].possible;
}

}  // namespace server
