// SPDX-License-Identifier: MIT
// Expressions.
#include <algorithm>

#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/tests.h"

namespace sharpi::jinja {
namespace {

/// Whether Jinja works the expression out before rendering, by rules that are milder in places.
bool is_constant(const Node* node) {
  return node == nullptr || node->is_plain;
}

[[gnu::cold]] Status slice_alone() {
  return Status::error(Code::kInvalidArgument, "a slice stands where a value is expected");
}

/// A slice of what has none is undefined where all of it is constant, and Python's error elsewhere.
Status check_sliced(const Node& node, const Value& object) {
  const Node& slice = *node.b;
  const bool sliced = object.is_string() || object.is(Kind::kList) || object.is(Kind::kTuple) ||
                      object.is(Kind::kRange) || object.is(Kind::kUndefined);
  if (sliced || (is_constant(node.a) && is_constant(slice.a) && is_constant(slice.b) &&
                 is_constant(slice.c))) {
    return Status::ok();
  }
  return Status::error(Code::kInvalidArgument, "'%s' object is not subscriptable",
                       type_name(object));
}

}  // namespace

Status Interpreter::evaluate(const Node& node, Value* out) {
  if (node.kind == NodeKind::kConstant) {
    *out = node.constant;
    return Status::ok();
  }
  return enter() ? evaluate_entered(node, out) : refusal(node);
}

/// One status for all: it stands where the caller wants it, and takes no place here.
Status Interpreter::evaluate_entered(const Node& node, Value* out) {
  Status status = evaluate_inner(node, out);
  --depth_;
  if (!status.is_ok()) locate(node, &status);
  return status;
}

/// Keeps nothing on the stack: whichever function it is takes its place there.
Status Interpreter::evaluate_inner(const Node& node, Value* out) {
  switch (node.kind) {
    case NodeKind::kName:
      return evaluate_name(node, out);
    case NodeKind::kList:
    case NodeKind::kTuple:
      return evaluate_list(node, out);
    case NodeKind::kDict:
      return evaluate_dict(node, out);
    case NodeKind::kConditional:
      return evaluate_conditional(node, out);
    case NodeKind::kOr:
    case NodeKind::kAnd:
      return evaluate_junction(node, out);
    case NodeKind::kNot:
      return evaluate_not(node, out);
    case NodeKind::kCompare:
      return evaluate_compare(node, out);
    case NodeKind::kBinary:
      return evaluate_binary(node, out);
    case NodeKind::kConcat:
      return evaluate_concat(node, out);
    case NodeKind::kNegate:
    case NodeKind::kPlus:
      return evaluate_sign(node, out);
    case NodeKind::kAttribute:
      return evaluate_attribute(node, out);
    case NodeKind::kItem:
      return evaluate_item(node, out);
    case NodeKind::kCall:
      return call(node, out);
    case NodeKind::kFilter:
      return evaluate_filter(node, out);
    case NodeKind::kTest:
      return evaluate_test(node, out);
    default:
      return slice_alone();
  }
}

Status Interpreter::evaluate_conditional(const Node& node, Value* out) {
  Value condition;
  SHARPI_TRY(evaluate(*node.b, &condition));
  if (truthy(condition)) return evaluate(*node.a, out);
  if (node.c != nullptr) return evaluate(*node.c, out);
  *out = heap_.undefined("the condition was not met, and there is no else");
  return Status::ok();
}

Status Interpreter::evaluate_junction(const Node& node, Value* out) {
  SHARPI_TRY(evaluate(*node.a, out));
  return truthy(*out) == (node.kind == NodeKind::kOr) ? Status::ok() : evaluate(*node.b, out);
}

Status Interpreter::evaluate_not(const Node& node, Value* out) {
  Value value;
  SHARPI_TRY(evaluate(*node.a, &value));
  *out = Value::of(!truthy(value));
  return Status::ok();
}

Status Interpreter::evaluate_binary(const Node& node, Value* out) {
  Value a, b;
  SHARPI_TRY(evaluate(*node.a, &a));
  SHARPI_TRY(evaluate(*node.b, &b));
  return binary(node.op, a, b, &heap_, out);
}

Status Interpreter::evaluate_name(const Node& node, Value* out) {
  if (const Value* found = find(scope_, node.name)) {
    *out = *found;
  } else {
    std::string what(1, '\'');
    what.append(program_.names[node.name], 0, 64).append("' is undefined");
    *out = heap_.undefined(std::move(what));
  }
  return Status::ok();
}

Status Interpreter::evaluate_list(const Node& node, Value* out) {
  SHARPI_TRY(heap_.charge(node.children.size() * sizeof(Value) + sizeof(List)));
  List* list = heap_.list();
  list->items.resize(node.children.size());
  for (size_t i = 0; i < node.children.size(); ++i) {
    SHARPI_TRY(evaluate(*node.children[i], &list->items[i]));
  }
  *out = Value::of(node.kind == NodeKind::kList ? Kind::kList : Kind::kTuple, list);
  return Status::ok();
}

Status Interpreter::evaluate_dict(const Node& node, Value* out) {
  SHARPI_TRY(heap_.charge(node.children.size() * sizeof(Value) + sizeof(Dict)));
  Dict* dict = heap_.dict();
  for (size_t i = 0; i < node.children.size(); i += 2) {
    Value key, value;
    SHARPI_TRY(evaluate(*node.children[i], &key));
    SHARPI_TRY(evaluate(*node.children[i + 1], &value));
    if (key.is(Kind::kList) || key.is(Kind::kDict)) {
      return Status::error(Code::kInvalidArgument, "unhashable type: '%s'", type_name(key));
    }
    SHARPI_TRY(set_key(dict, key, value, &heap_));
  }
  *out = Value::of(Kind::kDict, dict);
  return Status::ok();
}

Status Interpreter::evaluate_compare(const Node& node, Value* out) {
  Value left;
  SHARPI_TRY(evaluate(*node.a, &left));
  bool holds = true;
  for (size_t i = 0; holds && i < node.ops.size(); ++i) {
    Value right;
    SHARPI_TRY(evaluate(*node.children[i], &right));
    SHARPI_TRY(compare(node.ops[i], left, right, &heap_, &holds));
    left = right;
  }
  *out = Value::of(holds);
  return Status::ok();
}

Status Interpreter::evaluate_concat(const Node& node, Value* out) {
  MarkedText text;
  for (const Node* part : node.children) {
    Value value;
    SHARPI_TRY(evaluate(*part, &value));
    SHARPI_TRY(print(value, &heap_, &text));
  }
  *out = heap_.text(std::move(text));
  return Status::ok();
}

Status Interpreter::evaluate_sign(const Node& node, Value* out) {
  Value value;
  SHARPI_TRY(evaluate(*node.a, &value));
  if (value.is(Kind::kUndefined)) {
    return Status::error(Code::kInvalidArgument, "%s", value.undefined->what.c_str());
  }
  if (!value.is_number() && !value.is(Kind::kNumeral)) {
    return Status::error(Code::kInvalidArgument, "bad operand type for unary %c: '%s'",
                         node.kind == NodeKind::kNegate ? '-' : '+', type_name(value));
  }
  const Value factor = Value::of(int64_t{node.kind == NodeKind::kNegate ? -1 : 1});
  return binary(Op::kMul, value, factor, &heap_, out);
}

Status Interpreter::evaluate_attribute(const Node& node, Value* out) {
  Value object;
  SHARPI_TRY(evaluate(*node.a, &object));
  return attribute(node, object, out);
}

Status Interpreter::attribute(const Node& node, const Value& object, Value* out) {
  const std::string_view name = node.text->bytes();
  switch (object.kind) {
    case Kind::kUndefined:
      return Status::error(Code::kInvalidArgument, "%s", object.undefined->what.c_str());
    case Kind::kLoop:
      return loop_attribute(object.loop, node, out);
    case Kind::kNamespace: {
      const Value* found = nullptr;
      SHARPI_TRY(find_key(*object.dict, Value::of(node.text), &heap_, &found));
      *out = found != nullptr ? *found : heap_.undefined("the namespace has no such attribute");
      return Status::ok();
    }
    default:
      break;
  }
  const auto method = static_cast<Method>(node.id);
  if (has_method(object, method, name)) {
    *out = heap_.method(object, node.id, name);
    return Status::ok();
  }
  return item_of(object, Value::of(node.text), &heap_, out);
}

Status Interpreter::evaluate_item(const Node& node, Value* out) {
  Value object;
  SHARPI_TRY(evaluate(*node.a, &object));
  return node.b->kind == NodeKind::kSlice ? slice(node, object, out) : item(node, object, out);
}

Status Interpreter::slice(const Node& node, const Value& object, Value* out) {
  Value parts[3] = {Value::none(), Value::none(), Value::none()};
  const Node* nodes[3] = {node.b->a, node.b->b, node.b->c};
  for (int i = 0; i < 3; ++i) {
    if (nodes[i] != nullptr) SHARPI_TRY(evaluate(*nodes[i], &parts[i]));
  }
  SHARPI_TRY(check_sliced(node, object));
  return slice_of(object, parts[0], parts[1], parts[2], &heap_, out);
}

Status Interpreter::item(const Node& node, const Value& object, Value* out) {
  Value key;
  SHARPI_TRY(evaluate(*node.b, &key));
  if (object.is(Kind::kNamespace) && key.is_string()) {
    const Value* found = nullptr;
    SHARPI_TRY(find_key(*object.dict, key, &heap_, &found));
    *out = found != nullptr ? *found : heap_.undefined("the namespace has no such attribute");
    return Status::ok();
  }
  return item_of(object, key, &heap_, out);
}

Status Interpreter::filter_chain(const Node& node, const Value& value, Value* out) {
  if (heap_.stack().is_spent()) return located(node, StackBound::spent());
  Value input = value;
  if (node.a != nullptr) SHARPI_TRY(filter_chain(*node.a, value, &input));
  Arguments given;
  SHARPI_TRY(arguments(node, &given));
  return located(node, apply_filter(static_cast<Filter>(node.id), node.text->bytes(), input, given,
                                    &heap_, out));
}

Status Interpreter::evaluate_filter(const Node& node, Value* out) {
  Value value;
  SHARPI_TRY(evaluate(*node.a, &value));
  return filter(node, value, out);
}

Status Interpreter::filter(const Node& node, const Value& value, Value* out) {
  Arguments given;
  SHARPI_TRY(arguments(node, &given));
  return apply_filter(static_cast<Filter>(node.id), node.text->bytes(), value, given, &heap_, out);
}

Status Interpreter::evaluate_test(const Node& node, Value* out) {
  Value value;
  SHARPI_TRY(evaluate(*node.a, &value));
  return test(node, value, out);
}

Status Interpreter::test(const Node& node, const Value& value, Value* out) {
  Arguments given;
  SHARPI_TRY(arguments(node, &given));
  const auto test = static_cast<Test>(node.id);
  bool answer = false;
  SHARPI_TRY(apply_test(test, node.text->bytes(), value, given, &heap_, &answer));
  *out = Value::of(answer);
  return Status::ok();
}

Status Interpreter::arguments(const Node& node, Arguments* out) {
  out->positional.resize(node.children.size());
  for (size_t i = 0; i < node.children.size(); ++i) {
    SHARPI_TRY(evaluate(*node.children[i], &out->positional[i]));
  }
  for (const auto& [name, value] : node.keywords) {
    out->keywords.push_back({name, {}});
    SHARPI_TRY(evaluate(*value, &out->keywords.back().value));
  }
  const bool call = node.kind == NodeKind::kCall || node.kind == NodeKind::kFilter ||
                    node.kind == NodeKind::kTest;
  if (call && node.c != nullptr) {
    Value list;
    SHARPI_TRY(evaluate(*node.c, &list));
    std::vector<Value> items;
    SHARPI_TRY(walk(list, &heap_, &items));
    out->positional.insert(out->positional.end(), items.begin(), items.end());
  }
  if (call && node.b != nullptr) {
    Value dict;
    SHARPI_TRY(evaluate(*node.b, &dict));
    if (!dict.is(Kind::kDict)) {
      return Status::error(Code::kInvalidArgument, "** wants a dict, not %s", type_name(dict));
    }
    SHARPI_TRY(heap_.charge(dict.dict->items.size() * 2 * sizeof(*out->keywords.data())));
    for (const auto& [key, value] : dict.dict->items) {
      if (!key.is_string())
        return Status::error(Code::kInvalidArgument, "keywords must be strings");
      out->keywords.push_back({key.bytes(), value, key.text});
    }
  }
  return Status::ok();
}

}  // namespace sharpi::jinja
