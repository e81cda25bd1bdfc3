// SPDX-License-Identifier: MIT
// What is known of expressions once every rule is defined: which match nothing, which the empty
// string, and whether a rule begins with itself.
#include <algorithm>

#include "text/grammar/expressions.h"

namespace sharpi::grammar {
namespace {

// Rules that begin with rules that begin with rules: each is a call within a call.
constexpr uint32_t kMaxChain = 64;

}  // namespace

// The parts that strings of an expression may begin with, one level down.
void Expressions::first_parts(Expr e, std::vector<Expr>* out) const {
  const Node& node = nodes_[e];
  switch (node.kind) {
    case Kind::kSequence:
      out->push_back(node.a);
      if (nodes_[node.a].accepts_empty) out->push_back(node.b);
      return;
    case Kind::kEither:
    case Kind::kBoth:
      out->insert(out->end(), children(e), children(e) + node.b);
      return;
    case Kind::kRepeat:
    case Kind::kNot:
      out->push_back(node.a);
      return;
    case Kind::kRule:
      out->push_back(bodies_[node.a]);
      return;
    case Kind::kNothing:
    case Kind::kEmpty:
    case Kind::kSet:
    case Kind::kTerminal:
    case Kind::kMultiples:
      return;
  }
}

// Each expression is looked at again when a part of it turned out to be possible, or to match the
// empty string, so that long chains of rules cost no more than their length.
void Expressions::settle_flags() {
  const auto n = static_cast<Expr>(nodes_.size());
  std::vector<std::vector<Expr>> users(n);
  for (Expr e = 2; e < n; ++e) {
    Node& node = nodes_[e];
    const bool is_leaf = node.kind == Kind::kSet || node.kind == Kind::kMultiples;
    if (is_leaf) continue;
    node.possible = node.accepts_empty = false;
    if (node.kind == Kind::kRule) {
      if (bodies_[node.a] != kUndefined) users[bodies_[node.a]].push_back(e);
    } else if (node.kind == Kind::kEither || node.kind == Kind::kBoth) {
      for (uint32_t i = 0; i < node.b; ++i) users[lists_[node.a + i]].push_back(e);
    } else {
      users[node.a].push_back(e);
      if (node.kind == Kind::kSequence) users[node.b].push_back(e);
    }
  }
  std::vector<Expr> to_do;
  const auto look_at = [&](Expr e) {
    bool accepts_empty = false;
    const bool possible = evaluate(nodes_[e], &accepts_empty);
    if (possible == nodes_[e].possible && accepts_empty == nodes_[e].accepts_empty) return;
    // What contains a complement is regular and has no rules, so it is final at its first look: its
    // parts have smaller numbers, and were looked at before.
    nodes_[e].possible = possible;
    nodes_[e].accepts_empty = accepts_empty;
    to_do.push_back(e);
  };
  for (Expr e = 2; e < n; ++e) look_at(e);
  while (!to_do.empty()) {
    const Expr known = to_do.back();
    to_do.pop_back();
    for (const Expr user : users[known]) look_at(user);
  }
}

bool Expressions::begins_with_itself(Expr* culprit) const {
  // Depth first over "begins with"; `height`: rules on the longest way down from here.
  const auto n = static_cast<Expr>(nodes_.size());
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> state(n, kNew);
  std::vector<uint32_t> height(n, 0);
  std::vector<Expr> stack, parts;
  for (Expr root = 2; root < n; ++root) {
    if (state[root] != kNew || nodes_[root].kind != Kind::kRule) continue;
    stack.push_back(root);
    while (!stack.empty()) {
      const Expr e = stack.back();
      parts.clear();
      first_parts(e, &parts);
      if (state[e] == kNew) {
        state[e] = kOpen;
        for (const Expr part : parts) {
          if (state[part] == kNew) stack.push_back(part);
          if (state[part] == kOpen && nodes_[part].possible) return *culprit = part, true;
        }
        continue;
      }
      stack.pop_back();
      if (state[e] == kDone) continue;
      state[e] = kDone;
      for (const Expr part : parts) height[e] = std::max(height[e], height[part]);
      if (nodes_[e].kind == Kind::kRule && ++height[e] > kMaxChain) return *culprit = e, true;
    }
  }
  return false;
}

// A rule that is a choice takes the choices of the rules among them over: chains of references are
// as long as somebody likes, and calls within calls are not.
bool Expressions::flatten_choices(Expr* culprit) {
  enum : uint8_t { kNew, kOpen, kDone };
  const auto n = static_cast<Expr>(nodes_.size());
  std::vector<uint8_t> state(n, kNew);
  std::vector<Expr> stack;
  const auto choices_of = [&](Expr rule) {
    const Expr whole = bodies_[nodes_[rule].a];
    if (nodes_[whole].kind != Kind::kEither) return std::vector<Expr>{whole};
    return std::vector<Expr>(children(whole), children(whole) + nodes_[whole].b);
  };
  const auto is_rule = [&](Expr e) { return nodes_[e].kind == Kind::kRule; };
  for (Expr root = 2; root < n; ++root) {
    if (is_rule(root) && state[root] == kNew) stack.push_back(root);
    while (!stack.empty()) {
      const Expr e = stack.back();
      std::vector<Expr> choices = choices_of(e);
      if (!spend(choices.size())) return true;
      if (state[e] == kNew) {
        state[e] = kOpen;
        for (const Expr one : choices) {
          if (!is_rule(one)) continue;
          if (state[one] == kOpen && nodes_[one].possible) return *culprit = one, false;
          if (state[one] == kNew) stack.push_back(one);
        }
        continue;
      }
      stack.pop_back();
      if (state[e] == kDone) continue;
      state[e] = kDone;
      if (std::none_of(choices.begin(), choices.end(), is_rule)) continue;
      for (Expr& one : choices) {
        if (is_rule(one)) one = bodies_[nodes_[one].a];
      }
      const Expr flat = either(std::move(choices));
      if (!spent_) bodies_[nodes_[e].a] = flat;
    }
  }
  return true;
}

bool Expressions::settle(Expr* culprit) {
  settled_ = true;
  settle_flags();
  return flatten_choices(culprit) && (spent_ || !begins_with_itself(culprit));
}

}  // namespace sharpi::grammar
