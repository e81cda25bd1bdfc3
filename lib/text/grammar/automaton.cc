// SPDX-License-Identifier: MIT
#include "text/grammar/automaton.h"

#include <algorithm>

#include "base/utf8.h"

namespace sharpi::grammar {
namespace {

using ExprKind = Expressions::Kind;

// A call takes tens of milliseconds at most. What is remembered: about 30 MB.
constexpr uint64_t kCallWork = uint64_t{1} << 19;
constexpr size_t kMaxStates = 8192;
constexpr uint64_t kMaxExpressionBytes = uint64_t{12} << 20;
constexpr uint64_t kMaxMaskBytes = uint64_t{8} << 20;
constexpr size_t kMaxMasks = 192;
// A call may go beyond these before the next one begins anew.
constexpr uint64_t kHardExpressionBytes = uint64_t{64} << 20;

// Tokens of fewer units first, those of the same number in their order.
void add_by_count(const std::vector<std::vector<int32_t>>& by_count, uint32_t n_words,
                  CountedTokens* out) {
  out->bits.assign(n_words, 0);
  for (const auto& tokens : by_count) {
    if (&tokens != by_count.data()) {
      out->n_up_to.push_back(static_cast<uint32_t>(out->tokens.size()));
    }
    out->tokens.insert(out->tokens.end(), tokens.begin(), tokens.end());
    for (const int32_t token : tokens) allow_token(out->bits.data(), static_cast<uint32_t>(token));
  }
}

}  // namespace

Automaton::Automaton(const Expressions& compiled, std::shared_ptr<const TokenTree> tree,
                     std::shared_ptr<SharedMasks> shared)
    : expressions_(compiled),
      n_compiled_(static_cast<Expr>(compiled.size())),
      tree_(std::move(tree)),
      shared_(std::move(shared)) {
  begin();
  states_.push_back(std::make_unique<Row>());
  states_[kDead]->next.fill(kDead);
  states_[kDead]->expression = Expressions::kNothing;
  states_[kDead]->accepts = false;
  state_of_.assign(1, kDead);
}

void Automaton::begin() {
  expressions_.set_limits(kCallWork, std::max(kHardExpressionBytes, 2 * expressions_.memory()));
}

Status Automaton::end() {
  if (!expressions_.is_spent()) return Status::ok();
  return Status::error(Code::kDoesNotFit,
                       "the grammar takes too much work for one token: it has too many ways to go "
                       "on at once");
}

bool Automaton::is_full() const {
  return states_.size() > kMaxStates ||
         (expressions_.memory() > kMaxExpressionBytes && expressions_.size() > 2 * n_compiled_) ||
         mask_bytes_ > kMaxMaskBytes;
}

Automaton::State Automaton::state_of(Expr e) {
  if (state_of_.size() <= e) state_of_.resize(expressions_.size(), kUnknown);
  if (state_of_[e] != kUnknown) return state_of_[e];
  auto row = std::make_unique<Row>();
  row->next.fill(kUnknown);
  row->expression = e;
  row->accepts = expressions_.node(e).accepts_empty;
  expressions_.classes(e, row->class_of.data());
  expressions_.spend(8);
  state_of_[e] = static_cast<State>(states_.size());
  states_.push_back(std::move(row));
  return state_of_[e];
}

Automaton::State Automaton::take(State state, unsigned char byte) {
  Row& row = *states_[state];
  Expr next = expressions_.after(row.expression, byte);
  if (expressions_.node(next).boolean && !expressions_.is_live(next)) next = Expressions::kNothing;
  if (!expressions_.node(next).possible) next = Expressions::kNothing;
  if (expressions_.is_spent()) return kDead;
  const State to = state_of(next);
  const uint8_t its_class = row.class_of[byte];
  for (size_t b = 0; b < 256; ++b) {
    if (row.class_of[b] == its_class) row.next[b] = to;
  }
  return to;
}

Automaton::State Automaton::walk(State state, std::string_view text) {
  for (const char c : text) state = step(state, static_cast<unsigned char>(c));
  return state;
}

bool Automaton::is_final(State state) {
  if (!accepts(state)) return false;
  if (expression(state) == Expressions::kEmpty) return true;
  for (uint32_t b = 0; b < 256; ++b) {
    if (step(state, static_cast<unsigned char>(b)) != kDead) return false;
  }
  return true;
}

Automaton::State Automaton::adopt(const Automaton& other, State state) {
  return state_of(expressions_.copy(other.expressions_, other.expression(state), n_compiled_));
}

// Every character that begins with `lead` leads from a state back to it.
bool Automaton::returns_behind(State state, unsigned char lead) {
  State next = step(state, lead);
  const uint32_t n = utf8_bytes_from_lead(lead);
  if (n == 0 || next == kDead) return false;
  for (uint32_t i = 1; i < n; ++i) {
    State to = kUnknown;
    for (uint32_t byte = 0x80; byte < 0xC0; ++byte) {
      const auto follower = static_cast<unsigned char>(byte);
      if (i == 1 && !utf8_second_fits(lead, follower)) continue;
      const State behind = step(next, follower);
      if (behind == kDead || (to != kUnknown && behind != to)) return false;
      to = behind;
    }
    next = to;
  }
  return next == state;
}

// The same of all characters that begin with one of these. Found out once for a state and a byte.
bool Automaton::loops_over(State state, const ByteSet& leads) {
  Row& row = *states_[state];
  if ((leads & row.asked & ~row.loops).any()) return false;
  const ByteSet unknown = leads & ~row.asked;
  if (unknown.none()) return true;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (!unknown[byte]) continue;
    const bool returns = returns_behind(state, static_cast<unsigned char>(byte));
    if (expressions_.is_spent()) return false;
    row.asked.set(byte);
    row.loops.set(byte, returns);
    if (!returns) return false;
  }
  return true;
}

