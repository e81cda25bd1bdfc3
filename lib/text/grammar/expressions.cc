// SPDX-License-Identifier: MIT
#include "text/grammar/expressions.h"

#include <algorithm>

namespace sharpi::grammar {

Expressions::Expressions() : slots_(1024) {
  nodes_.push_back({Kind::kNothing, false, false, false, 0, 0, 0, 0});
  nodes_.push_back({Kind::kEmpty, true, true, false, 0, 0, 0, 0});
}

bool Expressions::spend(uint64_t work) {
  if (work > work_left_) {
    work_left_ = 0;
    spent_ = true;
  } else {
    work_left_ -= work;
  }
  return !spent_;
}

uint64_t Expressions::memory() const {
  return nodes_.size() * (sizeof(Node) + 8) + lists_.size() * sizeof(Expr) +
         sets_.size() * 3 * sizeof(ByteSet);
}

uint64_t Expressions::hash(const Node& node, const Expr* children) const {
  uint64_t h = static_cast<uint64_t>(node.kind) * 0x9E3779B97F4A7C15u;
  const auto mix = [&h](uint64_t value) {
    h = (h ^ value) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
  };
  if (children != nullptr) {
    for (uint32_t i = 0; i < node.b; ++i) mix(children[i]);
  } else {
    mix(uint64_t{node.a} << 32 | node.b);
    mix(uint64_t{node.low} << 32 | node.high);
  }
  return h;
}

bool Expressions::same(const Node& a, const Node& b, const Expr* b_children) const {
  if (a.kind != b.kind) return false;
  if (b_children == nullptr) {
    return a.a == b.a && a.b == b.b && a.low == b.low && a.high == b.high;
  }
  return a.b == b.b && std::equal(b_children, b_children + b.b, lists_.data() + a.a);
}

void Expressions::grow() {
  std::vector<uint32_t> slots(slots_.size() * 2);
  const size_t mask = slots.size() - 1;
  for (const uint32_t slot : slots_) {
    if (slot == 0) continue;
    const Node& node = nodes_[slot - 1];
    const bool has_list = node.kind == Kind::kEither || node.kind == Kind::kBoth;
    size_t at = hash(node, has_list ? lists_.data() + node.a : nullptr) & mask;
    while (slots[at] != 0) at = (at + 1) & mask;
    slots[at] = slot;
  }
  slots_ = std::move(slots);
}

Expr Expressions::intern(const Node& node, const Expr* children) {
  if (!spend(1 + (children != nullptr ? node.b : 0))) return kNothing;
  const size_t mask = slots_.size() - 1;
  size_t at = hash(node, children) & mask;
  for (; slots_[at] != 0; at = (at + 1) & mask) {
    if (same(nodes_[slots_[at] - 1], node, children)) return slots_[at] - 1;
  }
  if (memory() > max_bytes_) {
    spent_ = true;
    return kNothing;
  }
  Node added = node;
  if (children != nullptr) {
    added.a = static_cast<Expr>(lists_.size());
    lists_.insert(lists_.end(), children, children + node.b);
  }
  added.possible = evaluate(added, &added.accepts_empty);
  nodes_.push_back(added);
  slots_[at] = static_cast<uint32_t>(nodes_.size());
  if (nodes_.size() * 2 > slots_.size()) grow();
  return static_cast<Expr>(nodes_.size() - 1);
}

// Whether a string matches, and whether the empty one does, from what is known of the parts.
bool Expressions::evaluate(const Node& node, bool* accepts_empty) const {
  const Node& a = node.kind == Kind::kSet || node.kind == Kind::kMultiples ? node : nodes_[node.a];
  bool any = false, all = true, any_empty = false, all_empty = true;
  if (node.kind == Kind::kEither || node.kind == Kind::kBoth) {
    for (uint32_t i = 0; i < node.b; ++i) {
      const Node& child = nodes_[lists_[node.a + i]];
      any |= child.possible;
      all &= child.possible;
      any_empty |= child.accepts_empty;
      all_empty &= child.accepts_empty;
    }
  }
  switch (node.kind) {
    case Kind::kNothing:
      return false;
    case Kind::kEmpty:
      return *accepts_empty = true;
    case Kind::kSet:
      return true;
    case Kind::kSequence:
      *accepts_empty = a.accepts_empty && nodes_[node.b].accepts_empty;
      return a.possible && nodes_[node.b].possible;
    case Kind::kEither:
      *accepts_empty = any_empty;
      return any;
    case Kind::kBoth:
      *accepts_empty = all_empty;
      return all;
    case Kind::kNot:
      *accepts_empty = !a.accepts_empty;
      return true;
    case Kind::kRepeat:
      *accepts_empty = node.low == 0 || a.accepts_empty;
      return node.low == 0 || a.possible;
    case Kind::kTerminal:
      *accepts_empty = a.accepts_empty;
      return a.possible;
    case Kind::kMultiples:
      *accepts_empty = node.high == 0;
      return true;
    case Kind::kRule: {
      const Expr body = bodies_[node.a];
      if (body == kUndefined || !settled_) return !settled_;
      *accepts_empty = nodes_[body].accepts_empty;
      return nodes_[body].possible;
    }
  }
  return false;
}

Expr Expressions::byte(unsigned char value) {
  ByteSet bytes;
  bytes.set(value);
  return set(bytes);
}

Expr Expressions::set(const ByteSet& bytes) {
  if (bytes.none()) return kNothing;
  const auto [found, is_new] = known_sets_.try_emplace(bytes, static_cast<uint32_t>(sets_.size()));
  if (is_new) sets_.push_back(bytes);
  Node node;
  node.kind = Kind::kSet;
  node.a = found->second;
  return intern(node);
}

Expr Expressions::bytes(std::string_view text) {
  Expr out = kEmpty;
  for (size_t i = text.size(); i-- > 0;) {
    out = sequence(byte(static_cast<unsigned char>(text[i])), out);
  }
  return out;
}

Expr Expressions::texts(std::vector<std::string_view> texts_given) {
  std::sort(texts_given.begin(), texts_given.end());
  texts_given.erase(std::unique(texts_given.begin(), texts_given.end()), texts_given.end());
  return texts(texts_given.data(), texts_given.size(), 0, 0);
}

// Of sorted texts that have their first `at` bytes in common: what may follow these.
Expr Expressions::texts(const std::string_view* first, size_t n, size_t at, int depth) {
  if (n == 0) return kNothing;
  if (n == 1 || depth > 200) {
    std::vector<Expr> all;
    for (size_t i = 0; i < n; ++i) all.push_back(bytes(first[i].substr(at)));
    return list(Kind::kEither, all);
  }
  size_t common = at;
  while (common < first[0].size() && common < first[n - 1].size() &&
         first[0][common] == first[n - 1][common]) {
    ++common;
  }
  std::vector<Expr> choices;
  size_t i = 0;
  if (first[0].size() == common) {
    choices.push_back(kEmpty);
    i = 1;
  }
  while (i < n && !spent_) {
    size_t end = i;
    while (end < n && first[end][common] == first[i][common]) ++end;
    choices.push_back(sequence(byte(static_cast<unsigned char>(first[i][common])),
                               texts(first + i, end - i, common + 1, depth + 1)));
    i = end;
  }
  return sequence(bytes(first[0].substr(at, common - at)), list(Kind::kEither, choices));
}

Expr Expressions::sequence(Expr first, Expr then) {
  if (first == kNothing || then == kNothing) return kNothing;
  if (first == kEmpty) return then;
  if (then == kEmpty) return first;
  // To the right, so that what comes next is always at hand.
  std::vector<Expr> parts;
  while (nodes_[first].kind == Kind::kSequence) {
    parts.push_back(nodes_[first].a);
    first = nodes_[first].b;
  }
  parts.push_back(first);
  for (size_t i = parts.size(); i-- > 0;) {
    Node node;
    node.kind = Kind::kSequence;
    node.a = parts[i];
    node.b = then;
    node.boolean = nodes_[node.a].boolean || nodes_[node.b].boolean;
    then = intern(node);
    if (spent_) return kNothing;
  }
  return then;
}

Expr Expressions::sequence(std::initializer_list<Expr> parts) {
  return sequence(std::vector<Expr>(parts));
}

Expr Expressions::sequence(const std::vector<Expr>& parts) {
  Expr out = kEmpty;
  for (size_t i = parts.size(); i-- > 0;) out = sequence(parts[i], out);
  return out;
}

Expr Expressions::repeat(Expr what, uint32_t low, uint32_t high) {
  if (high == 0 || what == kEmpty) return kEmpty;
  if (what == kNothing) return low == 0 ? kEmpty : kNothing;
  if (low == 1 && high == 1) return what;
  Node node;
  node.kind = Kind::kRepeat;
  node.boolean = nodes_[what].boolean;
  node.a = what;
  node.low = low;
  node.high = high;
  return intern(node);
}

Expr Expressions::complement(Expr a) {
  if (nodes_[a].kind == Kind::kNot) return nodes_[a].a;
  Node node;
  node.kind = Kind::kNot;
  node.boolean = true;
  node.a = a;
  return intern(node);
}

Expr Expressions::terminal(Expr regular) {
  if (regular <= kEmpty || nodes_[regular].kind == Kind::kTerminal) return regular;
  if (!is_live(regular)) return kNothing;
  Node node;
  node.kind = Kind::kTerminal;
  node.a = regular;
  return intern(node);
}

Expr Expressions::multiples(uint32_t divisor, uint32_t rest) {
  Node node;
  node.kind = Kind::kMultiples;
  node.low = divisor;
  node.high = rest;
  return intern(node);
}

Expr Expressions::rule() {
  Node node;
  node.kind = Kind::kRule;
  node.a = static_cast<Expr>(bodies_.size());
  bodies_.push_back(kUndefined);
  return intern(node);
}

// A sorted list of two or more, as it is.
Expr Expressions::list(Kind kind, const std::vector<Expr>& children) {
  if (children.empty()) return kNothing;
  if (children.size() == 1) return children[0];
  std::vector<Expr> sorted = children;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  if (sorted.size() == 1) return sorted[0];
  Node node;
  node.kind = kind;
  node.boolean = kind == Kind::kBoth;
  for (const Expr e : sorted) node.boolean |= nodes_[e].boolean;
  node.b = static_cast<Expr>(sorted.size());
  return intern(node, sorted.data());
}

// Children of lists of the same kind take their place.
void Expressions::gather(Kind kind, const std::vector<Expr>& from, std::vector<Expr>* out) const {
  for (const Expr e : from) {
    if (nodes_[e].kind != kind) {
      out->push_back(e);
      continue;
    }
    out->insert(out->end(), children(e), children(e) + nodes_[e].b);
  }
  std::sort(out->begin(), out->end());
  out->erase(std::unique(out->begin(), out->end()), out->end());
}

Expr Expressions::both(std::vector<Expr> parts) {
  std::vector<Expr> all;
  gather(Kind::kBoth, parts, &all);
  if (!all.empty() && all[0] == kNothing) return kNothing;
  std::erase_if(all, [&](Expr e) {  // everything
    return nodes_[e].kind == Kind::kNot && nodes_[e].a == kNothing;
  });
  if (all.empty()) return complement(kNothing);
  return list(Kind::kBoth, all);
}

bool Expressions::is_unit(Expr e) const {
  return std::find(units_.begin(), units_.end(), e) != units_.end();
}

}  // namespace sharpi::grammar
