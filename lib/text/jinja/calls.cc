// SPDX-License-Identifier: MIT
// Calls: macros, methods, global functions, and what `loop` has.
#include <algorithm>
#include <ctime>

#include "os/c_locale.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/methods.h"

namespace sharpi::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;  // as in Jinja's sandbox

Status not_callable(const Value& value) {
  if (value.is(Kind::kUndefined)) {
    return Status::error(Code::kInvalidArgument, "%s", value.undefined->what.c_str());
  }
  return Status::error(Code::kInvalidArgument, "'%s' object is not callable", type_name(value));
}

[[gnu::cold]] Status no_method(const Value& self, std::string_view name) {
  return Status::error(Code::kInvalidArgument, "'%s' object has no method '%.*s'", type_name(self),
                       static_cast<int>(std::min<size_t>(name.size(), 64)), name.data());
}

/// A keyword's name as the key of a dict.
Value key_of(const Keyword& keyword, Heap* heap) {
  return keyword.key != nullptr ? Value::of(keyword.key) : heap->text(keyword.name, false);
}

}  // namespace

Status Interpreter::call(const Node& node, Value* out) {
  const bool named = node.a->kind == NodeKind::kAttribute;
  Value callee;
  SHARPI_TRY(evaluate(named ? *node.a->a : *node.a, &callee));
  return named ? call_named(node, callee, out) : call_with(node, callee, out);
}

/// A method that is called where it is named needs no object of its own.
Status Interpreter::call_named(const Node& node, const Value& self, Value* out) {
  const Node& attribute = *node.a;
  const std::string_view name = attribute.text->bytes();
  const auto method = static_cast<Method>(attribute.id);
  const bool has = has_method(self, method, name);
  if (has || self.is(Kind::kLoop)) {
    Arguments given;
    SHARPI_TRY(arguments(node, &given));
    return has ? call_method(self, method, name, given, &heap_, out)
               : call_loop(self.loop, name, given, out);
  }
  const Value* callee = nullptr;
  if (self.is(Kind::kDict) || self.is(Kind::kNamespace)) {
    SHARPI_TRY(find_key(*self.dict, Value::of(attribute.text), &heap_, &callee));
  }
  return callee != nullptr && !callee->is(Kind::kUndefined) ? call_with(node, Value(*callee), out)
                                                            : no_method(self, name);
}

Status Interpreter::call_with(const Node& node, const Value& callee, Value* out) {
  Arguments given;
  SHARPI_TRY(arguments(node, &given));
  return call_value(callee, given, out);
}

Status Interpreter::call_value(const Value& callee, const Arguments& given, Value* out) {
  switch (callee.kind) {
    case Kind::kMacro:
      return call_macro(*callee.macro, given, nullptr, out);
    case Kind::kFunction:
      return call_function(callee.function, given, out);
    case Kind::kMethod: {
      const BoundMethod& bound = *callee.method;
      return call_method(bound.self, static_cast<Method>(bound.method), bound.name, given, &heap_,
                         out);
    }
    case Kind::kLoop:
      return Status::error(Code::kUnsupported, "recursive loops are not supported");
    default:
      return not_callable(callee);
  }
}

/// Gives the macro's arguments their values, in the current scope.
Status Interpreter::bind_macro(const Macro& macro, const Arguments& given, bool has_caller) {
  const Node& node = *macro.node;
  const size_t n = node.arguments.size();
  std::vector<const Value*> values(n, nullptr);
  for (size_t i = 0; i < std::min(n, given.positional.size()); ++i)
    values[i] = &given.positional[i];
  List* more = heap_.list();
  Dict* named = heap_.dict();
  SHARPI_TRY(heap_.charge(given.size() * 2 * sizeof(Value)));
  for (size_t i = n; i < given.positional.size(); ++i) more->items.push_back(given.positional[i]);
  bool caller_given = false;
  for (const Keyword& keyword : given.keywords) {
    const auto& [name, value, key] = keyword;
    size_t i = 0;
    while (i < n && program_.names[node.arguments[i].name] != name) ++i;
    SHARPI_TRY(heap_.work(2 * i));
    if (i < n && values[i] == nullptr) {
      values[i] = &value;
    } else if (i == n && node.wants_kwargs) {
      SHARPI_TRY(set_key(named, key_of(keyword, &heap_), value, &heap_));
    } else if (i == n && name == "caller" && !has_caller) {
      caller_given = true;
      if (caller_name_ != kNoName) assign(caller_name_, value);
    } else {
      return Status::error(Code::kInvalidArgument, "macro '%.64s' takes no keyword argument '%.*s'",
                           node.text->bytes().c_str(),
                           static_cast<int>(std::min<size_t>(name.size(), 64)), name.data());
    }
  }
  if (!more->items.empty() && !node.wants_varargs) {
    return Status::error(Code::kInvalidArgument,
                         "macro '%.64s' takes not more than %zu argument(s)",
                         node.text->bytes().c_str(), n);
  }
  for (size_t i = 0; i < n; ++i) {
    Value value;
    if (values[i] != nullptr) {
      value = *values[i];
    } else if (node.arguments[i].value != nullptr) {
      SHARPI_TRY(evaluate(*node.arguments[i].value, &value));
    } else {
      std::string what("parameter '");
      what.append(program_.names[node.arguments[i].name], 0, 64).append("' was not provided");
      value = heap_.undefined(std::move(what));
    }
    assign(node.arguments[i].name, value);
  }
  if (node.wants_varargs) assign(varargs_name_, Value::of(Kind::kTuple, more));
  if (node.wants_kwargs) assign(kwargs_name_, Value::of(Kind::kDict, named));
  if (caller_name_ != kNoName && !has_caller && !caller_given) {
    assign(caller_name_, heap_.undefined("No caller defined"));
  }
  return Status::ok();
}

