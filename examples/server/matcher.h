// SPDX-License-Identifier: MIT
// Walks a grammar byte by byte. States are sets of stacks of expressions; equal stacks and states
// are one, and a step that was taken once is looked up the next time. What is remembered is
// bounded. Thread rule: one thread an object.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar.h"

namespace server {

class Matcher {
 public:
  using State = uint32_t;
  /// Nothing that begins like this matches.
  static constexpr State kDead = 0;

  Matcher(Grammar grammar, Expr root);

  State start() const { return start_; }
  State step(State state, unsigned char byte) {
    const State known = (*rows_[state])[byte];
    return known != kUnknown ? known : take(state, byte);
  }
  State walk(State state, std::string_view text);
  /// What was walked so far matches.
  bool accepts(State state) const { return accepts_[state]; }
  /// ... and nothing longer does.
  bool is_final(State state) const { return accepts_[state] && stacks_[state].size() == 1; }
  size_t n_states() const { return stacks_.size(); }
  /// Forgets all states but this one, where there are many. Returns its new name.
  State tidy(State state);

 private:
  static constexpr State kUnknown = UINT32_MAX;
  static constexpr uint32_t kBottom = 0;  // the empty stack
  using Row = std::array<State, 256>;
  using Stacks = std::vector<uint32_t>;  // ascending
  struct Cell {
    Expr top;
    uint32_t rest;
  };

  State take(State state, unsigned char byte);
  State intern(const std::set<uint32_t>& stacks);
  uint32_t push(Expr top, uint32_t rest);
  void expand(uint32_t stack, std::set<uint32_t>* out, std::set<uint32_t>* seen);
  void clear();
  uint32_t copied(const std::vector<Cell>& from, uint32_t stack);

  Grammar grammar_;
  std::vector<Cell> cells_;
  std::unordered_map<uint64_t, uint32_t> known_cells_;
  std::vector<Stacks> stacks_;
  std::vector<std::unique_ptr<Row>> rows_;
  std::vector<bool> accepts_;
  std::map<Stacks, State> known_states_;
  State start_;
};

}  // namespace server
