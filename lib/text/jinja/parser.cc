// SPDX-License-Identifier: MIT
#include "text/jinja/parser.h"

#include <algorithm>

#include "text/jinja/parser_state.h"

namespace sharpi::jinja {

// ---- Tokens and nodes --------------------------------------------------------------------------

bool Parser::at_operator(std::string_view text) const {
  return now().type == TokenType::kOperator && now().text == text;
}

bool Parser::at_name(std::string_view text) const {
  return now().type == TokenType::kName && now().text == text;
}

bool Parser::at_one_of(Names names) const {
  return now().type == TokenType::kName &&
         std::find(names.begin(), names.end(), now().text) != names.end();
}

bool Parser::skip_operator(std::string_view text) {
  if (!at_operator(text)) return false;
  ++at_;
  return true;
}

bool Parser::skip_name(std::string_view text) {
  if (!at_name(text)) return false;
  ++at_;
  return true;
}

Status Parser::fail(const char* format, std::string_view what) const {
  const size_t at = at_ < tokens_.size() ? now().at : program_.source.size();
  std::string sentence(format);
  if (!what.empty()) sentence.append(" \"").append(what.substr(0, 64)).append("\"");
  return Status::error(Code::kFormat, "chat template, %s: %s",
                       position_text(program_.source, at).c_str(), sentence.c_str());
}

Status Parser::refuse(const std::string& what) const {
  return Status::error(Code::kUnsupported, "chat template, %s: \"%s\" is not supported",
                       position_text(program_.source, now().at).c_str(), what.c_str());
}

Status Parser::expect_operator(const char* text) {
  return skip_operator(text) ? Status::ok() : fail("expected", text);
}

Status Parser::expect_name(std::string* out) {
  if (now().type != TokenType::kName) return fail("a name is expected here");
  *out = tokens_[at_++].text;
  return Status::ok();
}

Status Parser::expect(TokenType type, const char* what) {
  if (now().type != type) return fail("expected", what);
  ++at_;
  return Status::ok();
}

Node* Parser::make(NodeKind kind) {
  Node* node = &program_.nodes.emplace_back();
  node->kind = kind;
  node->at = now().at;
  node->is_plain = kind == NodeKind::kConstant;
  return node;
}

Node* Parser::make(NodeKind kind, const Node* a, const Node* b) {
  Node* node = make(kind);
  node->a = a;
  node->b = b;
  return node;
}

Node* Parser::constant(Value value) {
  Node* node = make(NodeKind::kConstant);
  node->constant = value;
  return node;
}

const MarkedText* Parser::keep(std::string text) {
  return &program_.texts.emplace_back(text, false);
}

uint32_t Parser::intern(const std::string& name) {
  const auto [it, is_new] = names_.try_emplace(name, static_cast<uint32_t>(program_.names.size()));
  if (is_new) program_.names.push_back(name);
  return it->second;
}

Status Parser::enter() {
  return nesting_ <= kMaxNesting && !stack_.is_spent()
             ? Status::ok()
             : fail("the template is nested too deeply here");
}

Status Parser::deepen(Node* node, const Nodes& below) {
  for (const Node* n : below) {
    if (n != nullptr && n->depth >= node->depth) node->depth = static_cast<uint16_t>(n->depth + 1);
  }
  return node->depth <= 2 * kMaxNesting ? Status::ok()
                                        : fail("the template is nested too deeply here");
}

bool Parser::is_plain(const Node& node) {
  const auto plain = [](const Node* n) { return n->is_plain; };
  if (node.kind == NodeKind::kNegate || node.kind == NodeKind::kPlus) return plain(node.a);
  return node.kind == NodeKind::kDict &&
         std::all_of(node.children.begin(), node.children.end(), plain);
}

Status Parser::finish(Node* node) {
  node->is_plain = is_plain(*node);
  SHARPI_TRY(deepen(node, {node->a, node->b, node->c, node->target}));
  for (const auto& [name, value] : node->keywords) SHARPI_TRY(deepen(node, {value}));
  for (const Argument& argument : node->arguments) SHARPI_TRY(deepen(node, {argument.value}));
  for (const auto& [condition, body] : node->branches) {
    SHARPI_TRY(deepen(node, {condition}));
    SHARPI_TRY(deepen(node, body));
  }
  SHARPI_TRY(deepen(node, node->children));
  SHARPI_TRY(deepen(node, node->body));
  return deepen(node, node->orelse);
}

// ---- Statements --------------------------------------------------------------------------------

/// Everything up to a tag whose name is one of `ends`, or up to the end of the template.
Status Parser::until(Names ends, Nodes* out) {
  ++nesting_;
  SHARPI_TRY(enter());
  while (now().type != TokenType::kEnd) {
    if (now().type == TokenType::kData) {
      Node* node = make(NodeKind::kData);
      node->text = keep(std::move(tokens_[at_++].text));
      out->push_back(node);
    } else if (now().type == TokenType::kVariableBegin) {
      ++at_;
      Node* node = make(NodeKind::kOutput);
      SHARPI_TRY(tuple(true, false, {}, &node->a));
      SHARPI_TRY(expect(TokenType::kVariableEnd, "}}"));
      SHARPI_TRY(finish(node));
      out->push_back(node);
    } else {
      SHARPI_TRY(expect(TokenType::kBlockBegin, "{%"));
      if (at_one_of(ends)) break;
      const Node* node = nullptr;
      SHARPI_TRY(statement(&node));
      out->push_back(node);
      SHARPI_TRY(expect(TokenType::kBlockEnd, "%}"));
    }
  }
  --nesting_;
  return Status::ok();
}

/// The body of a statement whose tag ends here.
Status Parser::body_until(Names ends, Nodes* out) {
  skip_operator(":");
  SHARPI_TRY(expect(TokenType::kBlockEnd, "%}"));
  SHARPI_TRY(until(ends, out));
  return now().type == TokenType::kEnd ? fail("the template ends before", *(ends.end() - 1))
                                       : Status::ok();
}

Status Parser::end_tag(const char* name) {
  return skip_name(name) ? Status::ok() : fail("expected", name);
}

Status Parser::statement(const Node** out) {
  static constexpr const char* kRefused[] = {"include", "import",     "from",  "extends",
                                             "block",   "autoescape", "print", "do"};
  if (now().type != TokenType::kName) return fail("the name of a tag is expected here");
  for (const char* word : kRefused) {
    if (at_name(word)) return refuse(word);
  }
  if (skip_name("if")) return if_statement(out);
  if (skip_name("for")) return for_statement(out);
  if (skip_name("set")) return set_statement(out);
  if (skip_name("macro")) return macro_statement(out);
  if (skip_name("call")) return call_statement(out);
  if (skip_name("filter")) return filter_statement(out);
  if (skip_name("with")) return with_statement(out);
  if (skip_name("generation")) return scope_statement(out);
  if (skip_name("break")) return loop_control(NodeKind::kBreak, out);
  if (skip_name("continue")) return loop_control(NodeKind::kContinue, out);
  return fail("there is no such tag:", now().text);
}

Status Parser::loop_control(NodeKind kind, const Node** out) {
  if (loops_ == 0) return fail("break or continue stands outside of a loop");
  *out = make(kind);
  return Status::ok();
}

Status Parser::if_statement(const Node** out) {
  Node* node = make(NodeKind::kIf);
  do {
    auto& [condition, body] = node->branches.emplace_back();
    SHARPI_TRY(tuple(false, false, {}, &condition));
    SHARPI_TRY(body_until({"elif", "else", "endif"}, &body));
  } while (skip_name("elif"));
  if (skip_name("else")) SHARPI_TRY(body_until({"endif"}, &node->orelse));
  SHARPI_TRY(end_tag("endif"));
  *out = node;
  return finish(node);
}

Status Parser::for_statement(const Node** out) {
  Node* node = make(NodeKind::kFor);
  SHARPI_TRY(target(true, false, {"in"}, &node->target));
  if (!skip_name("in")) return fail("expected", "in");
  SHARPI_TRY(tuple(false, false, {"recursive", "if"}, &node->a));
  if (skip_name("if")) SHARPI_TRY(expression(&node->b));
  node->recursive = skip_name("recursive");
  ++loops_;
  SHARPI_TRY(body_until({"else", "endfor"}, &node->body));
  --loops_;
  if (skip_name("else")) SHARPI_TRY(body_until({"endfor"}, &node->orelse));
  SHARPI_TRY(end_tag("endfor"));
  *out = node;
  return finish(node);
}

Status Parser::set_statement(const Node** out) {
  Node* node = make(NodeKind::kSet);
  SHARPI_TRY(target(true, true, {}, &node->target));
  if (skip_operator("=")) {
    SHARPI_TRY(tuple(true, false, {}, &node->a));
  } else {
    node->kind = NodeKind::kSetBlock;
    if (at_operator("|")) {
      ++at_;
      SHARPI_TRY(filter_chain(&node->a));
    }
    SHARPI_TRY(body_until({"endset"}, &node->body));
    SHARPI_TRY(end_tag("endset"));
  }
  *out = node;
  return finish(node);
}

Status Parser::one_target(bool with_namespace, const Node** out) {
  std::string name;
  SHARPI_TRY(expect_name(&name));
  for (const char* word : {"true", "false", "none", "True", "False", "None"}) {
    if (name == word) return fail("nothing can be assigned to", name);
  }
  Node* node = make(NodeKind::kName);
  node->name = intern(name);
  if (with_namespace && skip_operator(".")) {
    node->kind = NodeKind::kNamespaceTarget;
    SHARPI_TRY(expect_name(&name));
    node->text = keep(name);
  }
  *out = node;
  return Status::ok();
}

Status Parser::target(bool with_tuple, bool with_namespace, Names ends, const Node** out) {
  Nodes items;
  bool is_tuple = false;
  const bool parentheses = with_tuple && skip_operator("(");
  for (;;) {
    const Node* item = nullptr;
    if (with_tuple && at_operator("(")) {
      ++nesting_;
      SHARPI_TRY(enter());
      SHARPI_TRY(target(true, with_namespace, {}, &item));
      --nesting_;
    } else {
      SHARPI_TRY(one_target(with_namespace, &item));
    }
    items.push_back(item);
    if (!with_tuple || !skip_operator(",")) break;
    is_tuple = true;
    if (at_one_of(ends) || at_operator(")") || at_operator("=")) break;
  }
  if (parentheses) SHARPI_TRY(expect_operator(")"));
  if (!is_tuple) {
    *out = items[0];
    return Status::ok();
  }
  Node* node = make(NodeKind::kTuple);
  node->children = std::move(items);
  *out = node;
  return finish(node);
}

/// Filters of a block: names with arguments, joined by bars, over the block's text.
Status Parser::filter_chain(const Node** out) {
  *out = nullptr;
  do SHARPI_TRY(filter(out));
  while (skip_operator("|"));
  return Status::ok();
}

Status Parser::signature(Node* node) {
  SHARPI_TRY(expect_operator("("));
  while (!at_operator(")")) {
    if (!node->arguments.empty()) SHARPI_TRY(expect_operator(","));
    const Node* name = nullptr;
    SHARPI_TRY(one_target(false, &name));
    Argument argument{name->name, nullptr};
    if (skip_operator("=")) {
      SHARPI_TRY(expression(&argument.value));
    } else if (!node->arguments.empty() && node->arguments.back().value != nullptr) {
      return fail("an argument without a default follows one with a default");
    }
    node->arguments.push_back(argument);
  }
  ++at_;
  return Status::ok();
}

Status Parser::macro_statement(const Node** out) {
  Node* node = make(NodeKind::kMacro);
  std::string name;
  SHARPI_TRY(expect_name(&name));
  node->name = intern(name);
  node->text = keep(name);
  SHARPI_TRY(signature(node));
  const uint32_t loops = std::exchange(loops_, 0);
  const bool varargs = std::exchange(uses_varargs_, false);
  const bool kwargs = std::exchange(uses_kwargs_, false);
  SHARPI_TRY(body_until({"endmacro"}, &node->body));
  SHARPI_TRY(end_tag("endmacro"));
  node->wants_varargs = std::exchange(uses_varargs_, varargs);
  node->wants_kwargs = std::exchange(uses_kwargs_, kwargs);
  loops_ = loops;
  if (now().type == TokenType::kName) ++at_;  // the macro's name again
  *out = node;
  return finish(node);
}

Status Parser::call_statement(const Node** out) {
  Node* node = make(NodeKind::kCallBlock);
  node->text = keep("caller");
  if (at_operator("(")) SHARPI_TRY(signature(node));
  SHARPI_TRY(expression(&node->a));
  if (node->a->kind != NodeKind::kCall) return fail("a call block needs a call of a macro");
  const uint32_t loops = std::exchange(loops_, 0);
  SHARPI_TRY(body_until({"endcall"}, &node->body));
  loops_ = loops;
  SHARPI_TRY(end_tag("endcall"));
  *out = node;
  return finish(node);
}

Status Parser::filter_statement(const Node** out) {
  Node* node = make(NodeKind::kFilterBlock);
  SHARPI_TRY(filter_chain(&node->a));
  SHARPI_TRY(body_until({"endfilter"}, &node->body));
  SHARPI_TRY(end_tag("endfilter"));
  *out = node;
  return finish(node);
}

Status Parser::with_statement(const Node** out) {
  Node* node = make(NodeKind::kWith);
  while (now().type != TokenType::kBlockEnd) {
    if (!node->arguments.empty()) SHARPI_TRY(expect_operator(","));
    const Node* name = nullptr;
    SHARPI_TRY(one_target(false, &name));
    SHARPI_TRY(expect_operator("="));
    Argument argument{name->name, nullptr};
    SHARPI_TRY(expression(&argument.value));
    node->arguments.push_back(argument);
  }
  SHARPI_TRY(body_until({"endwith"}, &node->body));
  SHARPI_TRY(end_tag("endwith"));
  *out = node;
  return finish(node);
}

/// generation marks what a model is trained on; for rendering it is a scope.
Status Parser::scope_statement(const Node** out) {
  Node* node = make(NodeKind::kScope);
  SHARPI_TRY(body_until({"endgeneration"}, &node->body));
  SHARPI_TRY(end_tag("endgeneration"));
  *out = node;
  return finish(node);
}

Status Parser::run() {
  const StackEntry entry(&stack_);
  SHARPI_TRY(until({}, &program_.body));
  return now().type == TokenType::kEnd ? Status::ok()
                                       : fail("this tag ends nothing that was opened");
}

Result<std::unique_ptr<const Program>> parse_template(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return Status::error(Code::kDoesNotFit,
                         "the chat template has %zu bytes, which is more than %zu", source.size(),
                         kMaxTemplateBytes);
  }
  auto program = std::make_unique<Program>();
  program->source = normalize_newlines(source);
  SHARPI_TRY_ASSIGN(auto tokens, tokenize_template(program->source));
  SHARPI_TRY(Parser(program.get(), std::move(tokens)).run());
  return std::unique_ptr<const Program>(std::move(program));
}

}  // namespace sharpi::jinja