Status Interpreter::call_macro(const Macro& macro, const Arguments& given, const Value* caller,
                               Value* out) {
  Scope* const outer = std::exchange(scope_, push_scope(macro.scope));
  MarkedText* const outer_out = out_;
  MarkedText text;
  out_ = &text;
  if (caller != nullptr && caller_name_ != kNoName) assign(caller_name_, *caller);
  SHARPI_TRY(
      bind_macro(macro, given, caller != nullptr || macro.node->kind == NodeKind::kCallBlock));
  SHARPI_TRY(body(macro.node->body));
  scope_ = outer;
  out_ = outer_out;
  *out = heap_.text(std::move(text));
  return Status::ok();
}

Status Interpreter::range(const Arguments& given, Value* out) {
  int64_t v[3] = {0, 0, 1};
  bool foreign = false;
  const size_t n = given.positional.size();
  if (n < 1 || n > 3 || !given.keywords.empty()) {
    return Status::error(Code::kInvalidArgument, "range takes one to three numbers");
  }
  for (size_t i = 0; i < n; ++i) {
    const Value& p = given.positional[i];
    if (p.is(Kind::kUndefined)) return not_callable(p);
    if (!p.is(Kind::kInt) && !p.is(Kind::kBool)) {
      return Status::error(Code::kInvalidArgument,
                           "'%s' object cannot be interpreted as an integer", type_name(p));
    }
    v[n == 1 ? 1 : i] = p.is(Kind::kInt) ? p.integer : p.boolean;
    foreign = foreign || p.foreign;
  }
  if (v[2] == 0) return Status::error(Code::kInvalidArgument, "range() arg 3 must not be zero");
  __extension__ using Wide = __int128;
  const Wide step = v[2] > 0 ? Wide{v[2]} : -Wide{v[2]};
  const Wide span = v[2] > 0 ? Wide{v[1]} - v[0] : Wide{v[0]} - v[1];
  const Wide count = span <= 0 ? Wide{0} : (span + step - 1) / step;
  if (count > kMaxRange) {
    return Status::error(Code::kDoesNotFit,
                         "Range too big. The sandbox blocks ranges larger than %lld.",
                         static_cast<long long>(kMaxRange));
  }
  List* list = heap_.list();
  SHARPI_TRY(heap_.charge(static_cast<uint64_t>(count) * sizeof(Value)));
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) {
    list->items.push_back(Value::of(v[0] + i * v[2]));
    list->items.back().foreign = foreign;
  }
  *out = Value::of(Kind::kRange, list);
  return Status::ok();
}

Status Interpreter::strftime_now(const Arguments& given, Value* out) {
  Value p;
  SHARPI_TRY(bind(given, "strftime_now", {"format"}, &p));
  if (!p.is_string() || p.text->size() > 256) {
    return Status::error(Code::kInvalidArgument,
                         "strftime_now wants a format of 256 bytes at most");
  }
  std::tm parts{};
  if (!os::local_time(static_cast<int64_t>(now_), &parts)) {
    return Status::error(Code::kInvalidArgument, "the time cannot be told");
  }
  char text[1024];
  // The byte in front tells an empty result from one that does not fit.
  std::string format(1, 'x');
  format.append(p.bytes());
  const size_t n = os::english_time(text, sizeof text, format.c_str(), parts);
  if (n == 0) return Status::error(Code::kDoesNotFit, "strftime_now gives more than 1023 bytes");
  *out = heap_.text(std::string_view(text + 1, n - 1), p.text->has_foreign());
  return Status::ok();
}

