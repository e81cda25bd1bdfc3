// SPDX-License-Identifier: MIT
// Expressions of operators. A function per precedence would put eleven frames on the stack for
// every pair of parentheses; with operand() for all of them there are five.
#include "text/jinja/parser_state.h"

namespace sharpi::jinja {

struct Parser::Nesting {
  explicit Nesting(uint32_t* n) : n_(n) { ++*n_; }
  ~Nesting() { --*n_; }
  uint32_t* n_;
};

Status Parser::expression(const Node** out) {
  const Nesting nesting(&nesting_);
  SHARPI_TRY(enter());
  SHARPI_TRY(operand(Binding::kOr, out));
  return at_name("if") ? conditionals(out) : Status::ok();
}

Status Parser::conditionals(const Node** out) {
  while (skip_name("if")) {
    Node* node = make(NodeKind::kConditional, *out);
    SHARPI_TRY(operand(Binding::kOr, &node->b));
    if (skip_name("else")) SHARPI_TRY(expression(&node->c));
    SHARPI_TRY(finish(node));
    *out = node;
  }
  return Status::ok();
}

/// Everything that binds at least as tightly as `binding`.
Status Parser::operand(Binding binding, const Node** out) {
  Binding next = Binding::kPower;
  if (binding <= Binding::kNot && at_name("not")) {
    SHARPI_TRY(negation(out));
    next = Binding::kAnd;  // what binds tighter belongs to what is negated
  } else {
    SHARPI_TRY(unary(true, out));
  }
  // The tightest come first: what they make is the left side of those that bind less.
  for (int at = static_cast<int>(next); at >= static_cast<int>(binding); --at) {
    SHARPI_TRY(operators(static_cast<Binding>(at), out));
  }
  return Status::ok();
}

/// The operators of one precedence behind their left side, which is *out.
Status Parser::operators(Binding binding, const Node** out) {
  switch (binding) {
    case Binding::kOr:
      return at_name("or") ? junction(NodeKind::kOr, "or", Binding::kAnd, out) : Status::ok();
    case Binding::kAnd:
      return at_name("and") ? junction(NodeKind::kAnd, "and", Binding::kNot, out) : Status::ok();
    case Binding::kCompare:
      return comparison(out);
    case Binding::kConcat:
      return at_operator("~") ? concatenation(out) : Status::ok();
    case Binding::kSum:
    case Binding::kProduct:
    case Binding::kPower:
      return arithmetic(binding, out);
    case Binding::kNot:
    case Binding::kUnary:
      break;
  }
  return Status::ok();
}

Status Parser::junction(NodeKind kind, const char* word, Binding tighter, const Node** out) {
  while (skip_name(word)) {
    Node* node = make(kind, *out);
    SHARPI_TRY(operand(tighter, &node->b));
    SHARPI_TRY(finish(node));
    *out = node;
  }
  return Status::ok();
}

Status Parser::negation(const Node** out) {
  const Nesting nesting(&nesting_);
  SHARPI_TRY(enter());
  Node* node = make(NodeKind::kNot);
  ++at_;
  SHARPI_TRY(operand(Binding::kNot, &node->a));
  *out = node;
  return finish(node);
}

bool Parser::comparison_operator(Op* op) {
  static constexpr std::pair<const char*, Op> kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe},
                                                        {"<=", Op::kLe}, {">=", Op::kGe},
                                                        {"<", Op::kLt},  {">", Op::kGt}};
  for (const auto& [text, value] : kOps) {
    if (skip_operator(text)) {
      *op = value;
      return true;
    }
  }
  if (skip_name("in")) {
    *op = Op::kIn;
    return true;
  }
  if (at_name("not") && ahead().type == TokenType::kName && ahead().text == "in") {
    at_ += 2;
    *op = Op::kNotIn;
    return true;
  }
  return false;
}

Status Parser::comparison(const Node** out) {
  Op op{};
  const uint32_t at = now().at;
  if (!comparison_operator(&op)) return Status::ok();
  Node* node = make(NodeKind::kCompare, *out);
  node->at = at;
  do {
    node->ops.push_back(op);
    SHARPI_TRY(operand(Binding::kSum, &node->children.emplace_back()));
  } while (comparison_operator(&op));
  *out = node;
  return finish(node);
}

Status Parser::concatenation(const Node** out) {
  Node* node = make(NodeKind::kConcat);
  node->children.push_back(*out);
  while (skip_operator("~")) {
    SHARPI_TRY(operand(Binding::kProduct, &node->children.emplace_back()));
  }
  *out = node;
  return finish(node);
}

bool Parser::arithmetic_operator(Binding binding, Op* op) const {
  static constexpr struct {
    const char* text;
    Binding binding;
    Op op;
  } kOps[] = {{"+", Binding::kSum, Op::kAdd},     {"-", Binding::kSum, Op::kSub},
              {"*", Binding::kProduct, Op::kMul}, {"/", Binding::kProduct, Op::kDiv},
              {"%", Binding::kProduct, Op::kMod}, {"//", Binding::kProduct, Op::kFloorDiv},
              {"**", Binding::kPower, Op::kPow}};
  for (const auto& entry : kOps) {
    if (entry.binding != binding || !at_operator(entry.text)) continue;
    *op = entry.op;
    return true;
  }
  return false;
}

/// All of these bind to the left.
Status Parser::arithmetic(Binding binding, const Node** out) {
  const auto tighter = static_cast<Binding>(static_cast<int>(binding) + 1);
  for (Op op{}; arithmetic_operator(binding, &op);) {
    Node* node = make(NodeKind::kBinary, *out);
    node->op = op;
    ++at_;
    SHARPI_TRY(operand(tighter, &node->b));
    SHARPI_TRY(finish(node));
    *out = node;
  }
  return Status::ok();
}

Status Parser::unary(bool with_filters, const Node** out) {
  if (at_operator("-") || at_operator("+")) {
    SHARPI_TRY(sign(out));
  } else {
    SHARPI_TRY(primary(out));
  }
  SHARPI_TRY(postfix(out));
  return with_filters ? filters_and_tests(out) : Status::ok();
}

Status Parser::sign(const Node** out) {
  const Nesting nesting(&nesting_);
  SHARPI_TRY(enter());
  Node* node = make(at_operator("-") ? NodeKind::kNegate : NodeKind::kPlus);
  ++at_;
  SHARPI_TRY(unary(false, &node->a));
  *out = node;
  return finish(node);
}

}  // namespace sharpi::jinja
