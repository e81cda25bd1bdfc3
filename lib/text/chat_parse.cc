// SPDX-License-Identifier: MIT
#include "text/chat_parse.h"

#include <algorithm>

#include "text/jinja/json.h"

namespace sharpi {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

constexpr std::string_view kBlanks = " \t\r\n";

struct Marks {
  std::string_view open, close;
  ChatPart part;
};

constexpr Marks kMarks[] = {
    {"<think>", "</think>", ChatPart::kReasoning},                // Qwen, DeepSeek, GLM, Nemotron
    {"<|channel>thought\n", "<channel|>", ChatPart::kReasoning},  // Gemma 4
    {"[THINK]", "[/THINK]", ChatPart::kReasoning},                // Mistral
    {"<seed:think>", "</seed:think>", ChatPart::kReasoning},      // Seed-OSS
    {"<tool_call>", "</tool_call>", ChatPart::kToolCall},         // Hermes, Qwen, GLM
    {"<|tool_call_start|>", "<|tool_call_end|>", ChatPart::kToolCall},
};

std::string_view strip(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

/// Bytes at the end of `text` that are a beginning of `mark`, but not all of it.
size_t begun(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

/// The reasoning block that the prompt has opened and not closed, or null.
const Marks* opened_by(std::string_view prompt) {
  for (const Marks& m : kMarks) {
    if (m.part == ChatPart::kReasoning && strip(prompt).ends_with(strip(m.open))) return &m;
  }
  return nullptr;
}

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

/// An argument that is written as text: JSON where it is a number, a list and so on.
Value argument(std::string_view text, Heap* heap) {
  Value value;
  const bool json = jinja::parse_json(text, "argument", heap, &value).is_ok();
  return json && !value.is_string() ? value : heap->text(text, true);
}

/// <function=NAME><parameter=KEY>VALUE</parameter>...</function>, as Qwen3-Coder writes calls.
bool read_xml(std::string_view body, Heap* heap, Value* name, jinja::Dict* arguments) {
  size_t at = 0;
  std::string_view function;
  if (!between(body, "<function=", ">", &at, &function)) return false;
  *name = heap->text(strip(function), true);
  for (std::string_view key; between(body, "<parameter=", ">", &at, &key);) {
    const size_t end = body.find("</parameter>", at);
    if (end == body.npos) return false;
    std::string_view value = body.substr(at, end - at);
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    arguments->set(heap->text(strip(key), true), argument(value, heap));
    at = end;
  }
  return true;
}

/// NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>..., as GLM writes calls.
bool read_keys(std::string_view body, Heap* heap, Value* name, jinja::Dict* arguments) {
  const std::string_view function = strip(body.substr(0, body.find("<arg_key>")));
  if (function.empty() || function.find_first_of("{}<>\"\n ") != function.npos) return false;
  *name = heap->text(function, true);
  size_t at = 0;
  for (std::string_view key, value; between(body, "<arg_key>", "</arg_key>", &at, &key);) {
    if (!between(body, "<arg_value>", "</arg_value>", &at, &value)) return false;
    arguments->set(heap->text(strip(key), true), argument(value, heap));
  }
  return true;
}

/// {"name": ..., "arguments": {...}}, which Llama calls parameters.
bool read_json(std::string_view body, Heap* heap, Value* name, Value* arguments) {
  Value call;
  if (!jinja::parse_json(body, "call", heap, &call).is_ok() || !call.is(Kind::kDict)) return false;
  const Value* function = call.dict->find("name");
  const Value* given = call.dict->find("arguments");
  if (given == nullptr) given = call.dict->find("parameters");
  if (function == nullptr || !function->is_string()) return false;
  *name = *function;
  if (given != nullptr) *arguments = *given;
  return true;
}

class Parser {
 public:
  Parser(std::string_view text, bool partial, ParsedChat* out)
      : text_(text), partial_(partial), out_(*out) {}

  Status run(const Marks* marks) {
    while (marks != nullptr || at_ < text_.size()) {
      if (marks == nullptr) {
        marks = content();
        continue;
      }
      const size_t close = text_.find(marks->close, at_);
      const bool closed = close != text_.npos;
      const std::string_view inside = text_.substr(at_, closed ? close - at_ : text_.npos);
      if (!closed) out_.open = marks->part;
      if (marks->part == ChatPart::kReasoning) {
        const size_t held = closed || !partial_ ? 0 : begun(inside, marks->close);
        append(inside.substr(0, inside.size() - held), &out_.reasoning);
      } else if (closed || !partial_) {
        SHARPI_TRY(call(*marks, inside, closed));
      }
      at_ = closed ? close + marks->close.size() : text_.size();
      marks = nullptr;
    }
    return finish();
  }

 private:
  /// Parts of a kind follow each other with a newline between them; blanks wait for what follows.
  static void append(std::string_view part, std::string* out) {
    part = strip(part);
    if (part.empty()) return;
    if (!out->empty()) out->push_back('\n');
    out->append(part);
  }

  const Marks* content() {
    const Marks* next = nullptr;
    size_t begin = text_.size(), held = 0;
    for (const Marks& m : kMarks) {
      const size_t found = text_.find(m.open, at_);
      if (found < begin) {
        begin = found;
        next = &m;
      }
      held = std::max(held, begun(text_.substr(at_), m.open));
    }
    size_t end = begin;
    if (next == nullptr && partial_) end -= held;
    append(text_.substr(at_, end - at_), &out_.content);
    at_ = next != nullptr ? begin + next->open.size() : text_.size();
    return next;
  }

  Status call(const Marks& marks, std::string_view inside, bool closed) {
    Value name, arguments = Value::of(Kind::kDict, heap_.dict());
    const std::string_view body = strip(inside);
    if (!read_json(body, &heap_, &name, &arguments) &&
        !read_xml(body, &heap_, &name, arguments.dict) &&
        !read_keys(body, &heap_, &name, arguments.dict)) {
      std::string whole(marks.open);
      whole.append(inside).append(closed ? marks.close : std::string_view());
      append(whole, &out_.content);
      return Status::ok();
    }
    const auto key = [&](std::string_view text) { return heap_.text(text, false); };
    jinja::Dict *function = heap_.dict(), *entry = heap_.dict();
    function->set(key("name"), name);
    function->set(key("arguments"), arguments);
    entry->set(key("type"), key("function"));
    entry->set(key("function"), Value::of(Kind::kDict, function));
    calls_.push_back(Value::of(Kind::kDict, entry));
    return Status::ok();
  }

  Status finish() {
    out_.n_tool_calls = static_cast<uint32_t>(calls_.size());
    if (calls_.empty()) return Status::ok();
    jinja::List* list = heap_.list();
    list->items = calls_;
    jinja::MarkedText json;
    SHARPI_TRY(jinja::write_json(Value::of(Kind::kList, list), {}, &heap_, &json));
    out_.tool_calls = json.take();
    return Status::ok();
  }

  std::string_view text_;
  bool partial_;
  ParsedChat& out_;
  size_t at_ = 0;
  Heap heap_{uint64_t{256} << 20};
  std::vector<Value> calls_;
};

}  // namespace

Status parse_chat(std::string_view prompt, std::string_view text, bool partial, ParsedChat* out) {
  *out = {};
  return Parser(text, partial, out).run(opened_by(prompt));
}

}  // namespace sharpi
