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
  for (Node& node : nodes_) node.possible = node.kind <= Kind::kSet;
  for (bool changed = true; changed;) {
    changed = false;
    for (Node& node : nodes_) {
      if (node.possible) continue;
      switch (node.kind) {
        case Kind::kEmpty:
        case Kind::kSet:
          break;
        case Kind::kSequence:
          node.possible = nodes_[node.a].possible && nodes_[node.b].possible;
          break;
        case Kind::kEither:
          node.possible = nodes_[node.a].possible || nodes_[node.b].possible;
          break;
        case Kind::kRepeat:
          node.possible = node.low == 0 || nodes_[node.a].possible;
          break;
        case Kind::kRule:
          node.possible = nodes_[node.a].possible;
          break;
      }
      changed = changed || node.possible;
    }
  }
  return nodes_[root].possible;
}

}  // namespace server
