// SPDX-License-Identifier: MIT
// Walks a Program: statements append to the current output, expressions give values.
// Thread rule: one owner; one rendering.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/arguments.h"
#include "text/jinja/ast.h"
#include "text/jinja/template.h"

namespace sharpi::jinja {

constexpr uint32_t kNoName = UINT32_MAX;  // of a name that the template does not have

/// Variables of one block. Inner scopes see outer ones; assignments stay in the innermost.
struct Scope {
  Scope* parent = nullptr;
  bool captured = false;  // a macro remembers it
  std::vector<std::pair<uint32_t, Value>> variables;
};

struct Macro {
  const Node* node;  // kMacro or kCallBlock
  Scope* scope;
};

/// What `loop` is. Items behind the current one are fetched when something asks for them, as in
/// Jinja: a loop's filter may read what the body has changed.
struct Loop {
  const Node* node = nullptr;
  Scope* outer = nullptr;
  std::vector<Value> source;
  size_t next_source = 0;
  std::vector<Value> ahead;  // fetched; those before next_ahead have been current
  size_t next_ahead = 0;
  int64_t index0 = -1;
  Value previous, current;
  bool has_previous = false;
  std::vector<Value> last_changed;

  size_t n_ahead() const { return ahead.size() - next_ahead; }
};

class Interpreter {
 public:
  Interpreter(const Program& program, Heap* heap, const Limits& limits, int64_t now)
      : program_(program), heap_(*heap), limits_(limits), now_(now) {}
  Status run(std::span<const Variable> variables, MarkedText* out);

 private:
  using Nodes = std::vector<const Node*>;
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  /// Counts a step and a level. False: one of them is too much, and refusal() says which.
  [[gnu::noinline]] bool enter();
  [[gnu::cold, gnu::noinline]] Status refusal(const Node& node);
  Status step();
  Status located(const Node& node, Status status);
  [[gnu::cold, gnu::noinline]] void locate(const Node& node, Status* status);
  Scope* push_scope(Scope* parent);
  uint32_t name_id(std::string_view name) const;
  const Value* find(const Scope* scope, uint32_t name);
  void assign(uint32_t name, const Value& value);
  Status assign_target(const Node& target, const Value& value);

  // Statements (interpreter.cc).
  Status body(const Nodes& nodes);
  Status body_in(Scope* scope, const Nodes& nodes);
  Status captured(const Nodes& nodes, Scope* scope, MarkedText* out);
  Status statement(const Node& node);
  Status statement_entered(const Node& node);
  Status statement_inner(const Node& node);
  Status scope_statement(const Node& node);
  Status data(const Node& node);
  Status set_statement(const Node& node);
  Status macro_statement(const Node& node);
  Status output(const Node& node);
  Status if_statement(const Node& node);
  Status for_statement(const Node& node);
  Status set_block(const Node& node);
  Status call_block(const Node& node);
  Status filter_block(const Node& node);
  Status with_statement(const Node& node);
  Status fetch(Loop* loop, bool* has);
  Status loop_attribute(Loop* loop, const Node& node, Value* out);

  // Expressions (evaluate.cc).
  Status evaluate(const Node& node, Value* out);
  Status evaluate_entered(const Node& node, Value* out);
  Status evaluate_inner(const Node& node, Value* out);
  Status evaluate_conditional(const Node& node, Value* out);
  Status evaluate_junction(const Node& node, Value* out);
  Status evaluate_not(const Node& node, Value* out);
  Status evaluate_binary(const Node& node, Value* out);
  Status evaluate_list(const Node& node, Value* out);
  Status evaluate_dict(const Node& node, Value* out);
  Status evaluate_name(const Node& node, Value* out);
  Status evaluate_compare(const Node& node, Value* out);
  Status evaluate_concat(const Node& node, Value* out);
  Status evaluate_sign(const Node& node, Value* out);
  Status evaluate_attribute(const Node& node, Value* out);
  Status evaluate_item(const Node& node, Value* out);
  Status evaluate_filter(const Node& node, Value* out);
  Status evaluate_test(const Node& node, Value* out);
  // The rest of some, when what stands before is evaluated. Long chains do without their frames.
  [[gnu::noinline]] Status attribute(const Node& node, const Value& object, Value* out);
  [[gnu::noinline]] Status slice(const Node& node, const Value& object, Value* out);
  [[gnu::noinline]] Status item(const Node& node, const Value& object, Value* out);
  [[gnu::noinline]] Status filter(const Node& node, const Value& value, Value* out);
  [[gnu::noinline]] Status test(const Node& node, const Value& value, Value* out);
  Status filter_chain(const Node& node, const Value& value, Value* out);
  Status arguments(const Node& node, Arguments* out);

  // Calls (calls.cc).
  Status call(const Node& node, Value* out);
  [[gnu::noinline]] Status call_named(const Node& node, const Value& self, Value* out);
  [[gnu::noinline]] Status call_with(const Node& node, const Value& callee, Value* out);
  Status call_value(const Value& callee, const Arguments& arguments, Value* out);
  Status call_macro(const Macro& macro, const Arguments& arguments, const Value* caller,
                    Value* out);
  Status bind_macro(const Macro& macro, const Arguments& arguments, bool has_caller);
  Status call_function(Function function, const Arguments& arguments, Value* out);
  Status call_loop(Loop* loop, std::string_view method, const Arguments& arguments, Value* out);
  Status range(const Arguments& arguments, Value* out);
  Status strftime_now(const Arguments& arguments, Value* out);

  const Program& program_;
  Heap& heap_;
  Limits limits_;
  int64_t now_;
  uint64_t steps_ = 0;
  uint32_t depth_ = 0;
  bool located_ = false;
  Flow flow_ = Flow::kNext;
  Scope* scope_ = nullptr;
  MarkedText* out_ = nullptr;
  std::deque<Scope> scopes_;
  std::deque<Macro> macros_;
  std::deque<Loop> loops_;
  uint32_t loop_name_ = 0, caller_name_ = 0, varargs_name_ = 0, kwargs_name_ = 0;
};

}  // namespace sharpi::jinja