Status Interpreter::call_function(Function function, const Arguments& given, Value* out) {
  switch (function) {
    case Function::kRange:
      return range(given, out);
    case Function::kDict:
    case Function::kNamespace: {
      Dict* dict = heap_.dict();
      if (given.positional.size() > 1 ||
          (given.positional.size() == 1 && !given.positional[0].is(Kind::kDict))) {
        return Status::error(Code::kUnsupported, "dict and namespace take names and one dict");
      }
      const size_t copied = given.positional.empty() ? 0 : given.positional[0].dict->items.size();
      SHARPI_TRY(heap_.charge((given.size() + copied) * 2 * sizeof(Value)));
      if (!given.positional.empty()) dict->items = given.positional[0].dict->items;
      for (const Keyword& keyword : given.keywords) {
        SHARPI_TRY(set_key(dict, key_of(keyword, &heap_), keyword.value, &heap_));
      }
      *out = Value::of(function == Function::kDict ? Kind::kDict : Kind::kNamespace, dict);
      return Status::ok();
    }
    case Function::kRaiseException: {
      Value p = Value::none();
      SHARPI_TRY(bind(given, "raise_exception", {"message"}, &p));
      MarkedText text;
      SHARPI_TRY(print(p, &heap_, &text));
      return Status::error(Code::kInvalidArgument, "the template refuses: %.240s",
                           text.bytes().c_str());
    }
    case Function::kStrftimeNow:
      return strftime_now(given, out);
    case Function::kUnsupported:
      break;
  }
  return Status::error(Code::kUnsupported, "cycler, joiner and lipsum are not supported");
}

Status Interpreter::loop_attribute(Loop* loop, const Node& node, Value* out) {
  const std::string_view name = node.text->bytes();
  bool has = loop->n_ahead() != 0;
  const bool counts = name == "length" || name == "revindex" || name == "revindex0";
  if (counts && loop->node->b == nullptr) {
    has = false;  // known without walking
  } else if (counts) {
    do SHARPI_TRY(fetch(loop, &has));
    while (has);
  }
  const bool peeks = name == "last" || name == "nextitem";
  if (peeks && !has) SHARPI_TRY(fetch(loop, &has));
  const int64_t behind =
      static_cast<int64_t>(loop->n_ahead()) +
      (loop->node->b == nullptr ? static_cast<int64_t>(loop->source.size() - loop->next_source)
                                : 0);
  const int64_t length = loop->index0 + 1 + behind;
  if (name == "index0")
    *out = Value::of(loop->index0);
  else if (name == "index")
    *out = Value::of(loop->index0 + 1);
  else if (name == "first")
    *out = Value::of(loop->index0 == 0);
  else if (name == "last")
    *out = Value::of(!has);
  else if (name == "length")
    *out = Value::of(length);
  else if (name == "revindex")
    *out = Value::of(length - loop->index0);
  else if (name == "revindex0")
    *out = Value::of(length - loop->index0 - 1);
  else if (name == "depth")
    *out = Value::of(int64_t{1});
  else if (name == "depth0")
    *out = Value::of(int64_t{0});
  else if (name == "previtem")
    *out = loop->has_previous ? loop->previous : heap_.undefined("there is no previous item");
  else if (name == "nextitem")
    *out = has ? loop->ahead[loop->next_ahead] : heap_.undefined("there is no next item");
  else
    *out = heap_.undefined("'loop' has no such attribute");
  return Status::ok();
}

Status Interpreter::call_loop(Loop* loop, std::string_view method, const Arguments& given,
                              Value* out) {
  if (method == "cycle") {
    if (given.positional.empty()) {
      return Status::error(Code::kInvalidArgument, "no items for cycling given");
    }
    const size_t n = given.positional.size();
    *out = given.positional[static_cast<size_t>(loop->index0) % n];
    return Status::ok();
  }
  if (method != "changed") {
    return Status::error(Code::kInvalidArgument, "'loop' has no method '%.*s'",
                         static_cast<int>(std::min<size_t>(method.size(), 64)), method.data());
  }
  bool same = loop->last_changed.size() == given.positional.size() + 1;
  for (size_t i = 0; same && i < given.positional.size(); ++i) {
    SHARPI_TRY(equal(loop->last_changed[i + 1], given.positional[i], &heap_, &same));
  }
  *out = Value::of(!same);
  heap_.owe(given.size() * sizeof(Value));
  loop->last_changed.assign(1, Value::none());  // it has been asked before
  loop->last_changed.insert(loop->last_changed.end(), given.positional.begin(),
                            given.positional.end());
  return Status::ok();
}

}  // namespace sharpi::jinja
