// SPDX-License-Identifier: MIT
#include "text/chat.h"

#include <algorithm>
#include <ctime>
#include <iterator>

#include "text/described_tools.h"
#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace sharpi {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

ChatFormat format_of(const Tokenizer& tokenizer, std::string_view architecture) {
  const auto knows = [&](std::string_view text) { return tokenizer.find(text) >= 0; };
  if (!tokenizer.chat_template().empty()) return ChatFormat::kTemplate;
  if (knows("<|im_start|>") && knows("<|im_end|>")) return ChatFormat::kChatMl;
  if (knows("<|turn>") && knows("<turn|>")) return ChatFormat::kGemma;
  if (knows("<start_of_turn>") && knows("<end_of_turn>")) return ChatFormat::kGemma3;
  return architecture == "olmoe" ? ChatFormat::kOlmoe : ChatFormat::kUnknown;
}

std::string text_of(const Tokenizer& tokenizer, int32_t id) {
  return id < 0 ? std::string() : std::string(tokenizer.raw_text(id));
}

/// Templates build control tokens out of roles, as in '<|' + role + '|>'. So the roles of published
/// templates count as the template's text; any other word is foreign, like all of a message.
bool is_known_role(std::string_view role) {
  static constexpr std::string_view kRoles[] = {"system",  "developer",   "user",     "assistant",
                                                "model",   "tool",        "tools",    "function",
                                                "ipython", "observation", "documents"};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

class Builder {
 public:
  Builder(Heap* heap, std::string_view reasoning_key, bool reads_parts)
      : heap_(*heap), reasoning_key_(reasoning_key), reads_parts_(reads_parts) {}

  Status message(const ChatMessage& m, Value* out) {
    jinja::Dict* dict = heap_.dict();
    *out = Value::of(Kind::kDict, dict);
    SHARPI_TRY(heap_.charge(m.content.size() + m.reasoning.size() + 1024));
    dict->set(key("role"), heap_.text(m.role, !is_known_role(m.role)));
    const bool none = m.content.data() == nullptr;
    Value content = none ? Value::none() : heap_.text(m.content, true);
    if (m.parts.data() != nullptr) SHARPI_TRY(parts(m.parts, &content));
    dict->set(key("content"), content);
    text(dict, reasoning_key_, m.reasoning);
    if (m.tool_calls.data() != nullptr) {
      Value calls;
      SHARPI_TRY(jinja::parse_json(m.tool_calls, "tool_calls", &heap_, &calls));
      if (!calls.is(Kind::kList)) {
        return Status::error(Code::kInvalidArgument, "tool_calls is not an array");
      }
      dict->set(key("tool_calls"), calls);
    }
    text(dict, "tool_call_id", m.tool_call_id);
    text(dict, "name", m.name);
    return Status::ok();
  }

  Value key(std::string_view name) { return heap_.text(name, false); }

 private:
  void text(jinja::Dict* dict, std::string_view name, std::string_view value) {
    if (value.data() != nullptr) dict->set(key(name), heap_.text(value, true));
  }
  /// The list for a template that looks into it, else the texts one behind the other.
  Status parts(std::string_view json, Value* out) {
    SHARPI_TRY(jinja::parse_json(json, "parts", &heap_, out));
    if (!out->is(Kind::kList))
      return Status::error(Code::kInvalidArgument, "parts is not an array");
    std::string all;
    for (const Value& part : out->list->items) {
      const Value* type = part.is(Kind::kDict) ? part.dict->find("type") : nullptr;
      const Value* text = part.is(Kind::kDict) ? part.dict->find("text") : nullptr;
      if (type == nullptr || !type->is_string()) {
        return Status::error(Code::kInvalidArgument, "a part is not an object with a type");
      }
      const bool is_text = type->bytes() == "text";
      if (is_text && (text == nullptr || !text->is_string())) {
        return Status::error(Code::kInvalidArgument, "a part of type text has no text");
      }
      if (!is_text && !reads_parts_) {
        return Status::error(Code::kUnsupported, "the template takes text only, not a part \"%s\"",
                             std::string(type->bytes()).c_str());
      }
      if (is_text) all += text->bytes();
    }
    if (!reads_parts_) *out = heap_.text(all, true);
    return Status::ok();
  }
  Heap& heap_;
  std::string_view reasoning_key_;
  bool reads_parts_;
};

Status parse_kind(std::string_view json, const char* what, Kind kind, Heap* heap, Value* out) {
  SHARPI_TRY(jinja::parse_json(json, what, heap, out));
  if (out->is(kind)) return Status::ok();
  return Status::error(Code::kInvalidArgument, "%s is not %s", what,
                       kind == Kind::kList ? "a JSON array" : "a JSON object");
}

Status add_thinking(Thinking thinking, Heap* heap, jinja::Dict* variables) {
  if (thinking == Thinking::kTemplate) return Status::ok();
  // The two names that templates have for it.
  for (const char* name : {"enable_thinking", "thinking"}) {
    if (variables->find(name) != nullptr) {
      return Status::error(Code::kInvalidArgument,
                           "\"%s\" is given as a variable and asked for by a flag as well", name);
    }
    variables->set(heap->text(name, false), Value::of(thinking == Thinking::kOn));
  }
  return Status::ok();
}

}  // namespace

