// SPDX-License-Identifier: MIT
// What generated text has to match, and how far a text has come: compiled grammars over the tokens
// of a vocabulary, and matchers that follow them and give the tokens that may come next.
// Thread rule: Vocabulary and Grammar: any thread. Matcher: one thread an object, but those of one
// grammar on as many threads as there are.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/grammar/automaton.h"
#include "text/grammar/token_masks.h"
#include "text/grammar/token_tree.h"

namespace sharpi::grammar {

/// The tokens of a model, as all of its grammars need them.
struct Vocabulary {
  explicit Vocabulary(const Tokenizer& tokenizer);
  std::shared_ptr<const TokenTree> tree;
  std::shared_ptr<SharedMasks> masks;
};

enum class GrammarKind : uint32_t { kAny = 0, kJsonSchema = 1, kRegex = 2, kGbnf = 3 };

struct GrammarRequest {
  GrammarKind kind = GrammarKind::kAny;
  std::string_view text;
  bool lenient = false;  // what cannot be enforced is noted instead of refused
  // Calls of functions, beside the text or in its place.
  std::string_view tools;          // a JSON array; empty: none
  std::string_view tool;           // the one to be called; empty: any
  bool must_call = false;          // at least one call, and nothing else
  bool single_call = false;        // at most one
  std::string_view chat_template;  // of the model: how it writes calls of its own accord
};

class Grammar {
 public:
  /// kInvalidArgument: malformed; kUnsupported names what cannot be enforced; kDoesNotFit: too
  /// much work or memory.
  static Result<std::shared_ptr<const Grammar>> compile(
      std::shared_ptr<const Vocabulary> vocabulary, const GrammarRequest& request);

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  const std::vector<std::string>& notes() const { return notes_; }
  Expr root() const { return root_; }
  /// The automaton that matchers share now; a fresh one where the last is full.
  std::shared_ptr<Automaton> automaton() const;

 private:
  Grammar() = default;
  Status build(const GrammarRequest& request);

  std::shared_ptr<const Vocabulary> vocabulary_;
  Expressions expressions_;
  Expr root_ = 0;
  std::vector<std::string> notes_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Automaton> automaton_;
};

enum class Progress : uint32_t {
  kOpen = 0,      // more has to come
  kMayEnd = 1,    // it matches, and more may come
  kComplete = 2,  // it matches, and nothing may follow
};

class Matcher {
 public:
  static Result<std::unique_ptr<Matcher>> create(std::shared_ptr<const Grammar> grammar);
  std::unique_ptr<Matcher> clone() const { return std::unique_ptr<Matcher>(new Matcher(*this)); }

  const Grammar& grammar() const { return *grammar_; }
  /// kMismatch: the token may not come next. Whatever fails leaves the matcher as it was.
  Status accept(int32_t token);
  Status accept_text(std::string_view text);
  /// pre: n_words() words. Allocates what it remembers.
  Status mask(uint32_t* out);
  Progress progress() const { return progress_; }
  /// The text that has to come next, whatever the tokens: as far as there is no choice.
  Status forced(size_t max_bytes, std::string* out);

 private:
  explicit Matcher(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {}
  Matcher(const Matcher&) = default;
  Status move_on();
  Status walk(std::string_view text, const char* what);

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<Automaton> automaton_;
  Automaton::State state_ = Automaton::kDead;
  Progress progress_ = Progress::kOpen;
  bool ended_ = false;  // a token that ends the generation was accepted
};

}  // namespace sharpi::grammar
