// SPDX-License-Identifier: MIT
#include "text/grammar/pattern.h"

#include <algorithm>

#include "text/grammar/pattern_tree.h"

namespace sharpi::grammar {
namespace {

using PatternKind = PatternNode::Kind;

// Made from the end: each part is given what follows it.
class PatternBuilder {
 public:
  PatternBuilder(Expressions& e, const PatternText& text)
      : e_(e),
        text_(text),
        some_(e.any_number(text.character)),
        rest_(text.whole ? text.close : e.sequence(some_, text.close)) {}

  Result<Expr> whole(const PatternNode& pattern) {
    const Expr out = e_.sequence(text_.open, build(pattern, rest_, !text_.whole));
    if (!status_.is_ok()) return status_;
    return out;
  }

 private:
  // @param search anything may stand before it, unless it asks for the beginning.
  Expr build(const PatternNode& node, Expr then, bool search);
  Expr sequence(const PatternNode& node, Expr then, bool search);
  Expr repeated(const PatternNode& node);
  Expr searched(bool search, Expr found) { return search ? e_.sequence(some_, found) : found; }
  Expr refuse(const char* what) {
    if (status_.is_ok()) status_ = Status::error(Code::kUnsupported, "%s", what);
    return Expressions::kNothing;
  }

  Expressions& e_;
  const PatternText text_;
  const Expr some_, rest_;
  Status status_;
};

Expr PatternBuilder::sequence(const PatternNode& node, Expr then, bool search) {
  if (node.parts.empty()) return searched(search, then);
  const bool begins = search && node.parts[0].kind == PatternKind::kBegin;
  for (size_t i = node.parts.size(); i-- > (begins ? 1 : 0);) {
    then = build(node.parts[i], then, search && !begins && i == 0);
  }
  return then;
}

Expr PatternBuilder::repeated(const PatternNode& node) {
  switch (node.kind) {
    case PatternKind::kClass:
      return characters(e_, node.which, text_.spelling);
    case PatternKind::kSequence:
    case PatternKind::kChoice: {
      std::vector<Expr> parts;
      for (const PatternNode& part : node.parts) parts.push_back(repeated(part));
      return node.kind == PatternKind::kSequence ? e_.sequence(parts) : e_.either(std::move(parts));
    }
    case PatternKind::kRepeat: {
      const Expr what = repeated(node.parts[0]);
      const bool is_class = node.parts[0].kind == PatternKind::kClass;
      if (is_class && what != Expressions::kNothing) e_.mark_unit(what);
      return e_.repeat(what, node.low, node.high);
    }
    default:
      return refuse("anchors and looking ahead inside a repetition are not supported");
  }
}

// Anchors or looking ahead, which have to know what follows them.
bool asserts(const PatternNode& node) {
  if (node.kind >= PatternKind::kBegin) return true;
  return std::any_of(node.parts.begin(), node.parts.end(), asserts);
}

Expr PatternBuilder::build(const PatternNode& node, Expr then, bool search) {
  switch (node.kind) {
    case PatternKind::kRepeat:
      if (node.low == 0 && node.high == 1 && asserts(node.parts[0])) {
        return e_.either({build(node.parts[0], then, search), searched(search, then)});
      }
      [[fallthrough]];
    case PatternKind::kClass:
      return searched(search, e_.sequence(repeated(node), then));
    case PatternKind::kSequence:
      return sequence(node, then, search);
    case PatternKind::kChoice: {
      std::vector<Expr> choices;
      for (const PatternNode& part : node.parts) choices.push_back(build(part, then, search));
      return e_.either(std::move(choices));
    }
    case PatternKind::kBegin:
      // Where nothing may stand before the pattern anyway, the first place is the beginning.
      return search ? then : refuse("^ behind something else is not supported");
    case PatternKind::kEnd:
      if (then == rest_ || then == text_.close) return searched(search, text_.close);
      return searched(search, e_.both(then, text_.close));
    case PatternKind::kAhead:
    case PatternKind::kNotAhead: {
      const Expr after = e_.sequence(some_, text_.close);
      const PatternNode& part = node.parts[0];
      Expr ahead = Expressions::kNothing;
      if (part.kind == PatternKind::kEnd) {
        ahead = text_.close;
      } else {
        ahead = build(part, after, false);
      }
      if (node.kind == PatternKind::kNotAhead) ahead = e_.complement(ahead);
      return searched(search, e_.both(then, ahead));
    }
  }
  return Expressions::kNothing;
}

}  // namespace

Result<Expr> compile_pattern(Expressions& e, std::string_view pattern, const PatternText& text) {
  SHARPI_TRY_ASSIGN(PatternNode tree, parse_pattern(pattern));
  if (text.whole && tree.kind == PatternNode::Kind::kSequence && !tree.parts.empty() &&
      tree.parts[0].kind == PatternNode::Kind::kBegin) {
    tree.parts.erase(tree.parts.begin());
  }
  return PatternBuilder(e, text).whole(tree);
}

}  // namespace sharpi::grammar
