// SPDX-License-Identifier: MIT
// /v1/messages: reading the request.
#include "messages_request.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "chat_messages.h"
#include "messages_format.h"
#include "sampling_request.h"
#include "sse.h"
#include "tool_list.h"

namespace server {
namespace {

void append(std::optional<std::string>* to, const std::string& text) {
  if (to->has_value() && !to->value().empty()) {
    to->value() += "\n" + text;
  } else {
    *to = text;
  }
}

// Texts of one turn stand below each other; turns of one role that follow each other are one.
class Turns {
 public:
  explicit Turns(Fields& fields) : fields_(fields) {}
  void add_system(const json& system);
  void add(const json& message, const std::string& where);
  /// Once all are added. @param opening the text that the answer goes on from, if the last turn is
  /// one.
  std::vector<Message> finish(std::string* opening);

 private:
  Message& turn(const std::string& role);
  void add_block(const std::string& role, const json& block, const std::string& where);
  void add_call(Fields& f);
  void add_result(Fields& f);
  void add_thought(Fields& f);

  Fields& fields_;
  std::vector<Message> messages_;
  json calls_ = json::array();  // of the last turn
};

Message& Turns::turn(const std::string& role) {
  if (messages_.empty() || messages_.back().role != role) {
    calls_ = json::array();
    messages_.emplace_back();
    messages_.back().role = role;
  }
  return messages_.back();
}

void Turns::add_system(const json& system) {
  if (system.is_string()) {
    turn("system").content = system.get<std::string>();
    return;
  }
  if (!system.is_array()) fields_.refuse("system", "is not a text or a list");
  for (size_t i = 0; i < system.size(); ++i) {
    const std::string where = "system[" + std::to_string(i) + "]";
    append(&turn("system").content, read_content(json::array({system[i]}), where, {"text"}));
  }
}

void Turns::add(const json& message, const std::string& where) {
  Fields f(message, where);
  f.need("role");
  const std::string role = f.text("role").value();
  if (role != "user" && role != "assistant" && role != "system") {
    f.refuse("role", "is not one of user, assistant");
  }
  const json& content = f.need("content");
  if (content.is_string()) {
    append(&turn(role).content, content.get<std::string>());
  } else if (content.is_array()) {
    for (size_t i = 0; i < content.size(); ++i) {
      add_block(role, content[i], f.path("content") + "[" + std::to_string(i) + "]");
    }
  } else {
    f.refuse("content", "is not a text or a list");
  }
  f.finish();
}

void Turns::add_block(const std::string& role, const json& block, const std::string& where) {
  Fields f(block, where);
  f.need("type");
  const std::string type = f.text("type").value();
  f.ignore({"cache_control"});
  if (type == "text") {
    f.need("text");
    append(&turn(role).content, f.text("text").value());
    f.ignore({"citations"});
  } else if (type == "tool_use" && role == "assistant") {
    add_call(f);
  } else if (type == "tool_result" && role == "user") {
    add_result(f);
  } else if (type == "thinking" && role == "assistant") {
    add_thought(f);
  } else if (type == "redacted_thinking" && role == "assistant") {
    f.ignore({"data"});
    fields_.note_left_out(where);
  } else {
    f.refuse("type", "\"" + type + "\" is not supported: only text is read");
  }
  f.finish();
}

void Turns::add_call(Fields& f) {
  f.need("id");
  f.need("name");
  const json& input = f.need("input");
  f.ignore({"caller", "toolset_name"});
  Message& message = turn("assistant");
  calls_.push_back({{"id", f.text("id").value()},
                    {"type", "function"},
                    {"function", {{"name", f.text("name").value()}, {"arguments", input}}}});
  message.tool_calls = dump(calls_);
}

// Templates have no mark for what failed.
void Turns::add_result(Fields& f) {
  f.need("tool_use_id");
  f.ignore({"toolset_name"});
  Message message;
  message.role = "tool";
  message.tool_call_id = f.text("tool_use_id");
  message.content = f.boolean("is_error").value_or(false) ? "Error: " : "";
  if (const json* content = f.find("content")) {
    *message.content += read_content(*content, f.path("content"), {"text"});
  }
  calls_ = json::array();
  messages_.push_back(std::move(message));
}

void Turns::add_thought(Fields& f) {
  f.need("thinking");
  f.ignore({"signature"});
  append(&turn("assistant").reasoning, f.text("thinking").value());
}

std::vector<Message> Turns::finish(std::string* opening) {
  Message& last = messages_.back();
  if (last.role == "assistant") {
    if (last.tool_calls) fields_.refuse("messages", "end with a call that has no result");
    if (last.reasoning) fields_.refuse("messages", "end with a thought");
    *opening = last.content.value_or("");
    messages_.pop_back();
  }
  for (Message& message : messages_) {
    if (!message.content) message.content = "";  // many templates add it to a text
  }
  return std::move(messages_);
}

// What an answer costs in thoughts: as with Anthropic, none unless they are asked for.
void read_thoughts(Fields& f, Conversational* chat, TextFormat* format) {
  std::string type = "disabled";
  if (const json* thinking = f.find("thinking")) {
    Fields inner(*thinking, "thinking");
    inner.need("type");
    type = inner.text("type").value();
    static const char* const kTypes[] = {"enabled", "disabled", "adaptive", "between_tools"};
    if (std::find(std::begin(kTypes), std::end(kTypes), type) == std::end(kTypes)) {
      inner.refuse("type", "is not one of enabled, disabled, adaptive, between_tools");
    }
    inner.leave_out({"budget_tokens", "display"});
    inner.finish();
    f.take_left_out(inner);
  }
  const json* output = f.find("output_config");
  const json* wanted = f.find("output_format");
  if (output != nullptr) {
    Fields inner(*output, "output_config");
    if (const auto effort = inner.text("effort")) {
      chat->variables = dump(json{{"reasoning_effort", *effort}});
    }
    if (const json* inside = inner.find("format")) wanted = inside;
    inner.leave_out({"task_budget"});
    inner.finish();
    f.take_left_out(inner);
  }
  if (type == "enabled") chat->flags |= SHARPI_CHAT_THINKING;
  if (type == "disabled") chat->flags |= SHARPI_CHAT_NO_THINKING;
  const bool inside = output != nullptr && f.find("output_format") != wanted;
  *format = read_text_format(wanted, inside ? "output_config.format" : "output_format", true);
}

// Of edits to a conversation only those are taken that keep all of it.
void check_edits(Fields& f) {
  const json* management = f.find("context_management");
  if (management == nullptr) return;
  Fields inner(*management, "context_management");
  const json* edits = inner.find("edits");
  for (size_t i = 0; edits != nullptr && i < edits->size(); ++i) {
    Fields edit((*edits)[i], "context_management.edits[" + std::to_string(i) + "]");
    const std::string type = edit.text("type").value_or("");
    const json* keep = edit.find("keep");
    if (!type.starts_with("clear_thinking_") || keep == nullptr || *keep != "all") {
      edit.refuse("type", "is not supported: nothing is left out of a prompt");
    }
  }
  inner.finish();
  f.note_left_out("context_management");
}

// All that a prompt consists of.
struct MessagesChat {
  Conversational chat;
  TextFormat format;
};

MessagesChat read_conversation(Fields& f) {
  MessagesChat out;
  Turns turns(f);
  if (const json* system = f.find("system")) turns.add_system(*system);
  const json& messages = f.need("messages");
  if (!messages.is_array() || messages.empty()) {
    f.refuse("messages", "is not a list with at least one message");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    turns.add(messages[i], "messages[" + std::to_string(i) + "]");
  }
  out.chat.messages = turns.finish(&out.chat.opening);
  out.chat.now = static_cast<uint64_t>(std::time(nullptr));
  read_thoughts(f, &out.chat, &out.format);
  check_edits(f);
  f.only("mcp_servers", json::array(), "no server is asked from here");
  f.only("container", nullptr, "nothing is run here");
  f.leave_out({"inference_geo", "speed", "cache_control", "diagnostics", "user_profile_id",
               "workspace_id"});
  return out;
}

}  // namespace

Asked read_anthropic(const json& body, const Engine& engine, const Settings& settings) {
  Asked out;
  Generation g;
  Fields f(body, "");
  out.stream = read_common(f, engine, settings, {"max_tokens"}, &g);
  if (f.find("stop_sequences") != nullptr) g.stops = read_stops(f, "stop_sequences");
  MessagesChat given = read_conversation(f);
  const ToolList list = ToolList::of_messages(f);
  const Tools tools = list.read();
  given.chat.tools = tools.for_template;
  Expected expected = ask_chat(engine, f, given.chat, list, tools, given.format, &g, &out);
  out.format = std::make_unique<MessagesFormat>(engine, g, std::move(expected));
  add_choices(g, 1, {}, &out);
  return out;
}

json count_anthropic(const json& body, const Engine& engine) {
  Fields f(body, "");
  check_model(f, engine);
  Conversational chat = read_conversation(f).chat;
  const ToolList list = ToolList::of_messages(f);
  chat.tools = list.read().for_template;
  f.leave_out({"max_tokens", "metadata", "service_tier", "stop_sequences", "stream", "temperature",
               "top_k", "top_p"});
  f.finish();
  return {{"input_tokens", chat_prompt(engine, chat).size()}};
}

}  // namespace server