void ChatTemplate::parse() {
  // The key under which this template looks for an answer's reasoning.
  reasoning_key_ = "reasoning_content";
  for (const std::string_view key : {"reasoning_content", "reasoning", "thinking"}) {
    const std::string quoted(key);
    if (has(source_, "." + quoted) || has(source_, "'" + quoted) || has(source_, "\"" + quoted)) {
      reasoning_key_ = key;
      break;
    }
  }
  // Templates that take parts read each one's text.
  for (const std::string_view access : {".text", "['text']", "[\"text\"]"})
    reads_parts_ = reads_parts_ || has(source_, access);
  auto parsed = jinja::Template::parse(source_);
  if (parsed.is_ok())
    template_ = parsed.take();
  else
    status_ = parsed.take_status();
}

std::shared_ptr<const ChatTemplate> ChatTemplate::create(const Tokenizer& tokenizer,
                                                         std::string_view architecture) {
  std::shared_ptr<ChatTemplate> out(new ChatTemplate());
  out->format_ = format_of(tokenizer, architecture);
  out->bos_ = text_of(tokenizer, tokenizer.bos());
  out->eos_ = text_of(tokenizer, tokenizer.eos());
  out->has_bos_ = tokenizer.bos() >= 0;
  out->has_eos_ = tokenizer.eos() >= 0;
  if (out->format_ == ChatFormat::kTemplate) {
    out->source_ = tokenizer.chat_template();
  } else {
    out->source_ = builtin_template(out->format_, tokenizer.add_bos());
  }
  if (out->format_ == ChatFormat::kUnknown) {
    out->status_ = Status::error(Code::kUnsupported,
                                 "the file has no chat template, and its vocabulary shows no known "
                                 "format (chatml, gemma, olmoe)");
  } else {
    out->parse();
  }
  return out;
}

std::shared_ptr<const ChatTemplate> ChatTemplate::from_source(std::string_view source,
                                                              std::string_view bos,
                                                              std::string_view eos) {
  std::shared_ptr<ChatTemplate> out(new ChatTemplate());
  out->format_ = ChatFormat::kTemplate;
  out->source_ = source;
  out->bos_ = bos;
  out->eos_ = eos;
  out->has_bos_ = bos.data() != nullptr;
  out->has_eos_ = eos.data() != nullptr;
  out->parse();
  return out;
}

void ChatTemplate::find_lost(const ChatRequest& request, const jinja::MarkedText& text, bool* tools,
                             bool* calls) const {
  const auto is_same = [&](const ChatRequest& other) {
    auto rendered = render_as_given(other);
    return rendered.is_ok() && rendered.value().bytes() == text.bytes();
  };
  if (*tools) {
    ChatRequest without = request;
    without.tools = {};
    *tools = is_same(without);
  }
  if (*calls) {
    std::vector<ChatMessage> messages(request.messages.begin(), request.messages.end());
    for (ChatMessage& m : messages) m.tool_calls = {};
    ChatRequest without = request;
    without.messages = messages;
    *calls = is_same(without);
  }
}