// Visits the nodes [begin, end) that do not lead to kDead, which begin at the same depth. Behind a
// node all of whose subtree leads back to its state, the subtree may be dealt with as a whole
// (true), or is walked through as well.
template <class Visit, class VisitWhole>
void Automaton::walk_tree(uint32_t begin, uint32_t end, State from, Visit&& visit,
                          VisitWhole&& visit_whole) {
  if (begin >= end || from == kDead) return;
  const TokenTree::Node* nodes = tree_->nodes().data();
  const uint32_t above = TokenTree::depth(nodes[begin]) - 1;
  std::array<State, TokenTree::kMaxToken + 1> states;
  states[0] = from;
  uint32_t n_visited = 0;
  for (uint32_t i = begin; i < end; ++n_visited) {
    const TokenTree::Node& node = nodes[i];
    const uint32_t depth = TokenTree::depth(node) - above;
    const State next = step(states[depth - 1], node.byte);
    if (next == kDead) {
      if (expressions_.is_spent()) break;
      i = node.after;
      continue;
    }
    states[depth] = next;
    visit(i, depth, next);
    const bool is_whole = node.wide != 0 && loops_over(next, tree_->characters_below(node)) &&
                          visit_whole(i, depth, next);
    i = is_whole ? node.after : i + 1;
  }
  expressions_.spend(n_visited / 16);
}

void Automaton::add_subtree(uint32_t node, State from, uint32_t* out) {
  const auto& nodes = tree_->nodes();
  const int32_t* ids = tree_->ids().data();
  const auto add = [&](uint32_t first, uint32_t last) {
    for (uint32_t t = first; t < last; ++t) allow_token(out, static_cast<uint32_t>(ids[t]));
  };
  const uint32_t begin = node == UINT32_MAX ? 0 : node + 1;
  const uint32_t end = node == UINT32_MAX ? static_cast<uint32_t>(nodes.size()) : nodes[node].after;
  walk_tree(
      begin, end, from,
      [&](uint32_t i, uint32_t, State) {
        add(nodes[i].first_token, nodes[i].first_token + nodes[i].n_tokens);
      },
      [&](uint32_t i, uint32_t, State) {
        add(nodes[i].first_token + nodes[i].n_tokens, tree_->end_of_tokens(nodes[i]));
        return true;
      });
}

