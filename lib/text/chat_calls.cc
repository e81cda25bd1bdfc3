// SPDX-License-Identifier: MIT
#include "text/chat_calls.h"

#include <algorithm>

namespace sharpi {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

constexpr std::string_view kBlanks = " \t\r\n";

/// What stands between two marks from *at on; moves *at behind it. False: it is not there.
bool between(std::string_view text, std::string_view open, std::string_view close, size_t* at,
             std::string_view* out) {
  const size_t begin = text.find(open, *at);
  if (begin == text.npos) return false;
  const size_t end = text.find(close, begin + open.size());
  if (end == text.npos) return false;
  *out = text.substr(begin + open.size(), end - begin - open.size());
  *at = end + close.size();
  return true;
}

/// Numbers stay as they are written: what comes out is JSON again.
bool read_json(std::string_view text, Heap* heap, Value* out) {
  return jinja::parse_json(text, "call", heap, out, jinja::JsonNumbers::kAsWritten).is_ok();
}

/// An argument that is written as text: JSON where it is a number, a list and so on.
Value argument(std::string_view text, Heap* heap) {
  Value value;
  const bool json = read_json(text, heap, &value);
  return json && !value.is_string() ? value : heap->text(text, true);
}

bool add_argument(std::string_view key, std::string_view value, Heap* heap, ToolCall* out) {
  return jinja::set_key(out->arguments.dict, heap->text(strip_blanks(key), true),
                        argument(value, heap), heap)
      .is_ok();
}

/// <function=NAME><parameter=KEY>VALUE</parameter>...</function>, as Qwen3-Coder writes calls.
bool read_xml(std::string_view body, Heap* heap, ToolCall* out) {
  size_t at = 0;
  std::string_view function;
  if (!between(body, "<function=", ">", &at, &function)) return false;
  out->name = heap->text(strip_blanks(function), true);
  for (std::string_view key; between(body, "<parameter=", ">", &at, &key);) {
    const size_t end = body.find("</parameter>", at);
    if (end == body.npos) return false;
    std::string_view value = body.substr(at, end - at);
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    if (!add_argument(key, value, heap, out)) return false;
    at = end;
  }
  return true;
}

/// NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>..., as GLM writes calls.
bool read_keys(std::string_view body, Heap* heap, ToolCall* out) {
  const std::string_view function = strip_blanks(body.substr(0, body.find("<arg_key>")));
  if (function.empty() || function.find_first_of("{}<>\"\n ") != function.npos) return false;
  out->name = heap->text(function, true);
  size_t at = 0;
  for (std::string_view key, value; between(body, "<arg_key>", "</arg_key>", &at, &key);) {
    if (!between(body, "<arg_value>", "</arg_value>", &at, &value)) return false;
    if (!add_argument(key, value, heap, out)) return false;
  }
  return true;
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

bool read_json_call(std::string_view body, Heap* heap, ToolCall* out) {
  Value call;
  return read_json(body, heap, &call) && read_object(call, out);
}

/// DeepSeek's NAME<sep>{...}, and before V3.1 function<sep>NAME with the arguments in a fence.
bool read_separated(std::string_view body, Heap* heap, ToolCall* out) {
  constexpr std::string_view kSeparator = "<｜tool▁sep｜>", kFence = "```json";
  const size_t at = body.find(kSeparator);
  if (at == body.npos) return false;
  std::string_view name = strip_blanks(body.substr(0, at));
  std::string_view rest = body.substr(at + kSeparator.size());
  if (const size_t fence = rest.find(kFence); name == "function" && fence != rest.npos) {
    name = strip_blanks(rest.substr(0, fence));
    rest = strip_blanks(rest.substr(fence + kFence.size()));
    if (!rest.ends_with("```")) return false;
    rest.remove_suffix(3);
  }
  if (name.empty()) return false;
  out->name = heap->text(name, true);
  return read_arguments(rest, heap, &out->arguments);
}

/// The JSON that the text begins with.
CallState read_prefix(std::string_view text, Heap* heap, Value* out, size_t* used) {
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
  const CallState state = read_prefix(text, heap, &list, used);
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

bool read_call(std::string_view body, Heap* heap, ToolCall* out) {
  using Reader = bool (*)(std::string_view, Heap*, ToolCall*);
  for (const Reader read :
       {Reader(read_json_call), Reader(read_separated), Reader(read_xml), Reader(read_keys)}) {
    *out = empty_call(heap);
    if (read(strip_blanks(body), heap, out)) return true;
  }
  return false;
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
  const CallState state = read_prefix(text.substr(at), heap, &call.arguments, &n);
  if (state != CallState::kComplete) return state;
  out->push_back(call);
  *used = at + n;
  return CallState::kComplete;
}

CallState read_bare(std::string_view text, Heap* heap, std::vector<ToolCall>* out, size_t* used) {
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
  const CallState state = read_prefix(text.substr(open), heap, &value, &n);
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
  out->push_back(call);
  *used = open + n;
  return CallState::kComplete;
}

}  // namespace sharpi
