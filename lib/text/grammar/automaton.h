// SPDX-License-Identifier: MIT
// A grammar walked byte by byte. A state is the expression of all that may still come; states,
// steps and masks are made when they are first needed, and remembered. What is remembered is
// bounded: once is_full(), states move to a new automaton. Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "text/grammar/expressions.h"
#include "text/grammar/token_masks.h"
#include "text/grammar/token_tree.h"

namespace sharpi::grammar {

class Automaton {
 public:
  using State = uint32_t;
  /// Nothing that begins like this matches.
  static constexpr State kDead = 0;

  /// `compiled` is settled; a copy of it grows here.
  Automaton(const Expressions& compiled, std::shared_ptr<const TokenTree> tree,
            std::shared_ptr<SharedMasks> shared);

  /// Work that the calls until the next begin() may take. kDoesNotFit from end(): it was too
  /// little, and states and masks that came out since mean nothing.
  void begin();
  Status end();

  State state_of(Expr e);
  State step(State state, unsigned char byte) {
    const State known = states_[state]->next[byte];
    return known != kUnknown ? known : take(state, byte);
  }
  State walk(State state, std::string_view text);
  Expr expression(State state) const { return states_[state]->expression; }
  /// What was walked so far matches.
  bool accepts(State state) const { return states_[state]->accepts; }
  /// ... and nothing longer does.
  bool is_final(State state);
  /// Writes one bit for each token that may come next, ends of generation among them where the
  /// state accepts. pre: n_words() words.
  void mask(State state, uint32_t* out);

  bool is_full() const;
  /// A state of another automaton of the same grammar.
  State adopt(const Automaton& other, State state);
  size_t n_states() const { return states_.size(); }

  std::mutex mutex;  // for whoever shares this automaton

 private:
  static constexpr State kUnknown = UINT32_MAX;
  struct Row {
    std::array<State, 256> next;
    std::array<uint8_t, 256> class_of;
    ByteSet asked, loops;  // see loops_over()
    Expr expression;
    bool accepts;
  };
  State take(State state, unsigned char byte);
  bool returns_behind(State state, unsigned char lead);
  bool loops_over(State state, const ByteSet& leads);
  template <class Visit, class VisitWhole>
  void walk_tree(uint32_t begin, uint32_t end, State from, Visit&& visit, VisitWhole&& visit_whole);
  void add_choice(Expr choice, std::vector<Expr>* plain, uint32_t* out);
  void add_subtree(uint32_t node, State from, uint32_t* out);
  bool add_counted(Expr terminal, Expr then, uint32_t* out);
  std::shared_ptr<const CountedTokens> counted(Expr unit, Expr then);
  std::shared_ptr<const CountedTokens> count_tokens(Expr unit, Expr then);
  std::shared_ptr<const TerminalMask> terminal_mask(Expr terminal);

  Expressions expressions_;
  const Expr n_compiled_;
  std::shared_ptr<const TokenTree> tree_;
  std::shared_ptr<SharedMasks> shared_;
  std::vector<std::unique_ptr<Row>> states_;
  std::vector<State> state_of_;  // by expression
  std::unordered_map<State, std::vector<uint32_t>> masks_;
  std::unordered_map<Expr, std::shared_ptr<const TerminalMask>> terminal_masks_;
  std::unordered_map<uint64_t, std::shared_ptr<const CountedTokens>> counted_;
  uint64_t mask_bytes_ = 0;
};

}  // namespace sharpi::grammar
