// SPDX-License-Identifier: MIT
#include "text/special_tokens.h"

#include <algorithm>

namespace sharpi {
namespace {

/// Texts are searched in blocks, so that what was found takes little memory.
constexpr size_t kBlockBytes = 4096;

/// The byte of a text at this depth of the automaton, which reads backwards.
unsigned char byte_at(std::string_view text, size_t depth) {
  return static_cast<unsigned char>(text[text.size() - 1 - depth]);
}

bool before(const TokenAutomaton::Entry& a, const TokenAutomaton::Entry& b) {
  if (a.text == b.text) return a.id < b.id;
  const auto less = [](char x, char y) {
    return static_cast<unsigned char>(x) < static_cast<unsigned char>(y);
  };
  return std::lexicographical_compare(a.text.rbegin(), a.text.rend(), b.text.rbegin(),
                                      b.text.rend(), less);
}

}  // namespace

TokenAutomaton::TokenAutomaton(std::vector<Entry> entries) {
  std::sort(entries.begin(), entries.end(), before);
  const auto same = [](const Entry& a, const Entry& b) { return a.text == b.text; };
  entries.erase(std::unique(entries.begin(), entries.end(), same), entries.end());
  if (entries.empty()) return;
  for (const Entry& e : entries) {
    n_bytes_.push_back(static_cast<uint32_t>(e.text.size()));
    ids_.push_back(e.id);
    longest_ = std::max(longest_, e.text.size());
  }
  build(entries);
  link();
}

/// The states level by level. Texts that agree in their last bytes stand side by side in `sorted`,
/// and are what a state stands for.
void TokenAutomaton::build(const std::vector<Entry>& sorted) {
  struct Range {
    uint32_t low, high;
  };
  std::vector<Range> level = {{0, static_cast<uint32_t>(sorted.size())}}, deeper;
  bytes_.push_back(0);
  states_.push_back({0, kStart, kNone});
  size_t first = 0;  // state of the level's first range
  for (size_t depth = 0; !level.empty(); ++depth) {
    deeper.clear();
    for (size_t i = 0; i < level.size(); ++i) {
      auto [low, high] = level[i];
      states_[first + i].first_child = static_cast<uint32_t>(first + level.size() + deeper.size());
      if (sorted[low].text.size() == depth) states_[first + i].match = low++;
      while (low < high) {
        const unsigned char byte = byte_at(sorted[low].text, depth);
        uint32_t end = low + 1;
        while (end < high && byte_at(sorted[end].text, depth) == byte) ++end;
        deeper.push_back({low, end});
        bytes_.push_back(byte);
        low = end;
      }
    }
    first += level.size();
    level.swap(deeper);
    states_.resize(first + level.size());
  }
  // The children of the last state end here.
  states_.push_back({static_cast<uint32_t>(first), kStart, kNone});
}

TokenAutomaton::State TokenAutomaton::child(State state, unsigned char byte) const {
  if (state == kStart) return roots_[byte];
  const auto begin = bytes_.begin() + states_[state].first_child;
  const auto end = bytes_.begin() + states_[state + 1].first_child;
  const auto it = std::lower_bound(begin, end, byte);
  return it != end && *it == byte ? static_cast<State>(it - bytes_.begin()) : kStart;
}

/// Where to go on when a state has no child for a byte: the longest part of what was read that is
/// a beginning (backwards) of a text as well.
void TokenAutomaton::link() {
  for (State s = states_[0].first_child; s < states_[1].first_child; ++s) roots_[bytes_[s]] = s;
  for (State parent = 0; parent + 1 < states_.size(); ++parent) {
    const State end = states_[parent + 1].first_child;
    for (State s = states_[parent].first_child; s < end; ++s) {
      if (parent != kStart) states_[s].fail = step(states_[parent].fail, bytes_[s]);
      if (states_[s].match == kNone) states_[s].match = states_[states_[s].fail].match;
    }
  }
}

TokenAutomaton::State TokenAutomaton::step(State state, unsigned char byte) const {
  for (;;) {
    const State next = child(state, byte);
    if (next != kStart || state == kStart) return next;
    state = states_[state].fail;
  }
}

SpecialTokens::SpecialTokens(const std::vector<Entry>& entries) {
  std::vector<TokenAutomaton::Entry> all, anywhere;
  for (const Entry& e : entries) {
    all.push_back({e.text, e.id});
    if (e.anywhere) anywhere.push_back(all.back());
  }
  all_ = TokenAutomaton(std::move(all));
  anywhere_ = TokenAutomaton(std::move(anywhere));
}

/// What begins in [from, the block's end) and lies in [begin, end), where it is longer than what
/// is known.
void SpecialTokens::Search::read(const TokenAutomaton& automaton, size_t from, size_t begin,
                                 size_t end) {
  if (automaton.empty()) return;
  end = std::min(end, block_end_ + automaton.longest());
  from = std::max(from, begin);
  TokenAutomaton::State state = TokenAutomaton::kStart;
  for (size_t at = end; at > from; --at) {
    state = automaton.step(state, static_cast<unsigned char>(text_[at - 1]));
    if (at > block_end_) continue;
    const uint32_t n = automaton.n_bytes(state);
    if (n > 0) found_.push_back({at - 1, n, automaton.id(state)});
  }
}

void SpecialTokens::Search::read_block() {
  found_.clear();
  block_end_ = std::min(block_begin_ + kBlockBytes, text_.size());
  size_t own = block_begin_;  // where text that is not foreign begins
  auto span = std::partition_point(foreign_.begin(), foreign_.end(),
                                   [own](const Span& s) { return s.end <= own; });
  while (own < block_end_) {
    const bool last = span == foreign_.end();
    const size_t end = last ? text_.size() : span->begin;
    if (end > own) read(tokens_.all_, block_begin_, own, end);
    own = last ? text_.size() : (span++)->end;
  }
  if (!foreign_.empty()) read(tokens_.anywhere_, block_begin_, block_begin_, text_.size());
  // The last place first; at one place the shortest first, so that the longest is taken first.
  std::sort(found_.begin(), found_.end(), [](const Match& a, const Match& b) {
    if (a.at != b.at) return a.at > b.at;
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.id > b.id;
  });
}

SpecialTokens::Match SpecialTokens::Search::next(size_t from) {
  for (;;) {
    while (!found_.empty() && found_.back().at < from) found_.pop_back();
    if (!found_.empty()) return found_.back();
    block_begin_ = std::max(from, block_end_);
    if (block_begin_ >= text_.size()) return {text_.size(), 0, -1};
    read_block();
  }
}

}  // namespace sharpi
