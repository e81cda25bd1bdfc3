// SPDX-License-Identifier: MIT
#include "matcher.h"

#include <algorithm>

namespace server {
namespace {

// A state takes about a KiB: its row of steps.
constexpr size_t kMaxStates = 8192;
constexpr size_t kMaxCells = 262144;

}  // namespace

Matcher::Matcher(Grammar grammar, Expr root) : grammar_(std::move(grammar)) {
  grammar_.seal();
  clear();
  std::set<uint32_t> stacks, seen;
  expand(push(root, kBottom), &stacks, &seen);
  start_ = intern(stacks);
}

void Matcher::clear() {
  cells_.assign(1, {0, 0});
  known_cells_.clear();
  stacks_.assign(1, {});
  rows_.clear();
  rows_.push_back(std::make_unique<Row>());
  rows_[kDead]->fill(kDead);
  accepts_.assign(1, false);
  known_states_.clear();
  known_states_[{}] = kDead;
}

uint32_t Matcher::push(Expr top, uint32_t rest) {
  const uint64_t key = (uint64_t{top} << 32) | rest;
  const auto [found, is_new] = known_cells_.try_emplace(key, static_cast<uint32_t>(cells_.size()));
  if (is_new) cells_.push_back({top, rest});
  return found->second;
}

// Replaces the top until it is a set of bytes, or nothing is left.
void Matcher::expand(uint32_t stack, std::set<uint32_t>* out, std::set<uint32_t>* seen) {
  if (!seen->insert(stack).second) return;
  if (stack == kBottom) {
    out->insert(stack);
    return;
  }
  const Cell cell = cells_[stack];
  const Grammar::Node node = grammar_.node(cell.top);
  if (!node.possible) return;
  switch (node.kind) {
    case Grammar::Kind::kEmpty:
      expand(cell.rest, out, seen);
      return;
    case Grammar::Kind::kSet:
      out->insert(stack);
      return;
    case Grammar::Kind::kSequence:
      expand(push(node.a, push(node.b, cell.rest)), out, seen);
      return;
    case Grammar::Kind::kEither:
      expand(push(node.a, cell.rest), out, seen);
      expand(push(node.b, cell.rest), out, seen);
      return;
    case Grammar::Kind::kRule:
      expand(push(node.a, cell.rest), out, seen);
      return;
    case Grammar::Kind::kRepeat: {
      if (node.low == 0) expand(cell.rest, out, seen);
      const uint32_t high = node.high == Grammar::kAnyNumber ? node.high : node.high - 1;
      const Expr more = grammar_.repeat(node.a, node.low == 0 ? 0 : node.low - 1, high);
      expand(push(node.a, push(more, cell.rest)), out, seen);
      return;
    }
  }
}

Matcher::State Matcher::intern(const std::set<uint32_t>& stacks) {
  const Stacks key(stacks.begin(), stacks.end());
  const auto [found, is_new] = known_states_.try_emplace(key, static_cast<State>(stacks_.size()));
  if (is_new) {
    stacks_.push_back(key);
    rows_.push_back(std::make_unique<Row>());
    rows_.back()->fill(kUnknown);
    accepts_.push_back(!key.empty() && key.front() == kBottom);
  }
  return found->second;
}

Matcher::State Matcher::take(State state, unsigned char byte) {
  std::set<uint32_t> out, seen;
  const Stacks from = stacks_[state];
  for (const uint32_t stack : from) {
    if (stack == kBottom) continue;
    const Cell cell = cells_[stack];
    if (grammar_.has(cell.top, byte)) expand(cell.rest, &out, &seen);
  }
  const State to = intern(out);
  (*rows_[state])[byte] = to;
  return to;
}

Matcher::State Matcher::walk(State state, std::string_view text) {
  for (const char c : text) state = step(state, static_cast<unsigned char>(c));
  return state;
}

uint32_t Matcher::copied(const std::vector<Cell>& from, uint32_t stack) {
  std::vector<Expr> tops;
  for (; stack != kBottom; stack = from[stack].rest) tops.push_back(from[stack].top);
  uint32_t out = kBottom;
  for (size_t i = tops.size(); i-- > 0;) out = push(tops[i], out);
  return out;
}

Matcher::State Matcher::tidy(State state) {
  if (stacks_.size() < kMaxStates && cells_.size() < kMaxCells) return state;
  const Stacks stacks = stacks_[state];
  const std::vector<Cell> cells = std::move(cells_);
  clear();
  std::set<uint32_t> kept;
  for (const uint32_t stack : stacks) kept.insert(copied(cells, stack));
  return intern(kept);
}

}  // namespace server