std::shared_ptr<const TerminalMask> Automaton::terminal_mask(Expr terminal) {
  const auto known = terminal_masks_.find(terminal);
  if (known != terminal_masks_.end()) return known->second;
  auto made = std::make_shared<TerminalMask>();
  const auto& nodes = tree_->nodes();
  const auto n_nodes = static_cast<uint32_t>(nodes.size());
  made->bits.assign(tree_->n_words(), 0);
  const auto add = [&](uint32_t first, uint32_t last) {
    for (uint32_t t = first; t < last; ++t) {
      const int32_t token = tree_->ids()[t];
      allow_token(made->bits.data(), static_cast<uint32_t>(token));
      if (made->tokens.size() <= tree_->n_words()) made->tokens.push_back(token);
    }
  };
  walk_tree(
      0, n_nodes, state_of(terminal),
      [&](uint32_t i, uint32_t, State state) {
        add(nodes[i].first_token, nodes[i].first_token + nodes[i].n_tokens);
        if (accepts(state) && nodes[i].after > i + 1) made->exits.push_back(i);
      },
      [&](uint32_t i, uint32_t, State) {
        // Its exits lead to none but these tokens.
        add(nodes[i].first_token + nodes[i].n_tokens, tree_->end_of_tokens(nodes[i]));
        return true;
      });
  if (expressions_.is_spent()) return made;
  if (made->tokens.size() > tree_->n_words()) {
    made->tokens.clear();
  } else {
    made->bits = {};
  }
  made->tokens.shrink_to_fit();
  mask_bytes_ += made->memory();
  terminal_masks_[terminal] = made;
  return made;
}

std::shared_ptr<const CountedTokens> Automaton::count_tokens(Expr unit, Expr then) {
  auto made = std::make_shared<CountedTokens>();
  const auto& nodes = tree_->nodes();
  const Expr whole = expressions_.sequence(expressions_.any_number(unit), then);
  const State among = state_of(whole);
  const ByteSet begins = expressions_.first_bytes(unit);
  struct Place {
    uint32_t count = 0;
    bool closing = false;
    State state = kDead;
  };
  std::array<Place, TokenTree::kMaxToken + 1> places;
  places[0].state = among;
  std::vector<std::vector<int32_t>> inside;  // by the number of their units
  const auto add = [&](const TokenTree::Node& node, const Place& place) {
    if (node.n_tokens == 0) return;
    if (inside.size() <= place.count) inside.resize(place.count + 1);
    for (uint32_t t = 0; t < node.n_tokens; ++t) {
      const int32_t token = tree_->ids()[node.first_token + t];
      if (place.closing) {
        made->closing.push_back({place.count, static_cast<uint32_t>(token)});
      } else {
        inside[place.count].push_back(token);
      }
    }
  };
  const auto n_nodes = static_cast<uint32_t>(nodes.size());
  walk_tree(
      0, n_nodes, among,
      [&](uint32_t i, uint32_t depth, State state) {
        Place place = places[depth - 1];
        if (place.state == among && !place.closing) {
          const bool is_unit = begins[nodes[i].byte];
          place.count += is_unit ? 1 : 0;
          place.closing = !is_unit;
        }
        place.state = state;
        places[depth] = place;
        add(nodes[i], place);
        if (accepts(state) && nodes[i].after > i + 1) made->exits.push_back({place.count, i});
      },
      [&](uint32_t i, uint32_t depth, State state) {
        if (state != among || places[depth].closing) return false;
        if ((tree_->characters_below(nodes[i]) & ~begins).any()) return false;
        // Each of its characters is a unit.
        for (uint32_t j = i + 1; j < nodes[i].after; ++j) {
          const uint32_t at = depth + TokenTree::depth(nodes[j]) - TokenTree::depth(nodes[i]);
          places[at].count = places[at - 1].count + ((nodes[j].byte & 0xC0) != 0x80 ? 1 : 0);
          places[at].closing = false;
          add(nodes[j], places[at]);
        }
        return true;
      });
  add_by_count(inside, tree_->n_words(), made.get());
  return made;
}

