// SPDX-License-Identifier: MIT
#include "text/chat_calls.h"

#include <algorithm>

#include "text/call_scanner.h"
#include "text/tool_schemas.h"

namespace sharpi {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

constexpr std::string_view kBlanks = " \t\r\n";

/// Numbers stay as they are written: what comes out is JSON again.
bool read_json(std::string_view text, Heap* heap, Value* out) {
  return jinja::parse_json(text, "call", heap, out, jinja::JsonNumbers::kAsWritten).is_ok();
}

/// {"name": ..., "arguments": {...}}, which Llama calls parameters.
bool read_object(const Value& call, ToolCall* out) {
  if (!call.is(Kind::kDict)) return false;
  const Value* function = call.dict->find("name");
  const Value* given = call.dict->find("arguments");
  const Value* id = call.dict->find("id");
  if (given == nullptr) given = call.dict->find("parameters");
  if (function == nullptr || !function->is_string()) return false;
  out->name = *function;
  if (given != nullptr) out->arguments = *given;
  if (id != nullptr && id->is_string()) out->id = *id;
  return true;
}

size_t skip_blanks(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kBlanks, at), text.size());
}

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

/// Whether the text begins with `mark` (kComplete), with a beginning of it and nothing else
/// (kIncomplete), or neither.
CallState begins(std::string_view text, std::string_view mark) {
  if (text.starts_with(mark)) return CallState::kComplete;
  return mark.starts_with(text) ? CallState::kIncomplete : CallState::kBroken;
}

ToolCall empty_call(Heap* heap) {
  return {{}, Value::of(Kind::kDict, heap->dict()), Value::none()};
}

CallState read_array(std::string_view text, Heap* heap, std::vector<ToolCall>* out, size_t* used) {
  Value list;
  const CallState state = read_json_begin(text, heap, &list, used);
  if (state != CallState::kComplete) return state;
  if (list.list->items.empty()) return CallState::kBroken;
  std::vector<ToolCall> calls;
  for (const Value& item : list.list->items) {
    calls.push_back(empty_call(heap));
    if (!read_object(item, &calls.back())) return CallState::kBroken;
  }
  out->insert(out->end(), calls.begin(), calls.end());
  return CallState::kComplete;
}

CallState read_json_call(std::string_view close, const CallContext& context, CallScanner* scanner,
                         ToolCall* out) {
  Value call;
  size_t used = 0;
  SHARPI_TRY_CALL(read_json_begin(scanner->rest(), context.heap, &call, &used));
  if (!read_object(call, out)) return CallState::kBroken;
  scanner->skip(used);
  return read_close(close, context, scanner);
}

/// DeepSeek's, behind NAME<sep>: {...}, and before V3.1, where NAME is "function", the name and
/// the arguments in a fence.
CallState read_separated(std::string_view name, std::string_view close, const CallContext& context,
                         CallScanner* scanner, ToolCall* out) {
  const bool fenced = name == "function" && !scanner->rest().starts_with('{');
  if (fenced) SHARPI_TRY_CALL(scanner->until("```json", &name));
  name = strip_blanks(name);
  if (name.empty()) return CallState::kBroken;
  out->name = context.heap->text(name, true);
  scanner->blanks();
  size_t used = 0;
  SHARPI_TRY_CALL(read_json_begin(scanner->rest(), context.heap, &out->arguments, &used));
  if (!out->arguments.is(Kind::kDict)) return CallState::kBroken;
  scanner->skip(used);
  scanner->blanks();
  if (fenced) SHARPI_TRY_CALL(scanner->word("```"));
  return read_close(close, context, scanner);
}

/// Calls that begin with a name: GLM's and DeepSeek's.
CallState read_named(std::string_view close, const CallContext& context, CallScanner* scanner,
                     ToolCall* out) {
  const std::string_view near = scanner->rest().substr(0, CallScanner::kMaxName + 1);
  const size_t end = near.find('<');
  const std::string_view name = strip_blanks(near.substr(0, end));
  if (name.find_first_of("{}\">\n ") != name.npos) return CallState::kBroken;
  if (end == near.npos) {
    return near.size() <= CallScanner::kMaxName ? CallState::kIncomplete : CallState::kBroken;
  }
  if (name.empty()) return CallState::kBroken;
  scanner->skip(end);
  const CallState separated = scanner->word("<｜tool▁sep｜>");
  if (separated == CallState::kComplete) {
    return read_separated(name, close, context, scanner, out);
  }
  out->name = context.heap->text(name, true);
  const CallState state = read_key_call(close, context, scanner, out);
  // Without an argument it may be any word between two marks.
  const bool is_word = state == CallState::kComplete && out->arguments.dict->items.empty() &&
                       !context.tools->empty() && !context.tools->knows(name);
  if (is_word) return CallState::kBroken;
  return state == CallState::kBroken ? separated : state;
}

CallState read_body(std::string_view close, const CallContext& context, CallScanner* scanner,
                    ToolCall* out) {
  scanner->blanks();
  if (scanner->at_end()) return CallState::kIncomplete;
  if (scanner->here() == '{') return read_json_call(close, context, scanner, out);
  const std::string_view rest = scanner->rest();
  if (begins(rest, "<function=") != CallState::kBroken) {
    return read_xml_call(close, context, scanner, out);
  }
  if (begins(rest, "call:") == CallState::kComplete) {
    return read_gemma_call(close, context, scanner, out);
  }
  return read_named(close, context, scanner, out);
}

