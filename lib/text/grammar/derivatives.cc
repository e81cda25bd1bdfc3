// SPDX-License-Identifier: MIT
// What follows a byte, after Brzozowski; and what a byte can be told from.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "text/grammar/expressions.h"

namespace sharpi::grammar {
namespace {

constexpr unsigned char kDigitZero = '0', kDigitNine = '9';
constexpr size_t kSetsAtOnce = 64;

// Bytes of one class stay in one only where their signs are the same.
void split_classes(const std::array<uint64_t, 256>& signs, uint8_t* class_of) {
  std::array<std::pair<uint64_t, uint8_t>, 256> known;  // sign and former class of each class
  size_t n_known = 0, last = 0;
  for (size_t b = 0; b < 256; ++b) {
    const std::pair<uint64_t, uint8_t> key{signs[b], class_of[b]};
    if (b == 0 || known[last] != key) {
      for (last = 0; last < n_known && known[last] != key;) ++last;
      if (last == n_known) known[n_known++] = key;
    }
    class_of[b] = static_cast<uint8_t>(last);
  }
}

}  // namespace

Expr Expressions::after_sequence(Expr e, unsigned char byte) {
  std::vector<Expr> choices;
  while (nodes_[e].kind == Kind::kSequence) {
    const Expr first = nodes_[e].a, then = nodes_[e].b;
    const Expr next = after(first, byte);
    if (next != kNothing) choices.push_back(sequence(next, then));
    if (!nodes_[first].accepts_empty || spent_) return either(std::move(choices), 0);
    e = then;
  }
  choices.push_back(after(e, byte));
  return either(std::move(choices), 0);
}

Expr Expressions::after(Expr e, unsigned char byte) {
  const Node node = nodes_[e];
  if (!spend(1) || !node.possible) return kNothing;
  switch (node.kind) {
    case Kind::kNothing:
    case Kind::kEmpty:
      return kNothing;
    case Kind::kSet:
      return sets_[node.a][byte] ? kEmpty : kNothing;
    case Kind::kSequence:
      return after_sequence(e, byte);
    case Kind::kEither:
    case Kind::kBoth: {
      std::vector<Expr> list_after;
      for (uint32_t i = 0; i < node.b && !spent_; ++i) {
        list_after.push_back(after(lists_[node.a + i], byte));
      }
      return node.kind == Kind::kEither ? either(std::move(list_after), 0)
                                        : both(std::move(list_after));
    }
    case Kind::kNot:
      return complement(after(node.a, byte));
    case Kind::kRepeat: {
      const Expr next = after(node.a, byte);
      const bool needed = node.low != 0 && !nodes_[node.a].accepts_empty;
      const uint32_t high = node.high == kAnyNumber ? kAnyNumber : node.high - 1;
      return sequence(next, repeat(node.a, needed ? node.low - 1 : 0, high));
    }
    case Kind::kRule:
      return after(bodies_[node.a], byte);
    case Kind::kTerminal:
      return terminal(after(node.a, byte));
    case Kind::kMultiples:
      if (byte < kDigitZero || byte > kDigitNine) return kNothing;
      return multiples(node.low,
                       static_cast<uint32_t>((uint64_t{node.high} * 10 + byte - '0') % node.low));
  }
  return kNothing;
}

ByteSet Expressions::first_bytes(Expr e) const {
  const Node& node = nodes_[e];
  ByteSet out;
  switch (node.kind) {
    case Kind::kSet:
      return sets_[node.a];
    case Kind::kSequence:
      out = first_bytes(node.a);
      return nodes_[node.a].accepts_empty ? out | first_bytes(node.b) : out;
    case Kind::kEither:
    case Kind::kBoth:
      for (uint32_t i = 0; i < node.b; ++i) out |= first_bytes(lists_[node.a + i]);
      return out;
    case Kind::kRepeat:
    case Kind::kTerminal:
      return first_bytes(node.a);
    case Kind::kNothing:
    case Kind::kEmpty:
      return out;
    case Kind::kRule:
    case Kind::kNot:
    case Kind::kMultiples:
      break;
  }
  return out.set();
}

// The sets that a first byte is looked up in.
void Expressions::collect_sets(Expr e, std::vector<const ByteSet*>* out, bool* digits) const {
  for (;;) {
    const Node& node = nodes_[e];
    switch (node.kind) {
      case Kind::kNothing:
      case Kind::kEmpty:
        return;
      case Kind::kSet:
        out->push_back(&sets_[node.a]);
        return;
      case Kind::kSequence:
        if (nodes_[node.a].accepts_empty) collect_sets(node.b, out, digits);
        e = node.a;
        break;
      case Kind::kEither:
      case Kind::kBoth:
        for (uint32_t i = 0; i < node.b; ++i) collect_sets(lists_[node.a + i], out, digits);
        return;
      case Kind::kMultiples:
        *digits = true;
        return;
      case Kind::kRule:
        e = bodies_[node.a];
        break;
      case Kind::kNot:
      case Kind::kRepeat:
      case Kind::kTerminal:
        e = node.a;
        break;
    }
  }
}

void Expressions::classes(Expr e, uint8_t* class_of) const {
  std::vector<const ByteSet*> sets;
  bool digits = false;
  collect_sets(e, &sets, &digits);
  std::sort(sets.begin(), sets.end());
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  std::fill(class_of, class_of + 256, uint8_t{0});
  // Bytes of a class that are in the same of the next sets stay together.
  for (size_t i = 0; i < sets.size(); i += kSetsAtOnce) {
    std::array<uint64_t, 256> signs{};
    for (size_t k = i; k < std::min(sets.size(), i + kSetsAtOnce); ++k) {
      const ByteSet& set = *sets[k];
      for (size_t b = 0; b < 256; ++b) signs[b] |= uint64_t{set[b]} << (k - i);
    }
    split_classes(signs, class_of);
  }
  if (!digits) return;
  std::array<uint64_t, 256> signs{};
  for (size_t d = '0'; d <= '9'; ++d) signs[d] = d;
  split_classes(signs, class_of);
}

}  // namespace sharpi::grammar
