// SPDX-License-Identifier: MIT
// Walks a grammar byte by byte. A state is a set of stacks of expressions, as a graph: stacks with
// the same expression on top are one cell with all their rests, so that a state has at most as many
// cells as the grammar has expressions, however many ways there are to read what came so far. Equal
// cells and states are one, and a step that was taken once is looked up the next time. What is
// remembered is bounded. Thread rule: one thread an object.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
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
  bool is_final(State state) const { return accepts_[state] && cells_of_[state].size() == 1; }
  size_t n_states() const { return cells_of_.size(); }
  size_t n_cells() const { return cells_.size(); }
  /// Forgets all states but this one, where there are many. Returns its new name.
  State tidy(State state);

 private:
  static constexpr State kUnknown = UINT32_MAX;
  static constexpr uint32_t kBottom = 0;  // the cell of the empty stack
  using Row = std::array<State, 256>;
  using Cells = std::vector<uint32_t>;  // ascending
  struct Cell {
    Expr top;
    uint32_t rests;  // of rests_
  };
  // What may follow an expression of the step that is being taken: a cell, or, with this bit, what
  // an expression of the same step leaves to be matched after its first part.
  static constexpr uint32_t kPending = 1u << 31;
  struct Pending {
    Cells rests;  // of the expression itself
    bool resumed = false;
    uint32_t cell = kBottom;  // once the step is over
  };
  struct Item {
    Expr top;
    uint32_t rest;
  };

  State take(State state, unsigned char byte);
  void begin_step();
  void add(Expr top, uint32_t rest);
  void add_all(Expr top, const Cells& rests);
  void expand(Item item);
  void enter(Expr whole, Expr first, uint32_t rest);
  void resume(uint32_t rest);
  Expr remainder(Expr whole);
  State end_step();
  uint32_t finished(uint32_t rest);
  uint32_t push(Expr top, Cells rests);
  State intern(Cells cells);
  void clear();
  Cells copied(const std::vector<Cell>& cells, const std::vector<Cells>& rests, const Cells& roots);

  Grammar grammar_;
  std::vector<Cell> cells_;
  std::unordered_map<uint64_t, uint32_t> known_cells_;
  std::vector<Cells> rests_;
  std::map<Cells, uint32_t> known_rests_;
  std::vector<Cells> cells_of_;  // of each state
  std::vector<std::unique_ptr<Row>> rows_;
  std::vector<bool> accepts_;
  std::map<Cells, State> known_states_;
  // Of the step that is being taken.
  std::vector<Item> to_do_;
  std::unordered_set<uint64_t> seen_;
  std::unordered_set<uint32_t> resumed_;
  std::unordered_map<Expr, Pending> pending_;
  std::map<Expr, Cells> tops_;  // of sets of bytes
  bool accepted_ = false;
  State start_;
};

}  // namespace server