/// A list of calls from its bracket on.
CallState read_list_body(const CallContext& context, CallScanner* scanner,
                         std::vector<ToolCall>* out) {
  CallScanner inside = *scanner;
  inside.skip(1);
  inside.blanks();
  if (inside.at_end()) return CallState::kIncomplete;
  if (inside.here() == '{') {
    size_t used = 0;
    const CallState state = read_array(scanner->rest(), context.heap, out, &used);
    if (state == CallState::kComplete) scanner->skip(used);
    return state;
  }
  *scanner = inside;
  return read_python_calls(context, scanner, out);
}

}  // namespace

std::string_view strip_blanks(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

bool read_arguments(std::string_view text, Heap* heap, Value* out) {
  Value value;
  if (!read_json(strip_blanks(text), heap, &value)) return false;
  if (!value.is(Kind::kDict)) return false;
  *out = value;
  return true;
}

CallState read_json_begin(std::string_view text, Heap* heap, Value* out, size_t* used) {
  switch (jinja::read_json_prefix(text, heap, out, used)) {
    case jinja::JsonPrefix::kWhole:
      return CallState::kComplete;
    case jinja::JsonPrefix::kOpen:
      return CallState::kIncomplete;
    case jinja::JsonPrefix::kNone:
      break;
  }
  return CallState::kBroken;
}

CallState read_marked(std::string_view text, std::string_view close, const CallContext& context,
                      ToolCall* out, size_t* used) {
  *out = empty_call(context.heap);
  CallScanner scanner(text);
  CallState state = read_body(close, context, &scanner, out);
  if (state == CallState::kIncomplete && context.whole) state = CallState::kBroken;
  *used = scanner.at();
  return state;
}

CallState read_marked_list(std::string_view text, std::string_view close,
                           const CallContext& context, std::vector<ToolCall>* out, size_t* used) {
  CallScanner scanner(text);
  std::vector<ToolCall> calls;
  scanner.blanks();
  if (scanner.at_end() || scanner.here() != '[') {
    calls.emplace_back();
    const CallState state = read_marked(text, close, context, &calls.back(), used);
    if (state == CallState::kComplete) out->push_back(calls.back());
    return state;
  }
  CallState state = read_list_body(context, &scanner, &calls);
  if (state == CallState::kComplete) state = read_close(close, context, &scanner);
  if (state == CallState::kIncomplete && context.whole) state = CallState::kBroken;
  *used = scanner.at();
  if (state == CallState::kComplete) out->insert(out->end(), calls.begin(), calls.end());
  return state;
}

CallState read_mistral(std::string_view text, Heap* heap, std::vector<ToolCall>* out,
                       size_t* used) {
  size_t at = skip_blanks(text, 0);
  if (at == text.size()) return CallState::kIncomplete;
  if (text[at] == '[') {
    const CallState state = read_array(text.substr(at), heap, out, used);
    *used += at;
    return state;
  }
  const size_t begin = at;
  while (at < text.size() && is_name_byte(text[at])) ++at;
  const std::string_view name = text.substr(begin, at - begin);
  if (name.empty()) return CallState::kBroken;
  ToolCall call = empty_call(heap);
  call.name = heap->text(name, true);
  const CallState has_id = begins(text.substr(at), "[CALL_ID]");
  if (has_id == CallState::kIncomplete) return has_id;
  if (has_id == CallState::kComplete) {
    const size_t id = at + std::string_view("[CALL_ID]").size();
    for (at = id; at < text.size() && is_name_byte(text[at]);) ++at;
    call.id = heap->text(text.substr(id, at - id), true);
  }
  if (const CallState s = begins(text.substr(at), "[ARGS]"); s != CallState::kComplete) return s;
  at = skip_blanks(text, at + std::string_view("[ARGS]").size());
  if (at == text.size()) return CallState::kIncomplete;
  if (text[at] != '{') return CallState::kBroken;
  size_t n = 0;
  const CallState state = read_json_begin(text.substr(at), heap, &call.arguments, &n);
  if (state != CallState::kComplete) return state;
  out->push_back(call);
  *used = at + n;
  return CallState::kComplete;
}

CallState read_bare(std::string_view text, const ToolSchemas& tools, Heap* heap,
                    std::vector<ToolCall>* out, size_t* used) {
  const size_t open = skip_blanks(text, 0);
  if (open == text.size()) return CallState::kIncomplete;
  if (text[open] != '{') return CallState::kBroken;
  // Other objects are answers, and come out as they are written.
  const std::string_view first = text.substr(skip_blanks(text, open + 1));
  CallState key = CallState::kBroken;
  for (const std::string_view name : {"\"name\"", "\"type\""}) {
    if (key == CallState::kBroken) key = begins(first, name);
  }
  if (key != CallState::kComplete) return key;
  Value value;
  size_t n = 0;
  const CallState state = read_json_begin(text.substr(open), heap, &value, &n);
  if (state != CallState::kComplete) return state;
  ToolCall call = empty_call(heap);
  bool has_arguments = false;
  for (const auto& [name, given] : value.dict->items) {
    const std::string_view k = name.bytes();
    const bool arguments = k == "parameters" || k == "arguments";
    has_arguments = has_arguments || (arguments && given.is(Kind::kDict));
    if (!arguments && k != "name" && k != "type" && k != "id") return CallState::kBroken;
  }
  if (!has_arguments || !read_object(value, &call)) return CallState::kBroken;
  if (!tools.empty() && !tools.knows(call.name.bytes())) return CallState::kBroken;
  out->push_back(call);
  *used = open + n;
  return CallState::kComplete;
}

}  // namespace sharpi
