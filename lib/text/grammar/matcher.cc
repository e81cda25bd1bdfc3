// SPDX-License-Identifier: MIT
#include <algorithm>

#include "text/grammar/grammar.h"

namespace sharpi::grammar {
namespace {

Progress progress_at(Automaton& automaton, Automaton::State state) {
  if (!automaton.accepts(state)) return Progress::kOpen;
  return automaton.is_final(state) ? Progress::kComplete : Progress::kMayEnd;
}

}  // namespace

Result<std::unique_ptr<Matcher>> Matcher::create(std::shared_ptr<const Grammar> grammar) {
  std::unique_ptr<Matcher> out(new Matcher(std::move(grammar)));
  out->automaton_ = out->grammar_->automaton();
  Automaton& automaton = *out->automaton_;
  const std::lock_guard lock(automaton.mutex);
  automaton.begin();
  out->state_ = automaton.state_of(out->grammar_->root());
  out->progress_ = progress_at(automaton, out->state_);
  SHARPI_TRY(automaton.end());
  return out;
}

// Leaves an automaton that is full.
Status Matcher::move_on() {
  {
    const std::lock_guard lock(automaton_->mutex);
    if (!automaton_->is_full()) return Status::ok();
  }
  const std::shared_ptr<Automaton> next = grammar_->automaton();
  if (next == automaton_) return Status::ok();
  // Held until its mutex is free again: this matcher may have been the last that was in it.
  const std::shared_ptr<Automaton> full = automaton_;
  const std::scoped_lock lock(full->mutex, next->mutex);
  next->begin();
  const Automaton::State state = next->adopt(*full, state_);
  SHARPI_TRY(next->end());
  state_ = state;
  automaton_ = next;
  return Status::ok();
}

Status Matcher::walk(std::string_view text, const char* what) {
  SHARPI_TRY(move_on());
  const std::lock_guard lock(automaton_->mutex);
  automaton_->begin();
  const Automaton::State state = ended_ ? Automaton::kDead : automaton_->walk(state_, text);
  Progress progress = Progress::kOpen;
  if (state != Automaton::kDead) progress = progress_at(*automaton_, state);
  SHARPI_TRY(automaton_->end());
  if (state == Automaton::kDead) {
    return Status::error(Code::kMismatch, "the grammar does not allow this %s here", what);
  }
  state_ = state;
  progress_ = progress;
  return Status::ok();
}

Status Matcher::accept(int32_t token) {
  const TokenTree& tree = *grammar_->vocabulary().tree;
  if (token < 0 || static_cast<uint32_t>(token) >= tree.n_vocab()) {
    return Status::error(Code::kInvalidArgument, "token %d is outside the vocabulary of %u", token,
                         tree.n_vocab());
  }
  if (tree.is_end(token)) {
    if (progress_ == Progress::kOpen || ended_) {
      return Status::error(Code::kMismatch, "the grammar does not allow the text to end here");
    }
    ended_ = true;
    progress_ = Progress::kComplete;
    return Status::ok();
  }
  const std::string_view path = tree.path(token);
  if (path.empty()) {
    return Status::error(Code::kMismatch, "token %d adds no text, so no grammar allows it", token);
  }
  return walk(path, "token");
}

Status Matcher::accept_text(std::string_view text) {
  return walk(text, "text");
}

Status Matcher::mask(uint32_t* out) {
  SHARPI_TRY(move_on());
  const std::lock_guard lock(automaton_->mutex);
  automaton_->begin();
  if (ended_) {
    std::fill(out, out + grammar_->vocabulary().tree->n_words(), 0u);
    return Status::ok();
  }
  automaton_->mask(state_, out);
  return automaton_->end();
}

Status Matcher::forced(size_t max_bytes, std::string* out) {
  out->clear();
  SHARPI_TRY(move_on());
  const std::lock_guard lock(automaton_->mutex);
  automaton_->begin();
  Automaton::State state = ended_ ? Automaton::kDead : state_;
  while (state != Automaton::kDead && out->size() < max_bytes && !automaton_->accepts(state)) {
    int only = -1;
    Automaton::State next = Automaton::kDead;
    for (int byte = 0; byte < 256 && only != 256; ++byte) {
      const Automaton::State to = automaton_->step(state, static_cast<unsigned char>(byte));
      if (to == Automaton::kDead) continue;
      only = only < 0 ? byte : 256;
      next = to;
    }
    if (only < 0 || only == 256) break;
    out->push_back(static_cast<char>(only));
    state = next;
  }
  return automaton_->end();
}

}  // namespace sharpi::grammar
