// SPDX-License-Identifier: MIT
// Choices are kept small: what several of them begin with is said once, so that a state of a walk
// does not grow with the number of ways to read what came so far.
#include <algorithm>
#include <tuple>

#include "text/grammar/expressions.h"

namespace sharpi::grammar {

Expr Expressions::either(std::vector<Expr> choices, int depth) {
  std::vector<Expr> all;
  gather(Kind::kEither, choices, &all);
  if (!all.empty() && all[0] == kNothing) all.erase(all.begin());
  if (settled_) std::erase_if(all, [&](Expr e) { return !nodes_[e].possible; });
  if (!spend(all.size())) return kNothing;
  if (all.size() < 2) return all.empty() ? kNothing : all[0];
  // What all of them begin with is taken off first, as often as there is such a thing.
  std::vector<Expr> common;
  const auto begin_alike = [&] {
    const Expr first = head(all[0]);
    return first > kEmpty &&
           std::all_of(all.begin(), all.end(), [&](Expr e) { return head(e) == first; });
  };
  while (all.size() > 1 && begin_alike()) {
    common.push_back(head(all[0]));
    std::vector<Expr> tails;
    for (const Expr e : all) tails.push_back(tail(e));
    all.clear();
    gather(Kind::kEither, tails, &all);
    if (!spend(all.size())) return kNothing;
  }
  merge_terminals(&all, depth);
  if (depth < kMaxFactored) merge_heads(&all, depth);
  merge_repeats(&all);
  Expr out = list(Kind::kEither, all);
  for (size_t i = common.size(); i-- > 0;) out = sequence(common[i], out);
  return spent_ ? kNothing : out;
}

// h x | h y = h (x | y)
void Expressions::merge_heads(std::vector<Expr>* choices, int depth) {
  std::vector<Expr> sorted = *choices;
  std::sort(sorted.begin(), sorted.end(), [&](Expr a, Expr b) {
    return std::pair(head(a), tail(a)) < std::pair(head(b), tail(b));
  });
  bool merged = false;
  std::vector<Expr> out;
  for (size_t i = 0; i < sorted.size() && !spent_;) {
    size_t end = i;
    std::vector<Expr> tails;
    for (; end < sorted.size() && head(sorted[end]) == head(sorted[i]); ++end) {
      tails.push_back(tail(sorted[end]));
    }
    merged |= end - i > 1;
    out.push_back(end - i == 1 ? sorted[i]
                               : sequence(head(sorted[i]), either(std::move(tails), depth + 1)));
    i = end;
  }
  if (!merged) return;
  choices->clear();
  gather(Kind::kEither, out, choices);
}

// Terminals before the same are one.
void Expressions::merge_terminals(std::vector<Expr>* choices, int depth) {
  std::vector<Expr> terminals, out;
  for (const Expr e : *choices) {
    (nodes_[head(e)].kind == Kind::kTerminal ? terminals : out).push_back(e);
  }
  if (terminals.size() < 2) return;
  std::sort(terminals.begin(), terminals.end(), [&](Expr a, Expr b) { return tail(a) < tail(b); });
  for (size_t i = 0; i < terminals.size() && !spent_;) {
    std::vector<Expr> inner;
    size_t end = i;
    for (; end < terminals.size() && tail(terminals[end]) == tail(terminals[i]); ++end) {
      inner.push_back(nodes_[head(terminals[end])].a);
    }
    out.push_back(
        end - i == 1 ? terminals[i]
                     : sequence(terminal(either(std::move(inner), depth + 1)), tail(terminals[i])));
    i = end;
  }
  choices->clear();
  gather(Kind::kEither, out, choices);
}

// x{a,b} y | x{c,d} y = x{min,max} y where the numbers leave no gap
void Expressions::merge_repeats(std::vector<Expr>* choices) {
  struct Run {
    Expr what, tail;
    uint32_t low, high;
  };
  std::vector<Run> runs;
  std::vector<Expr> out;
  for (const Expr e : *choices) {
    const Node& first = nodes_[head(e)];
    if (first.kind == Kind::kRepeat) {
      runs.push_back({first.a, tail(e), first.low, first.high});
    } else {
      out.push_back(e);
    }
  }
  if (runs.size() < 2) return;
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    return std::tie(a.what, a.tail, a.low) < std::tie(b.what, b.tail, b.low);
  });
  for (size_t i = 0; i < runs.size() && !spent_;) {
    Run run = runs[i++];
    while (i < runs.size() && runs[i].what == run.what && runs[i].tail == run.tail &&
           (run.high == kAnyNumber || runs[i].low <= run.high + 1)) {
      run.high = std::max(run.high, runs[i++].high);
    }
    out.push_back(sequence(repeat(run.what, run.low, run.high), run.tail));
  }
  choices->clear();
  gather(Kind::kEither, out, choices);
}

}  // namespace sharpi::grammar
