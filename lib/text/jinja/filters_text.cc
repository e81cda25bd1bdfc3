// SPDX-License-Identifier: MIT
// Filters over strings.
#include <algorithm>

#include "text/jinja/filters.h"
#include "text/jinja/methods.h"

namespace sharpi::jinja {
namespace {

Status indent_filter(const Value& text, const Arguments& arguments, Heap* heap, Value* out) {
  Value p[3] = {Value::of(int64_t{4}), Value::of(false), Value::of(false)};
  SHARPI_TRY(bind(arguments, "indent", {"width", "first", "blank"}, p));
  MarkedText by;
  if (p[0].is_string()) {
    by = *p[0].text;
  } else if (p[0].is(Kind::kInt)) {
    const auto spaces = static_cast<size_t>(std::clamp<int64_t>(p[0].integer, 0, 64));
    by = MarkedText(std::string(spaces, ' '), p[0].foreign);
  }
  if (by.size() > 64) return Status::error(Code::kDoesNotFit, "indent is 64 at most");
  // Lines end where splitlines() ends them, with a last \n added; Jinja joins them with \n again.
  MarkedText ended = *text.text;
  ended.append("\n", false);
  const Value whole = heap->text(std::move(ended));
  Value lines, with_ends;
  Arguments keep_ends;
  keep_ends.positional.push_back(Value::of(true));
  SHARPI_TRY(call_method(whole, Method::kSplitlines, "splitlines", {}, heap, &lines));
  SHARPI_TRY(call_method(whole, Method::kSplitlines, "splitlines", keep_ends, heap, &with_ends));
  const std::vector<Value>& parts = lines.list->items;
  MarkedText result;
  SHARPI_TRY(heap->charge(parts.size() * (by.size() + by.mark_bytes() + 9)));
  for (size_t i = 0; i < parts.size(); ++i) {
    const MarkedText& line = *parts[i].text;
    if (i > 0) {
      const MarkedText& before = *with_ends.list->items[i - 1].text;
      result.append("\n", before.foreign_in(parts[i - 1].text->size(), before.size()));
    }
    const bool indents = i == 0 ? truthy(p[1]) : truthy(p[2]) || !line.empty();
    if (indents) result.append(by);
    result.append(line);
  }
  *out = heap->text(std::move(result), text.safe);
  return Status::ok();
}

Status join_filter(const Value& value, const Arguments& arguments, Heap* heap, Value* out) {
  Value p[2] = {heap->text("", false), Value::none()};
  SHARPI_TRY(bind(arguments, "join", {"d", "attribute"}, p));
  std::vector<Value> items;
  SHARPI_TRY(walk(value, heap, &items));
  if (!p[1].is(Kind::kNone)) {
    for (Value& item : items) {
      const Value whole = item;
      SHARPI_TRY(attribute_of(whole, p[1], heap, &item));
    }
  }
  Value separator;
  SHARPI_TRY(as_text(p[0], heap, &separator));
  MarkedText text;
  SHARPI_TRY(join_texts(*separator.text, items, true, heap, &text));
  *out = heap->text(std::move(text));
  return Status::ok();
}

Status replace_filter(const Value& text, const Arguments& arguments, Heap* heap, Value* out) {
  Value p[3] = {{}, {}, Value::none()};
  SHARPI_TRY(bind(arguments, "replace", {"old", "new", "count"}, p));
  Value from, to;
  SHARPI_TRY(as_text(p[0], heap, &from));
  SHARPI_TRY(as_text(p[1], heap, &to));
  const int64_t count = p[2].is(Kind::kInt) ? p[2].integer : -1;
  SHARPI_TRY(replace_text(text, from, to, count, heap, out));
  out->safe = false;
  return Status::ok();
}

Status format_filter(const Value& text, const Arguments& arguments, Heap* heap, Value* out) {
  if (!arguments.keywords.empty()) {
    return Status::error(Code::kUnsupported, "format with named values is not supported");
  }
  List* list = heap->list();
  list->items = arguments.positional;
  return format_percent(text, Value::of(Kind::kTuple, list), heap, out);
}

Status trim_filter(const Value& text, const Arguments& arguments, Heap* heap, Value* out) {
  Value p = Value::none();
  SHARPI_TRY(bind(arguments, "trim", {"chars"}, &p));
  if (!p.is(Kind::kNone) && !p.is_string()) {
    return Status::error(Code::kInvalidArgument, "trim wants a string of characters");
  }
  return strip_text(text, p.is_string() ? &p : nullptr, Side::kBoth, heap, out);
}

}  // namespace

Status text_filter(Filter filter, const Value& value, const Arguments& arguments, Heap* heap,
                   Value* out) {
  if (filter == Filter::kJoin) return join_filter(value, arguments, heap, out);
  Value text;
  SHARPI_TRY(as_text(value, heap, &text));
  SHARPI_TRY(heap->work(text.text->size()));
  SHARPI_TRY(heap->charge(text.text->size()));
  switch (filter) {
    case Filter::kCapitalize:
      return change_case(text, Case::kCapitalize, heap, out);
    case Filter::kEscape: {
      if (text.safe) {
        *out = text;
        return Status::ok();
      }
      MarkedText escaped;
      SHARPI_TRY(escape_text(*text.text, heap, &escaped));
      *out = heap->text(std::move(escaped), true);
      return Status::ok();
    }
    case Filter::kFormat:
      return format_filter(text, arguments, heap, out);
    case Filter::kIndent:
      return indent_filter(text, arguments, heap, out);
    case Filter::kLower:
      return change_case(text, Case::kLower, heap, out);
    case Filter::kReplace:
      return replace_filter(text, arguments, heap, out);
    case Filter::kSafe:
      *out = Value::of(text.text, true);
      return Status::ok();
    case Filter::kString:
      *out = text;
      return Status::ok();
    case Filter::kTitle:
      return change_case(text, Case::kTitleFilter, heap, out);
    case Filter::kTrim:
      return trim_filter(text, arguments, heap, out);
    case Filter::kUpper:
      return change_case(text, Case::kUpper, heap, out);
    default:
      return Status::error(Code::kInternal, "not a filter of strings");
  }
}

}  // namespace sharpi::jinja
