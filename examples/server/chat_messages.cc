// SPDX-License-Identifier: MIT
#include "chat_messages.h"

#include <algorithm>

#include "sampling_request.h"
#include "session_cache.h"
#include "sse.h"

namespace server {
namespace {

std::string item(const char* list, size_t i) {
  return std::string(list) + "[" + std::to_string(i) + "]";
}

// Clients send a call's arguments as text that holds JSON; templates take the object.
std::string read_tool_calls(const json& calls, const std::string& where) {
  if (!calls.is_array()) throw RequestError(400, where + " is not a list", where);
  json out = json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = where + "[" + std::to_string(i) + "]";
    Fields call(calls[i], at);
    const std::string id = call.text("id").value_or("");
    call.only("type", "function", "only functions are called");
    Fields function(call.need("function"), at + ".function");
    json arguments = function.object_in_text("arguments");
    const std::string name = function.need("name").is_string()
                                 ? function.text("name").value()
                                 : throw RequestError(400, at + ".function.name is not a text");
    call.ignore({"index", "extra_content", "cache_control"});
    function.ignore({"parsed_arguments", "strict"});
    function.finish();
    call.finish();
    out.push_back({{"id", id},
                   {"type", "function"},
                   {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
  }
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

Message read_message(const json& message, const std::string& where) {
  Message out;
  Fields f(message, where);
  f.need("role");
  out.role = f.text("role").value();
  if (out.role == "developer") out.role = "system";
  if (out.role != "system" && out.role != "user" && out.role != "assistant" && out.role != "tool") {
    f.refuse("role", "is not one of system, developer, user, assistant, tool");
  }
  if (const json* content = f.find("content")) {
    out.content = read_content(*content, f.path("content"), {"text"});
  } else if (out.role != "assistant") {
    f.refuse("content", "is missing");
  } else {
    out.content = "";  // many templates add it to a text
  }
  out.name = f.text("name");
  f.ignore({"id", "cache_control"});
  if (out.role == "assistant") {
    const auto reasoning = f.text("reasoning");  // a name that some clients have for it
    out.reasoning = f.text("reasoning_content");
    if (!out.reasoning) out.reasoning = reasoning;
    if (const json* calls = f.find("tool_calls")) {
      if (!calls->empty()) out.tool_calls = read_tool_calls(*calls, f.path("tool_calls"));
    }
    f.only("refusal", nullptr, "there is nothing that it would change");
    f.only("audio", nullptr, "only text is read");
    f.only("function_call", nullptr, "use tool_calls");
    // What clients note of an answer, and send back with it.
    f.ignore({"annotations", "parsed", "provider_specific_fields", "reasoning_details",
              "thinking_blocks", "images"});
  }
  if (out.role == "tool") {
    f.need("tool_call_id");
    out.tool_call_id = f.text("tool_call_id");
  }
  f.finish();
  return out;
}

sharpi_message view(const Message& m) {
  sharpi_message out{};
  out.role = m.role.c_str();
  if (m.content) {
    out.content = m.content->c_str();
    out.content_len = m.content->size();
  }
  if (m.reasoning) {
    out.reasoning = m.reasoning->c_str();
    out.reasoning_len = m.reasoning->size();
  }
  if (m.tool_calls) {
    out.tool_calls = m.tool_calls->c_str();
    out.tool_calls_len = m.tool_calls->size();
  }
  if (m.tool_call_id) out.tool_call_id = m.tool_call_id->c_str();
  if (m.name) out.name = m.name->c_str();
  return out;
}

// Calls use() with the first n messages as the library takes them.
auto with_messages(const Conversational& chat, size_t n, uint32_t flags, auto use) {
  std::vector<sharpi_message> messages;
  for (size_t i = 0; i < n; ++i) messages.push_back(view(chat.messages[i]));
  sharpi_chat_params p;
  sharpi_chat_params_init(&p, sizeof p);
  p.messages = messages.data();
  p.n_messages = static_cast<uint32_t>(n);
  p.flags = chat.flags | flags | SHARPI_CHAT_DESCRIBE_TOOLS;
  p.now = chat.now;
  if (!chat.tools.empty()) {
    p.tools = chat.tools.data();
    p.tools_len = chat.tools.size();
  }
  if (!chat.variables.empty()) {
    p.variables = chat.variables.data();
    p.variables_len = chat.variables.size();
  }
  return use(p);
}

Tokens rendered(const Engine& engine, const Conversational& chat, size_t n, uint32_t flags) {
  return with_messages(chat, n, flags, [&](const auto& p) { return engine.chat_tokens(p); });
}

// Templates may leave out a part of what they are given, so what is long is written as text first.
void check_size(const Engine& engine, const Conversational& chat) {
  uint64_t bytes = 0;
  for (const Message& m : chat.messages) bytes += m.content ? m.content->size() : 0;
  if (bytes < engine.n_ctx() || engine.fewest_tokens(bytes) < engine.n_ctx()) return;
  uint64_t written = 0;
  try {
    written = with_messages(chat, chat.messages.size(), 0,
                            [&](const auto& p) { return engine.chat_bytes(p); });
  } catch (const LibraryError&) {
    return;  // said when it is rendered
  }
  check_bytes(engine, written, chat.param);
}

// Adds what a shorter rendering has in common with the prompt. Templates may refuse a part of a
// conversation; then there is no such boundary.
void add_boundary(const Engine& engine, const Conversational& chat, size_t n, const Tokens& prompt,
                  std::vector<uint32_t>* boundaries) {
  try {
    const Tokens part = rendered(engine, chat, n, SHARPI_CHAT_NO_PROMPT);
    const uint32_t length = common_prefix(part, prompt);
    if (length > 0 && length < prompt.size()) boundaries->push_back(length);
  } catch (const LibraryError&) {
  }
}

}  // namespace

std::string read_content(const json& content, const std::string& where,
                         std::initializer_list<const char*> types) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw RequestError(400, where + " is not a text or a list", where);
  std::string out;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = where + "[" + std::to_string(i) + "]";
    Fields part(content[i], at);
    const std::string type = part.text("type").value_or("");
    if (std::find(types.begin(), types.end(), type) == types.end()) {
      part.refuse("type", "\"" + type + "\" is not supported: only text is read");
    }
    part.need("text");
    out += part.text("text").value();
    part.ignore({"annotations", "logprobs", "cache_control", "citations"});
    part.finish();
  }
  return out;
}

std::vector<Message> read_messages(const json& messages) {
  if (!messages.is_array() || messages.empty()) {
    throw RequestError(400, "messages is not a list with at least one message", "messages");
  }
  std::vector<Message> out;
  for (size_t i = 0; i < messages.size(); ++i) {
    out.push_back(read_message(messages[i], item("messages", i)));
  }
  return out;
}

void read_thinking(Fields& f, const char* effort_name, const std::optional<std::string>& effort,
                   Conversational* chat) {
  json variables = json::object();
  if (const json* given = f.find("chat_template_kwargs")) {
    if (!given->is_object()) f.refuse("chat_template_kwargs", "is not an object");
    variables = *given;
  }
  if (effort) {
    static const char* const kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    if (std::find(std::begin(kEfforts), std::end(kEfforts), *effort) == std::end(kEfforts)) {
      f.refuse(effort_name, "is not one of none, minimal, low, medium, high, xhigh");
    }
    chat->flags |= *effort == "none" ? SHARPI_CHAT_NO_THINKING : SHARPI_CHAT_THINKING;
    variables["reasoning_effort"] = *effort;
  }
  if (!variables.empty()) chat->variables = dump(variables);
}

Tokens chat_prompt(const Engine& engine, const Conversational& chat) {
  try {
    Tokens out = rendered(engine, chat, chat.messages.size(), 0);
    const Tokens opening = chat.opening.empty() ? Tokens() : engine.tokenize(chat.opening, 0);
    out.insert(out.end(), opening.begin(), opening.end());
    return out;
  } catch (const LibraryError& e) {
    if (e.status() == SHARPI_E_OUT_OF_MEMORY || e.status() == SHARPI_E_INTERNAL) throw;
    throw RequestError(400, e.what(), chat.param);
  }
}

namespace {

void make_generation(const Engine& engine, const Conversational& chat, const Tools& tools,
                     const TextFormat& format, Generation* out) {
  check_size(engine, chat);
  Tokens& prompt = out->prompt;
  prompt = chat_prompt(engine, chat);
  if (engine.info().is_hybrid != 0 && engine.plan().n_checkpoints != 0) {
    size_t n_system = 0;
    while (n_system < chat.messages.size() && chat.messages[n_system].role == "system") ++n_system;
    if (n_system > 0) add_boundary(engine, chat, n_system, prompt, &out->boundaries);
    add_boundary(engine, chat, chat.messages.size(), prompt, &out->boundaries);
    std::sort(out->boundaries.begin(), out->boundaries.end());
  }
  check_length(engine, prompt, chat.param);
  out->text_flags = SHARPI_DETOKENIZE_SPECIAL;
  out->constraint = make_constraint(engine, prompt, tools, format, &out->unenforced);
}

}  // namespace

Expected ask_chat(const Engine& engine, Fields& fields, const Conversational& chat,
                  const ToolList& list, const Tools& tools, const TextFormat& format,
                  Generation* first, Asked* asked) {
  fields.finish();
  asked->left_out = fields.left_out();
  list.with_places([&] { make_generation(engine, chat, tools, format, first); });
  for (const std::string& place : first->unenforced) asked->left_out.push_back(list.placed(place));
  const bool is_checked = format.lenient && !tools.required && !first->unenforced.empty() &&
                          format.kind == SHARPI_GRAMMAR_JSON_SCHEMA;
  return {tools.for_template, format.kind != SHARPI_GRAMMAR_ANY, is_checked ? format.text : ""};
}

}  // namespace server
