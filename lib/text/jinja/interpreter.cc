// SPDX-License-Identifier: MIT
#include "text/jinja/interpreter.h"

#include <algorithm>

#include "text/jinja/lexer.h"
#include "text/jinja/methods.h"
#include "text/jinja/parser.h"

namespace sharpi::jinja {
namespace {

constexpr std::pair<const char*, Function> kFunctions[] = {
    {"range", Function::kRange},
    {"dict", Function::kDict},
    {"namespace", Function::kNamespace},
    {"raise_exception", Function::kRaiseException},
    {"strftime_now", Function::kStrftimeNow},
    {"cycler", Function::kUnsupported},
    {"joiner", Function::kUnsupported},
    {"lipsum", Function::kUnsupported},
};

}  // namespace

Status Interpreter::step() {
  if (++steps_ > limits_.max_steps) {
    return Status::error(Code::kDoesNotFit, "the template takes more than %llu steps",
                         static_cast<unsigned long long>(limits_.max_steps));
  }
  return heap_.work(1);
}

bool Interpreter::enter() {
  return ++depth_ <= limits_.max_depth && !heap_.stack().is_spent() &&
         ++steps_ <= limits_.max_steps && heap_.takes_work(1);
}

Status Interpreter::refusal(const Node& node) {
  if (depth_ > limits_.max_depth) {
    return located(node, Status::error(Code::kDoesNotFit, "the template goes deeper than %u levels",
                                       limits_.max_depth));
  }
  return located(node, heap_.stack().is_spent() ? StackBound::spent() : step());
}

Status Interpreter::located(const Node& node, Status status) {
  if (!status.is_ok()) locate(node, &status);
  return status;
}

/// The innermost node that failed says where.
void Interpreter::locate(const Node& node, Status* status) {
  if (located_) return;
  located_ = true;
  *status = Status::error(status->code(), "chat template, %s: %s",
                          position_text(program_.source, node.at).c_str(), status->text().c_str());
}

Scope* Interpreter::push_scope(Scope* parent) {
  heap_.owe(sizeof(Scope));
  Scope& scope = scopes_.emplace_back();
  scope.parent = parent;
  return &scope;
}

uint32_t Interpreter::name_id(std::string_view name) const {
  const auto it = std::find(program_.names.begin(), program_.names.end(), name);
  return it == program_.names.end() ? kNoName : static_cast<uint32_t>(it - program_.names.begin());
}

const Value* Interpreter::find(const Scope* scope, uint32_t name) {
  for (; scope != nullptr; scope = scope->parent) {
    heap_.owe_work(1 + scope->variables.size());
    for (const auto& [id, value] : scope->variables) {
      if (id == name) return &value;
    }
  }
  return nullptr;
}

void Interpreter::assign(uint32_t name, const Value& value) {
  heap_.owe_work(scope_->variables.size());
  for (auto& [id, there] : scope_->variables) {
    if (id == name) {
      there = value;
      return;
    }
  }
  auto& variables = scope_->variables;
  if (variables.size() == variables.capacity()) {
    heap_.owe((variables.size() + 1) * 2 * sizeof(variables[0]));
  }
  variables.emplace_back(name, value);
}

Status Interpreter::assign_target(const Node& target, const Value& value) {
  if (heap_.stack().is_spent()) return located(target, StackBound::spent());
  if (target.kind == NodeKind::kName) {
    assign(target.name, value);
    return Status::ok();
  }
  if (target.kind == NodeKind::kNamespaceTarget) {
    const Value* ns = find(scope_, target.name);
    if (ns == nullptr || !ns->is(Kind::kNamespace)) {
      return located(target, Status::error(Code::kInvalidArgument,
                                           "cannot assign attribute on non-namespace object"));
    }
    return located(target, set_key(ns->dict, Value::of(target.text), value, &heap_));
  }
  std::vector<Value> items;
  if (value.is(Kind::kUndefined)) {
    return located(target,
                   Status::error(Code::kInvalidArgument, "%s", value.undefined->what.c_str()));
  }
  SHARPI_TRY(located(target, walk(value, &heap_, &items)));
  if (items.size() != target.children.size()) {
    return located(target, Status::error(Code::kInvalidArgument, "%zu values for %zu names",
                                         items.size(), target.children.size()));
  }
  for (size_t i = 0; i < items.size(); ++i)
    SHARPI_TRY(assign_target(*target.children[i], items[i]));
  return Status::ok();
}

// ---- Statements --------------------------------------------------------------------------------

Status Interpreter::body(const Nodes& nodes) {
  for (const Node* node : nodes) {
    SHARPI_TRY(statement(*node));
    if (flow_ != Flow::kNext) break;
  }
  return Status::ok();
}

Status Interpreter::body_in(Scope* scope, const Nodes& nodes) {
  Scope* const outer = std::exchange(scope_, scope);
  SHARPI_TRY(body(nodes));
  scope_ = outer;
  return Status::ok();
}

/// What the nodes would output.
Status Interpreter::captured(const Nodes& nodes, Scope* scope, MarkedText* out) {
  MarkedText* const outer = std::exchange(out_, out);
  SHARPI_TRY(body_in(scope, nodes));
  out_ = outer;
  return Status::ok();
}

Status Interpreter::statement(const Node& node) {
  return enter() ? statement_entered(node) : refusal(node);
}

Status Interpreter::statement_entered(const Node& node) {
  Status status = statement_inner(node);
  --depth_;
  return status;
}

/// Keeps nothing on the stack: whichever function it is takes its place there.
Status Interpreter::statement_inner(const Node& node) {
  switch (node.kind) {
    case NodeKind::kData:
      return data(node);
    case NodeKind::kOutput:
      return output(node);
    case NodeKind::kIf:
      return if_statement(node);
    case NodeKind::kFor:
      return for_statement(node);
    case NodeKind::kSet:
      return set_statement(node);
    case NodeKind::kSetBlock:
      return set_block(node);
    case NodeKind::kMacro:
      return macro_statement(node);
    case NodeKind::kCallBlock:
      return call_block(node);
    case NodeKind::kFilterBlock:
      return filter_block(node);
    case NodeKind::kWith:
      return with_statement(node);
    case NodeKind::kScope:
      return scope_statement(node);
    default:
      flow_ = node.kind == NodeKind::kBreak ? Flow::kBreak : Flow::kContinue;
      return Status::ok();
  }
}

Status Interpreter::data(const Node& node) {
  SHARPI_TRY(located(node, heap_.charge(node.text->size())));
  out_->append(*node.text);
  return Status::ok();
}

Status Interpreter::scope_statement(const Node& node) {
  return body_in(push_scope(scope_), node.body);
}

Status Interpreter::set_statement(const Node& node) {
  Value value;
  SHARPI_TRY(evaluate(*node.a, &value));
  return assign_target(*node.target, value);
}

Status Interpreter::macro_statement(const Node& node) {
  for (Scope* s = scope_; s != nullptr && !s->captured; s = s->parent) s->captured = true;
  Value macro;
  macro.kind = Kind::kMacro;
  heap_.owe(sizeof(Macro));
  macro.macro = &macros_.emplace_back(Macro{&node, scope_});
  assign(node.name, macro);
  return Status::ok();
}

Status Interpreter::output(const Node& node) {
  Value value;
  SHARPI_TRY(evaluate(*node.a, &value));
  return located(node, print(value, &heap_, out_));
}

Status Interpreter::if_statement(const Node& node) {
  for (const auto& [condition, nodes] : node.branches) {
    Value value;
    SHARPI_TRY(evaluate(*condition, &value));
    if (truthy(value)) return body(nodes);
  }
  return body(node.orelse);
}

/// Makes sure that one more item is fetched; *has: whether there is one.
Status Interpreter::fetch(Loop* loop, bool* has) {
  const Node& node = *loop->node;
  while (loop->next_source < loop->source.size()) {
    const Value item = loop->source[loop->next_source++];
    bool passes = true;
    if (node.b != nullptr) {
      Scope* const outer = std::exchange(scope_, push_scope(loop->outer));
      SHARPI_TRY(located(node, step()));
      SHARPI_TRY(assign_target(*node.target, item));
      Value answer;
      SHARPI_TRY(evaluate(*node.b, &answer));
      passes = truthy(answer);
      scope_ = outer;
    }
    if (!passes) continue;
    if (loop->n_ahead() == 0) {
      loop->ahead.clear();
      loop->next_ahead = 0;
    } else {
      heap_.owe(2 * sizeof(Value));
    }
    loop->ahead.push_back(item);
    *has = true;
    return Status::ok();
  }
  *has = false;
  return Status::ok();
}

Status Interpreter::for_statement(const Node& node) {
  Value iterable;
  SHARPI_TRY(evaluate(*node.a, &iterable));
  heap_.owe(sizeof(Loop) + 2 * sizeof(Value));  // and the first that is ahead
  Loop& loop = loops_.emplace_back();
  loop.node = &node;
  loop.outer = scope_;
  SHARPI_TRY(located(*node.a, walk(iterable, &heap_, &loop.source)));
  Value self;
  self.kind = Kind::kLoop;
  self.loop = &loop;
  Scope* scope = push_scope(scope_);
  for (;;) {
    bool has = loop.n_ahead() != 0;
    if (!has) SHARPI_TRY(fetch(&loop, &has));
    if (!has) break;
    SHARPI_TRY(located(node, step()));
    loop.has_previous = loop.index0 >= 0;
    loop.previous = loop.current;
    loop.current = loop.ahead[loop.next_ahead++];
    ++loop.index0;
    if (scope->captured) scope = push_scope(loop.outer);
    scope->variables.clear();
    Scope* const outer = std::exchange(scope_, scope);
    if (loop_name_ != kNoName) assign(loop_name_, self);
    SHARPI_TRY(assign_target(*node.target, loop.current));
    SHARPI_TRY(body(node.body));
    scope_ = outer;
    if (std::exchange(flow_, Flow::kNext) == Flow::kBreak) break;
  }
  return loop.index0 < 0 ? body_in(push_scope(scope_), node.orelse) : Status::ok();
}

Status Interpreter::set_block(const Node& node) {
  MarkedText text;
  SHARPI_TRY(captured(node.body, push_scope(scope_), &text));
  Value value = heap_.text(std::move(text));
  if (node.a != nullptr) {
    const Value plain = value;
    SHARPI_TRY(filter_chain(*node.a, plain, &value));
  }
  return assign_target(*node.target, value);
}

Status Interpreter::call_block(const Node& node) {
  Scope* const scope = scope_;
  for (Scope* s = scope; s != nullptr && !s->captured; s = s->parent) s->captured = true;
  Value callee, caller, result;
  Arguments given;
  SHARPI_TRY(evaluate(*node.a->a, &callee));
  SHARPI_TRY(arguments(*node.a, &given));
  caller.kind = Kind::kMacro;
  heap_.owe(sizeof(Macro));
  caller.macro = &macros_.emplace_back(Macro{&node, scope});
  if (!callee.is(Kind::kMacro)) {
    return located(
        node, Status::error(Code::kUnsupported, "call wants a macro, not %s", type_name(callee)));
  }
  SHARPI_TRY(located(node, call_macro(*callee.macro, given, &caller, &result)));
  return located(node, print(result, &heap_, out_));
}

Status Interpreter::filter_block(const Node& node) {
  MarkedText text;
  SHARPI_TRY(captured(node.body, push_scope(scope_), &text));
  Value value;
  SHARPI_TRY(filter_chain(*node.a, heap_.text(std::move(text)), &value));
  return located(node, print(value, &heap_, out_));
}

Status Interpreter::with_statement(const Node& node) {
  Scope* const scope = push_scope(scope_);
  for (const Argument& argument : node.arguments) {
    Value value;
    SHARPI_TRY(evaluate(*argument.value, &value));
    Scope* const outer = std::exchange(scope_, scope);
    assign(argument.name, value);
    scope_ = outer;
  }
  return body_in(scope, node.body);
}

Status Interpreter::run(std::span<const Variable> variables, MarkedText* out) {
  out_ = out;
  const StackEntry entry(&heap_.stack());
  scope_ = push_scope(nullptr);
  loop_name_ = name_id("loop");
  caller_name_ = name_id("caller");
  varargs_name_ = name_id("varargs");
  kwargs_name_ = name_id("kwargs");
  for (const auto& [name, function] : kFunctions) {
    if (const uint32_t id = name_id(name); id != kNoName) assign(id, Value::of(function));
  }
  for (const auto& [name, value] : variables) {
    if (const uint32_t id = name_id(name); id != kNoName) assign(id, value);
  }
  scope_ = push_scope(scope_);
  return body(program_.body);
}

Template::Template(std::unique_ptr<const Program> program) : program_(std::move(program)) {}
Template::~Template() = default;

Result<std::shared_ptr<const Template>> Template::parse(std::string_view source) {
  SHARPI_TRY_ASSIGN(auto program, parse_template(source));
  return std::shared_ptr<const Template>(new Template(std::move(program)));
}

Status Template::render(std::span<const Variable> variables, int64_t now, const Limits& limits,
                        Heap* heap, MarkedText* out) const {
  return Interpreter(*program_, heap, limits, now).run(variables, out);
}

}  // namespace sharpi::jinja
