// SPDX-License-Identifier: MIT
#include "matcher.h"

#include <algorithm>
#include <stdexcept>

namespace server {
namespace {

// A state takes about a KiB: its row of steps.
constexpr size_t kMaxStates = 8192;
constexpr size_t kMaxCells = 262144;

uint64_t pair_of(uint32_t a, uint32_t b) {
  return (uint64_t{a} << 32) | b;
}

}  // namespace

Matcher::Matcher(Grammar grammar, Expr root) : grammar_(std::move(grammar)) {
  grammar_.seal();
  clear();
  begin_step();
  add(root, kBottom);
  start_ = end_step();
}

void Matcher::clear() {
  cells_.assign(1, {0, 0});
  known_cells_.clear();
  rests_.assign(1, {});
  known_rests_.clear();
  cells_of_.assign(1, {});
  rows_.clear();
  rows_.push_back(std::make_unique<Row>());
  rows_[kDead]->fill(kDead);
  accepts_.assign(1, false);
  known_states_.clear();
  known_states_[{}] = kDead;
}

uint32_t Matcher::push(Expr top, Cells rests) {
  const auto [set, new_set] =
      known_rests_.try_emplace(std::move(rests), static_cast<uint32_t>(rests_.size()));
  if (new_set) rests_.push_back(set->first);
  const auto [found, is_new] =
      known_cells_.try_emplace(pair_of(top, set->second), static_cast<uint32_t>(cells_.size()));
  if (is_new) cells_.push_back({top, set->second});
  return found->second;
}

Matcher::State Matcher::intern(Cells cells) {
  const auto [found, is_new] =
      known_states_.try_emplace(std::move(cells), static_cast<State>(cells_of_.size()));
  if (is_new) {
    cells_of_.push_back(found->first);
    rows_.push_back(std::make_unique<Row>());
    rows_.back()->fill(kUnknown);
    accepts_.push_back(!found->first.empty() && found->first.front() == kBottom);
  }
  return found->second;
}

void Matcher::begin_step() {
  seen_.clear();
  resumed_.clear();
  pending_.clear();
  tops_.clear();
  accepted_ = false;
}

void Matcher::add(Expr top, uint32_t rest) {
  if (seen_.insert(pair_of(top, rest)).second) to_do_.push_back({top, rest});
}

void Matcher::add_all(Expr top, const Cells& rests) {
  for (const uint32_t rest : rests) add(top, rest);
}

// What is left of a sequence or a repetition once its first part was matched.
Expr Matcher::remainder(Expr whole) {
  const Grammar::Node node = grammar_.node(whole);
  if (node.kind == Grammar::Kind::kSequence) return node.b;
  const uint32_t high = node.high == Grammar::kAnyNumber ? node.high : node.high - 1;
  return grammar_.repeat(node.a, node.low == 0 ? 0 : node.low - 1, high);
}

// Matches the first part before what is left. That was perhaps matched by nothing already, with the
// rests that were known until now.
void Matcher::enter(Expr whole, Expr first, uint32_t rest) {
  Pending& pending = pending_[whole];
  pending.rests.push_back(rest);
  if (pending.resumed) add(remainder(whole), rest);
  add(first, whole | kPending);
}

// Goes on with what follows an expression that was matched.
void Matcher::resume(uint32_t rest) {
  if (!resumed_.insert(rest).second) return;
  if (rest == kBottom) {
    accepted_ = true;
  } else if ((rest & kPending) != 0) {
    const Expr whole = rest & ~kPending;
    Pending& pending = pending_[whole];
    pending.resumed = true;
    add_all(remainder(whole), pending.rests);
  } else {
    add_all(cells_[rest].top, rests_[cells_[rest].rests]);
  }
}

void Matcher::expand(Item item) {
  const Grammar::Node node = grammar_.node(item.top);
  if (!node.possible) return;
  switch (node.kind) {
    case Grammar::Kind::kEmpty:
      resume(item.rest);
      return;
    case Grammar::Kind::kSet:
      tops_[item.top].push_back(item.rest);
      return;
    case Grammar::Kind::kSequence:
      enter(item.top, node.a, item.rest);
      return;
    case Grammar::Kind::kEither:
      add(node.a, item.rest);
      add(node.b, item.rest);
      return;
    case Grammar::Kind::kRule:
      add(node.a, item.rest);
      return;
    case Grammar::Kind::kRepeat:
      if (node.low == 0) resume(item.rest);
      enter(item.top, node.a, item.rest);
      return;
  }
}

// The cell of what was pending, with all rests that the step found for it.
uint32_t Matcher::finished(uint32_t rest) {
  if ((rest & kPending) == 0) return rest;
  const Expr whole = rest & ~kPending;
  Pending& pending = pending_.at(whole);
  if (pending.cell != kBottom) return pending.cell;
  Cells rests;
  std::swap(rests, pending.rests);
  // The parts of JSON begin with bytes of their own before they contain themselves.
  if (rests.empty()) throw std::logic_error("an expression begins with itself");
  for (uint32_t& one : rests) one = finished(one);
  std::sort(rests.begin(), rests.end());
  rests.erase(std::unique(rests.begin(), rests.end()), rests.end());
  return pending.cell = push(remainder(whole), std::move(rests));
}

// Expands until every top is a set of bytes, or nothing is left.
Matcher::State Matcher::end_step() {
  while (!to_do_.empty()) {
    const Item item = to_do_.back();
    to_do_.pop_back();
    expand(item);
  }
  Cells out;
  if (accepted_) out.push_back(kBottom);
  for (auto& [top, rests] : tops_) {
    for (uint32_t& rest : rests) rest = finished(rest);
    std::sort(rests.begin(), rests.end());
    rests.erase(std::unique(rests.begin(), rests.end()), rests.end());
    out.push_back(push(top, std::move(rests)));
  }
  std::sort(out.begin(), out.end());
  return intern(std::move(out));
}

Matcher::State Matcher::take(State state, unsigned char byte) {
  begin_step();
  for (const uint32_t cell : cells_of_[state]) {
    if (cell == kBottom || !grammar_.has(cells_[cell].top, byte)) continue;
    for (const uint32_t rest : rests_[cells_[cell].rests]) resume(rest);
  }
  const State to = end_step();
  (*rows_[state])[byte] = to;
  return to;
}

Matcher::State Matcher::walk(State state, std::string_view text) {
  for (const char c : text) state = step(state, static_cast<unsigned char>(c));
  return state;
}

// These cells and all below them, each after those that it rests on.
Matcher::Cells Matcher::copied(const std::vector<Cell>& cells, const std::vector<Cells>& rests,
                               const Cells& roots) {
  std::unordered_map<uint32_t, uint32_t> names{{kBottom, kBottom}};
  const auto named = [&](const Cells& old) {
    Cells out;
    for (const uint32_t cell : old) out.push_back(names.at(cell));
    std::sort(out.begin(), out.end());
    return out;
  };
  std::vector<uint32_t> to_do = roots;
  while (!to_do.empty()) {
    const uint32_t cell = to_do.back();
    const size_t n = to_do.size();
    if (!names.contains(cell)) {
      for (const uint32_t rest : rests[cells[cell].rests]) {
        if (!names.contains(rest)) to_do.push_back(rest);
      }
    }
    if (to_do.size() != n) continue;  // comes again when these are named
    to_do.pop_back();
    if (!names.contains(cell)) {
      names[cell] = push(cells[cell].top, named(rests[cells[cell].rests]));
    }
  }
  return named(roots);
}

Matcher::State Matcher::tidy(State state) {
  if (cells_of_.size() < kMaxStates && cells_.size() < kMaxCells) return state;
  const Cells roots = cells_of_[state];
  const std::vector<Cell> cells = std::move(cells_);
  const std::vector<Cells> rests = std::move(rests_);
  clear();
  return intern(copied(cells, rests, roots));
}

}  // namespace server
