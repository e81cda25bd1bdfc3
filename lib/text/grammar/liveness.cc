// SPDX-License-Identifier: MIT
// Whether a regular expression with both-and and not matches any string, which its form does not
// say; and expressions carried over from one object to another.
#include <algorithm>
#include <unordered_map>

#include "text/grammar/expressions.h"

namespace sharpi::grammar {

bool Expressions::is_live(Expr regular) {
  if (!nodes_[regular].boolean) return nodes_[regular].possible;
  const auto known = [&](Expr e) -> Live& {
    if (live_.size() <= e) live_.resize(nodes_.size(), Live::kUnknown);
    return live_[e];
  };
  if (known(regular) != Live::kUnknown) return known(regular) == Live::kYes;
  // A search for the end of a string. Strings of JSON end with a quote, so that is tried first.
  struct Place {
    Expr e;
    std::vector<Expr> next;
  };
  std::vector<Place> path;
  std::vector<Expr> seen;
  std::unordered_map<Expr, bool> is_seen;
  const auto visit = [&](Expr e) {
    Place place{e, {}};
    uint8_t class_of[256];
    classes(e, class_of);
    bool done[256] = {};
    for (uint32_t i = 0; i < 256 && !spent_; ++i) {
      const auto byte = static_cast<unsigned char>((i + 255) ^ 0xDD);  // '"' comes last
      if (done[class_of[byte]]) continue;
      done[class_of[byte]] = true;
      const Expr next = after(e, byte);
      if (next != kNothing) place.next.push_back(next);
    }
    seen.push_back(e);
    is_seen[e] = true;
    path.push_back(std::move(place));
  };
  visit(regular);
  while (!path.empty() && !spent_) {
    Place& top = path.back();
    const bool is_end = nodes_[top.e].accepts_empty || known(top.e) == Live::kYes;
    if (is_end) {
      for (const Place& place : path) known(place.e) = Live::kYes;
      return true;
    }
    if (top.next.empty()) {
      path.pop_back();
      continue;
    }
    const Expr next = top.next.back();
    top.next.pop_back();
    if (is_seen.contains(next) || known(next) == Live::kNo) continue;
    if (!nodes_[next].boolean && !nodes_[next].possible) continue;
    if (!nodes_[next].boolean) known(next) = Live::kYes;
    visit(next);
  }
  if (spent_) return false;
  for (const Expr e : seen) known(e) = Live::kNo;
  return false;
}

Expr Expressions::copy(const Expressions& other, Expr e, Expr shared) {
  std::vector<Expr> needed, to_do{e};
  std::unordered_map<Expr, Expr> names;
  const auto children_of = [&](Expr one, std::vector<Expr>* out) {
    const Node& node = other.nodes_[one];
    switch (node.kind) {
      case Kind::kEither:
      case Kind::kBoth:
        out->insert(out->end(), other.children(one), other.children(one) + node.b);
        return;
      case Kind::kSequence:
        out->push_back(node.b);
        out->push_back(node.a);
        return;
      case Kind::kNot:
      case Kind::kRepeat:
      case Kind::kTerminal:
        out->push_back(node.a);
        return;
      default:
        return;
    }
  };
  while (!to_do.empty()) {
    const Expr one = to_do.back();
    to_do.pop_back();
    if (one < shared || !names.try_emplace(one, kNothing).second) continue;
    needed.push_back(one);
    children_of(one, &to_do);
  }
  std::sort(needed.begin(), needed.end());  // parts before what they are parts of
  const auto named = [&](Expr old) { return old < shared ? old : names.at(old); };
  for (const Expr one : needed) {
    Node node = other.nodes_[one];
    std::vector<Expr> list;
    if (node.kind == Kind::kEither || node.kind == Kind::kBoth) {
      for (uint32_t i = 0; i < node.b; ++i) list.push_back(named(other.children(one)[i]));
      std::sort(list.begin(), list.end());
      names[one] = intern(node, list.data());
      continue;
    }
    const bool has_part = node.kind == Kind::kSequence || node.kind == Kind::kNot ||
                          node.kind == Kind::kRepeat || node.kind == Kind::kTerminal;
    if (has_part) node.a = named(node.a);
    if (node.kind == Kind::kSequence) node.b = named(node.b);
    names[one] = intern(node);
  }
  return named(e);
}

}  // namespace sharpi::grammar
