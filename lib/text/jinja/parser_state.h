// SPDX-License-Identifier: MIT
// The parser's insides, shared by its two files: expressions and statements.
// Thread rule: one owner.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"
#include "text/jinja/stack_bound.h"

namespace sharpi::jinja {

class Parser {
 public:
  Parser(Program* program, std::vector<Token> tokens)
      : program_(*program), tokens_(std::move(tokens)) {}
  Status run();

 private:
  using Nodes = std::vector<const Node*>;
  using Names = std::initializer_list<std::string_view>;
  /// What binds tighter comes later.
  enum class Binding : uint8_t {
    kOr,
    kAnd,
    kNot,
    kCompare,
    kSum,
    kConcat,
    kProduct,
    kPower,
    kUnary,
  };

  // Tokens.
  const Token& now() const { return at_ < tokens_.size() ? tokens_[at_] : end_; }
  const Token& ahead() const { return at_ + 1 < tokens_.size() ? tokens_[at_ + 1] : end_; }
  bool at_operator(std::string_view text) const;
  bool at_name(std::string_view text) const;
  bool at_one_of(Names names) const;
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  Status expect_operator(const char* text);
  Status expect_name(std::string* out);
  Status expect(TokenType type, const char* what);
  [[gnu::cold]] Status fail(const char* format, std::string_view what = {}) const;
  [[gnu::cold]] Status refuse(const std::string& what) const;

  // Nodes.
  Node* make(NodeKind kind);
  Node* make(NodeKind kind, const Node* a, const Node* b = nullptr);
  Node* constant(Value value);
  const MarkedText* keep(std::string text);
  uint32_t intern(const std::string& name);
  /// Bounds the depth of what is evaluated: every node knows the longest way below it.
  Status deepen(Node* node, const Nodes& below);
  static bool is_plain(const Node& node);
  Status finish(Node* node);

  // Expressions.
  Status expression(const Node** out);  // with `a if b else c`
  Status conditionals(const Node** out);
  Status operand(Binding binding, const Node** out);
  Status operators(Binding binding, const Node** out);
  Status junction(NodeKind kind, const char* word, Binding tighter, const Node** out);
  Status negation(const Node** out);
  Status comparison(const Node** out);
  bool comparison_operator(Op* op);
  Status concatenation(const Node** out);
  Status arithmetic(Binding binding, const Node** out);
  bool arithmetic_operator(Binding binding, Op* op) const;
  Status unary(bool with_filters, const Node** out);
  Status sign(const Node** out);
  Status primary(const Node** out);
  Status named_primary(const Node** out);
  Status string(const Node** out);
  Status number(const Node** out);
  Status list_display(const Node** out);
  Status dict_display(const Node** out);
  Status tuple(bool with_conditional, bool parentheses, Names ends, const Node** out);
  Status postfix(const Node** node);
  Status attribute(const Node** node);
  Status subscript(const Node** node);
  Status subscribed(const Node** out);
  Status filters_and_tests(const Node** node);
  Status filter(const Node** node);  // after the bar; *node may be null
  Status test(const Node** node);
  Status call(const Node** node);
  Status call_arguments(Node* node);

  // Statements.
  Status until(Names ends, Nodes* out);  // stands at the name of the ending tag then
  Status body_until(Names ends, Nodes* out);
  Status end_tag(const char* name);
  Status statement(const Node** out);
  Status if_statement(const Node** out);
  Status for_statement(const Node** out);
  Status set_statement(const Node** out);
  Status macro_statement(const Node** out);
  Status call_statement(const Node** out);
  Status filter_statement(const Node** out);
  Status with_statement(const Node** out);
  Status scope_statement(const Node** out);
  Status loop_control(NodeKind kind, const Node** out);
  Status signature(Node* node);
  Status filter_chain(const Node** out);
  Status target(bool with_tuple, bool with_namespace, Names ends, const Node** out);
  Status one_target(bool with_namespace, const Node** out);

  struct Nesting;
  Status enter();

  Program& program_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  Token end_{TokenType::kEnd, 0, {}};
  std::unordered_map<std::string, uint32_t> names_;
  StackBound stack_;
  uint32_t nesting_ = 0;
  uint32_t loops_ = 0;  // loops that break and continue may mean
  bool uses_varargs_ = false, uses_kwargs_ = false;
};

/// A template nested deeper than this is refused in every build. Where levels take so much stack
/// that fewer of them fit, StackBound refuses first, and the sentence is the same.
constexpr uint32_t kMaxNesting = 128;

}  // namespace sharpi::jinja
