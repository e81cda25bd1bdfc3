// SPDX-License-Identifier: MIT
// What one answer has to match, followed token by token: its masks, made while the model computes.
// A model that thinks first is left alone until it has finished thinking.
// Thread rule: one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine.h"
#include "grammar.h"
#include "matcher.h"
#include "token_trie.h"

namespace server {

class Constraint {
 public:
  /// @param prompt_end the last tokens of the prompt as text: it may have opened thoughts.
  Constraint(const Engine& engine, Grammar grammar, Expr root, std::string prompt_end);

  /// The bits of the tokens that may come next; null = all may.
  const std::vector<uint32_t>* mask();
  /// Makes the mask that the next draw needs.
  void prepare() { mask(); }
  bool is_prepared() const;
  /// The token was drawn. @param text what it added.
  void accept(int32_t token, const std::string& text);
  /// The answer is whole, and nothing may follow.
  bool complete() const { return active_ && matcher_.is_final(state_); }

 private:
  bool thinks() const;

  const TokenTrie& trie_;
  Matcher matcher_;
  Matcher::State state_;
  const std::string prompt_end_;
  std::string thoughts_;
  bool active_;
  std::unordered_map<Matcher::State, std::vector<uint32_t>> masks_;
};

}  // namespace server
