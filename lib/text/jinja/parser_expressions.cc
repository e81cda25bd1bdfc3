// SPDX-License-Identifier: MIT
#include <charconv>
#include <cstdlib>

#include "text/jinja/filters.h"
#include "text/jinja/methods.h"
#include "text/jinja/parser_state.h"
#include "text/jinja/tests.h"

namespace sharpi::jinja {

Status Parser::primary(const Node** out) {
  const Token& token = now();
  switch (token.type) {
    case TokenType::kName:
      return named_primary(out);
    case TokenType::kString:
      return string(out);
    case TokenType::kInteger:
    case TokenType::kFloat:
      return number(out);
    default:
      break;
  }
  if (skip_operator("(")) {
    SHARPI_TRY(tuple(true, true, {}, out));
    return expect_operator(")");
  }
  if (at_operator("[")) return list_display(out);
  if (at_operator("{")) return dict_display(out);
  return fail("an expression is expected here");
}

Status Parser::string(const Node** out) {
  std::string text;
  Node* node = make(NodeKind::kConstant);
  while (now().type == TokenType::kString) text += tokens_[at_++].text;
  node->constant = Value::of(keep(std::move(text)));
  *out = node;
  return Status::ok();
}

Status Parser::named_primary(const Node** out) {
  const std::string& word = now().text;
  if (word == "true" || word == "True" || word == "false" || word == "False") {
    *out = constant(Value::of(word == "true" || word == "True"));
  } else if (word == "none" || word == "None") {
    *out = constant(Value::none());
  } else {
    Node* node = make(NodeKind::kName);
    node->name = intern(word);
    uses_varargs_ = uses_varargs_ || word == "varargs";
    uses_kwargs_ = uses_kwargs_ || word == "kwargs";
    *out = node;
  }
  ++at_;
  return Status::ok();
}

Status Parser::number(const Node** out) {
  const Token& token = now();
  const char* text = token.text.c_str();
  Value value;
  if (token.type == TokenType::kFloat) {
    double real = 0;
    const auto result = std::from_chars(text, text + token.text.size(), real);
    if (result.ec != std::errc()) return fail("this number does not fit a float");
    value = Value::of(real);
  } else {
    const char mark = token.text.size() > 1 ? static_cast<char>(text[1] | 0x20) : '\0';
    const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    const char* digits = base == 10 ? text : text + 2;
    const char* end = text + token.text.size();
    int64_t integer = 0;
    const auto result = std::from_chars(digits, end, integer, base);
    if (result.ec != std::errc() || result.ptr != end) {
      return fail("this number is malformed or has more than 63 bits");
    }
    value = Value::of(integer);
  }
  *out = constant(value);
  ++at_;
  return Status::ok();
}

Status Parser::list_display(const Node** out) {
  Node* node = make(NodeKind::kList);
  ++at_;
  while (!at_operator("]")) {
    if (!node->children.empty()) SHARPI_TRY(expect_operator(","));
    if (at_operator("]")) break;
    const Node* item = nullptr;
    SHARPI_TRY(expression(&item));
    node->children.push_back(item);
  }
  ++at_;
  *out = node;
  return finish(node);
}

Status Parser::dict_display(const Node** out) {
  Node* node = make(NodeKind::kDict);
  ++at_;
  while (!at_operator("}")) {
    if (!node->children.empty()) SHARPI_TRY(expect_operator(","));
    if (at_operator("}")) break;
    const Node *key = nullptr, *value = nullptr;
    SHARPI_TRY(expression(&key));
    SHARPI_TRY(expect_operator(":"));
    SHARPI_TRY(expression(&value));
    node->children.push_back(key);
    node->children.push_back(value);
  }
  ++at_;
  *out = node;
  return finish(node);
}

/// One expression, or several with commas as a tuple. `ends`: names that end it.
Status Parser::tuple(bool with_conditional, bool parentheses, Names ends, const Node** out) {
  Nodes items;
  bool is_tuple = false;
  const uint32_t at = now().at;
  const auto ended = [&] {
    const TokenType t = now().type;
    return t == TokenType::kVariableEnd || t == TokenType::kBlockEnd || at_operator(")") ||
           at_one_of(ends);
  };
  for (;;) {
    if (!items.empty()) SHARPI_TRY(expect_operator(","));
    if (ended()) break;
    const Node* item = nullptr;
    SHARPI_TRY(with_conditional ? expression(&item) : operand(Binding::kOr, &item));
    items.push_back(item);
    if (!at_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && items.size() == 1) {
    *out = items[0];
    return Status::ok();
  }
  if (items.empty() && !parentheses) return fail("an expression is expected here");
  Node* node = make(NodeKind::kTuple);
  node->at = at;
  node->children = std::move(items);
  *out = node;
  return finish(node);
}

Status Parser::postfix(const Node** node) {
  for (;;) {
    if (at_operator(".")) {
      SHARPI_TRY(attribute(node));
    } else if (at_operator("[")) {
      SHARPI_TRY(subscript(node));
    } else if (at_operator("(")) {
      SHARPI_TRY(call(node));
    } else {
      return Status::ok();
    }
  }
}

Status Parser::attribute(const Node** node) {
  const uint32_t at = now().at;
  ++at_;
  if (now().type == TokenType::kName) {
    Node* out = make(NodeKind::kAttribute, *node);
    out->at = at;
    out->id = static_cast<uint8_t>(find_method(now().text));
    out->text = keep(now().text);
    ++at_;
    *node = out;
    return finish(out);
  }
  if (now().type != TokenType::kInteger)
    return fail("a name or a number is expected after the dot");
  Node* out = make(NodeKind::kItem, *node);
  out->at = at;
  SHARPI_TRY(number(&out->b));
  *node = out;
  return finish(out);
}

Status Parser::subscript(const Node** node) {
  Node* out = make(NodeKind::kItem, *node);
  ++at_;
  Nodes items;
  while (!at_operator("]")) {
    if (!items.empty()) SHARPI_TRY(expect_operator(","));
    const Node* item = nullptr;
    SHARPI_TRY(subscribed(&item));
    items.push_back(item);
  }
  ++at_;
  if (items.size() != 1) return fail("an index is one expression or one slice");
  out->b = items[0];
  *node = out;
  return finish(out);
}

Status Parser::subscribed(const Node** out) {
  const Node* parts[3] = {};
  size_t n = 0;
  bool slice = false;
  Node* node = make(NodeKind::kSlice);
  while (!at_operator("]") && !at_operator(",")) {
    if (at_operator(":")) {
      ++at_;
      slice = true;
      if (++n > 2) return fail("a slice has three parts at most");
      continue;
    }
    if (parts[n] != nullptr) return fail("the index should end here");
    SHARPI_TRY(expression(&parts[n]));
  }
  if (!slice) {
    if (parts[0] == nullptr) return fail("an index is expected here");
    *out = parts[0];
    return Status::ok();
  }
  node->a = parts[0];
  node->b = parts[1];
  node->c = parts[2];
  *out = node;
  return finish(node);
}

Status Parser::filters_and_tests(const Node** node) {
  for (;;) {
    if (skip_operator("|")) {
      SHARPI_TRY(filter(node));
    } else if (skip_name("is")) {
      SHARPI_TRY(test(node));
    } else if (at_operator("(")) {
      SHARPI_TRY(call(node));
    } else {
      return Status::ok();
    }
  }
}

Status Parser::filter(const Node** node) {
  Node* out = make(NodeKind::kFilter, *node);
  std::string name;
  SHARPI_TRY(expect_name(&name));
  while (skip_operator(".")) {
    std::string part;
    SHARPI_TRY(expect_name(&part));
    name += "." + part;
  }
  out->id = static_cast<uint8_t>(find_filter(name));
  out->text = keep(std::move(name));
  if (at_operator("(")) SHARPI_TRY(call_arguments(out));
  *node = out;
  return finish(out);
}

Status Parser::test(const Node** node) {
  const uint32_t at = now().at;
  const bool negated = skip_name("not");
  Node* out = make(NodeKind::kTest, *node);
  std::string name;
  SHARPI_TRY(expect_name(&name));
  out->id = static_cast<uint8_t>(find_test(name));
  out->text = keep(std::move(name));
  const TokenType next = now().type;
  const bool operand = next == TokenType::kName || next == TokenType::kString ||
                       next == TokenType::kInteger || next == TokenType::kFloat ||
                       at_operator("[") || at_operator("{");
  if (at_operator("(")) {
    SHARPI_TRY(call_arguments(out));
  } else if (operand && !at_one_of({"else", "or", "and"})) {
    if (at_name("is")) return fail("tests cannot follow each other without parentheses");
    const Node* argument = nullptr;
    SHARPI_TRY(primary(&argument));
    SHARPI_TRY(postfix(&argument));
    out->children.push_back(argument);
  }
  SHARPI_TRY(finish(out));
  *node = out;
  if (!negated) return Status::ok();
  Node* outer = make(NodeKind::kNot, out);
  outer->at = at;
  *node = outer;
  return finish(outer);
}

Status Parser::call(const Node** node) {
  Node* out = make(NodeKind::kCall, *node);
  SHARPI_TRY(call_arguments(out));
  *node = out;
  return finish(out);
}

/// Stands at the opening parenthesis. Fills children, keywords, c (*list) and b (**dict).
Status Parser::call_arguments(Node* node) {
  SHARPI_TRY(expect_operator("("));
  bool first = true;
  while (!at_operator(")")) {
    if (!first) SHARPI_TRY(expect_operator(","));
    first = false;
    if (at_operator(")")) break;
    const bool keyword = now().type == TokenType::kName && ahead().type == TokenType::kOperator &&
                         ahead().text == "=";
    const Node* value = nullptr;
    if (at_operator("**") || at_operator("*")) {
      const bool dict = at_operator("**");
      ++at_;
      SHARPI_TRY(expression(&value));
      const Node** slot = dict ? &node->b : &node->c;
      if (*slot != nullptr) return fail("a call takes one * and one ** at most");
      *slot = value;
    } else if (keyword) {
      const std::string name = now().text;
      at_ += 2;
      SHARPI_TRY(expression(&value));
      node->keywords.emplace_back(name, value);
    } else {
      if (!node->keywords.empty() || node->b != nullptr) {
        return fail("an argument without a name follows one with a name");
      }
      SHARPI_TRY(expression(&value));
      node->children.push_back(value);
    }
  }
  ++at_;
  return Status::ok();
}

}  // namespace sharpi::jinja