std::shared_ptr<const CountedTokens> Automaton::counted(Expr unit, Expr then) {
  const uint64_t key = uint64_t{unit} << 32 | then;
  const bool common = shared_->is_common(unit, then);
  auto found = common ? shared_->find(key) : nullptr;
  if (found != nullptr) return found;
  const auto known = counted_.find(key);
  if (known != counted_.end()) return known->second;
  found = count_tokens(unit, then);
  if (expressions_.is_spent()) return found;
  if (common) {
    shared_->keep(key, found);
  } else {
    mask_bytes_ += found->memory();
    counted_[key] = found;
  }
  return found;
}

// A repetition of units, and what cannot be taken for one of them: true, it was dealt with.
bool Automaton::add_counted(Expr terminal, Expr then, uint32_t* out) {
  const Expressions::Node whole = expressions_.node(terminal);
  if (whole.kind != ExprKind::kSequence) return false;
  const Expressions::Node units = expressions_.node(whole.a);
  if (units.kind != ExprKind::kRepeat || !expressions_.is_unit(units.a)) return false;
  if (expressions_.node(whole.b).accepts_empty || expressions_.node(whole.b).boolean) return false;
  if ((expressions_.first_bytes(units.a) & expressions_.first_bytes(whole.b)).any()) return false;
  // Without bounds there is nothing to count, but what all grammars share is known.
  const bool is_bounded = units.low != 0 || units.high != Expressions::kAnyNumber;
  if (!is_bounded && !shared_->is_common(units.a, whole.b)) return false;
  const auto tokens = counted(units.a, whole.b);
  tokens->add_to(units.low, units.high, out);
  if (then == Expressions::kEmpty) return true;
  const State next = state_of(then);
  for (const CountedTokens::Entry& exit : tokens->exits) {
    if (exit.count >= units.low && exit.count <= units.high) add_subtree(exit.what, next, out);
  }
  return true;
}

void Automaton::add_choice(Expr choice, std::vector<Expr>* plain, uint32_t* out) {
  const Expressions::Node node = expressions_.node(choice);
  const bool is_sequence = node.kind == ExprKind::kSequence;
  const Expressions::Node first = is_sequence ? expressions_.node(node.a) : node;
  if (first.kind != ExprKind::kTerminal) {
    plain->push_back(choice);
    return;
  }
  const Expr then = is_sequence ? node.b : Expressions::kEmpty;
  if (add_counted(first.a, then, out)) return;
  const auto terminal = terminal_mask(first.a);
  terminal->add_to(out);
  if (first.accepts_empty && is_sequence) plain->push_back(then);
  if (then == Expressions::kEmpty) return;
  const State next = state_of(then);
  for (const uint32_t exit : terminal->exits) add_subtree(exit, next, out);
}

void Automaton::mask(State state, uint32_t* out) {
  const uint32_t n = tree_->n_words();
  const auto known = masks_.find(state);
  if (known != masks_.end()) {
    std::copy(known->second.begin(), known->second.end(), out);
    return;
  }
  std::fill(out, out + n, 0u);
  const Expr e = expression(state);
  std::vector<Expr> choices{e}, plain;
  if (expressions_.node(e).kind == ExprKind::kEither) {
    choices.assign(expressions_.children(e), expressions_.children(e) + expressions_.node(e).b);
  }
  for (const Expr choice : choices) add_choice(choice, &plain, out);
  if (!plain.empty()) {
    add_subtree(UINT32_MAX, state_of(expressions_.either(std::move(plain))), out);
  }
  if (accepts(state)) {
    for (const int32_t token : tree_->ends()) allow_token(out, static_cast<uint32_t>(token));
  }
  if (expressions_.is_spent()) return;
  if (masks_.size() >= kMaxMasks) masks_.clear();
  masks_[state].assign(out, out + n);
}

}  // namespace sharpi::grammar
