// SPDX-License-Identifier: MIT
#include "grammar.h"

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
  const auto [found, is_new] = known_sets_.try_emplace(bytes, static_cast<Expr>(sets_.size()));
  if (is_new) sets_.push_back(bytes);
  Node node{Kind::kSet};
  node.a = found->second;
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

bool Grammar::is_possible(const Node& node) const {
  switch (node.kind) {
    case Kind::kEmpty:
    case Kind::kSet:
      return true;
    case Kind::kSequence:
      return nodes_[node.a].possible && nodes_[node.b].possible;
    case Kind::kEither:
      return nodes_[node.a].possible || nodes_[node.b].possible;
    case Kind::kRepeat:
      return node.low == 0 || nodes_[node.a].possible;
    case Kind::kRule:
      return nodes_[node.a].possible;
  }
  return false;
}

bool Grammar::settle(Expr root) {
  // Which expressions contain each, so that one that turns out possible is told to those alone:
  // going over all of them again would take a round for each link of a chain of rules. What was
  // settled before stays as it is.
  const Expr first = n_settled_;
  n_settled_ = static_cast<Expr>(nodes_.size());
  std::vector<std::vector<Expr>> users(n_settled_ - first);
  for (Expr e = first; e < n_settled_; ++e) {
    Node& node = nodes_[e];
    node.possible = false;
    if (node.kind <= Kind::kSet) continue;
    if (node.a >= first) users[node.a - first].push_back(e);
    const bool is_pair = node.kind == Kind::kSequence || node.kind == Kind::kEither;
    if (is_pair && node.b >= first) users[node.b - first].push_back(e);
  }
  std::vector<Expr> to_do;
  const auto look_at = [&](Expr e) {
    if (nodes_[e].possible || !is_possible(nodes_[e])) return;
    nodes_[e].possible = true;
    to_do.push_back(e);
  };
  for (Expr e = first; e < n_settled_; ++e) look_at(e);
  while (!to_do.empty()) {
    const Expr known = to_do.back();
    to_do.pop_back();
    for (const Expr user : users[known - first]) look_at(user);
  }
  return nodes_[root].possible;
}

}  // namespace server