/// With the tools as text: in a system message, or where the template refuses that (or has no place
/// for one either) in front of the first message. *refused: of the conversation as it was given.
Result<jinja::MarkedText> ChatTemplate::render_described(const ChatRequest& request, bool tools,
                                                         bool calls, Status refused) const {
  using Place = DescribedTools::Place;
  for (const Place place : {Place::kSystem, Place::kFirstMessage}) {
    DescribedTools described;
    SHARPI_TRY(DescribedTools::make(request, tools ? place : Place::kNowhere, calls, &described));
    ChatRequest changed = request;
    changed.messages = described.messages();
    if (tools) changed.tools = {};
    auto text = render_as_given(changed);
    const bool there = text.is_ok() && (!tools || has(text.value().bytes(), "<tools>\n"));
    if (there) return text;
    if (refused.is_ok() && !text.is_ok()) refused = text.take_status();
  }
  if (!refused.is_ok()) return refused;
  return Status::error(Code::kUnsupported, "the template has no place for a description of tools");
}

Result<jinja::MarkedText> ChatTemplate::render(const ChatRequest& given) const {
  ChatRequest request = given;
  if (request.now == 0)
    request.now = static_cast<int64_t>(std::time(nullptr));  // of all renderings
  bool tools = request.tools.data() != nullptr && request.tools.find('{') != std::string_view::npos;
  bool calls = std::any_of(request.messages.begin(), request.messages.end(),
                           [](const ChatMessage& m) { return m.tool_calls.data() != nullptr; });
  // An answer of a tool whose call is not there (any more) is one all the same.
  const bool answers = std::any_of(request.messages.begin(), request.messages.end(),
                                   [](const ChatMessage& m) { return m.role == "tool"; });
  auto text = render_as_given(request);
  if (!tools && !calls && (!answers || text.is_ok())) return text;
  if (!text.is_ok()) {
    const bool retries = request.describe_tools && text.status().code() == Code::kInvalidArgument;
    return retries ? render_described(request, tools, true, text.take_status()) : std::move(text);
  }
  find_lost(request, text.value(), &tools, &calls);
  if (!tools && !calls) return text;
  if (request.describe_tools) return render_described(request, tools, calls, Status::ok());
  return Status::error(Code::kUnsupported,
                       "the template leaves %s out (SHARPI_CHAT_DESCRIBE_TOOLS gives them as text)",
                       tools ? "tools" : "calls of tools");
}

Result<jinja::MarkedText> ChatTemplate::render_as_given(const ChatRequest& request) const {
  if (template_ == nullptr) return status_;
  const jinja::Limits limits;
  Heap heap(limits.max_bytes);
  Builder builder(&heap, reasoning_key_, reads_parts_);
  Value tools = Value::none(), named;
  if (request.tools.data() != nullptr) {
    SHARPI_TRY(parse_kind(request.tools, "tools", Kind::kList, &heap, &tools));
  }
  const std::string_view variables = request.variables.data() != nullptr ? request.variables : "{}";
  SHARPI_TRY(parse_kind(variables, "variables", Kind::kDict, &heap, &named));
  jinja::List* messages = heap.list();
  for (size_t i = 0; i < request.messages.size(); ++i) {
    if (Status s = builder.message(request.messages[i], &messages->items.emplace_back());
        !s.is_ok()) {
      return Status::error(s.code(), "message %zu: %s", i, s.text().c_str());
    }
  }
  SHARPI_TRY(add_thinking(request.thinking, &heap, named.dict));
  std::vector<jinja::Variable> all = {
      {"messages", Value::of(Kind::kList, messages)},
      {"tools", tools},
      {"documents", Value::none()},
      {"add_generation_prompt", Value::of(request.add_generation_prompt)}};
  if (has_bos_) all.emplace_back("bos_token", heap.text(bos_, false));
  if (has_eos_) all.emplace_back("eos_token", heap.text(eos_, false));
  for (const auto& [name, value] : named.dict->items) {
    if (name.bytes() == "messages" || name.bytes() == "tools") {
      return Status::error(Code::kInvalidArgument,
                           "\"%s\" cannot be given as a variable: it has a field of its own",
                           name.text->bytes().c_str());
    }
    all.emplace_back(name.bytes(), value);
  }
  jinja::MarkedText text;
  SHARPI_TRY(template_->render(all, request.now, limits, &heap, &text));
  return text;
}

}  // namespace sharpi
