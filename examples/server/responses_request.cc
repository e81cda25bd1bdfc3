// SPDX-License-Identifier: MIT
// /v1/responses: reading the request.
#include <algorithm>
#include <map>

#include "chat_messages.h"
#include "responses_format.h"
#include "sampling_request.h"
#include "sse.h"
#include "tool_list.h"

namespace server {
namespace {

json empty_list() {
  return json::array();
}

// Calls and thoughts of one turn are items of their own here, and parts of one message in
// templates: they are gathered until something else comes.
class Items {
 public:
  void add(const json& item, const std::string& where);
  std::vector<Message> messages;
  std::vector<std::string> left_out;  // items by their places
  /// Once all items are added.
  void finish();

 private:
  void add_message(Fields& f);
  void add_call(Fields& f);
  void add_custom_call(Fields& f);
  void put_call(Fields& f, const std::string& name, json arguments);
  void add_output(Fields& f);
  void add_reasoning(Fields& f);
  void assistant();
  bool has_calls() const { return calls_.contains(messages.size() - 1); }

  std::map<size_t, json> calls_;  // of the messages by their places: lists, written out at the end
};

void Items::finish() {
  for (const auto& [i, calls] : calls_) messages[i].tool_calls = dump(calls);
}

void Items::assistant() {
  if (!messages.empty() && messages.back().role == "assistant") return;
  messages.emplace_back();
  messages.back().role = "assistant";
}

void Items::add(const json& item, const std::string& where) {
  Fields f(item, where);
  const std::string type = f.text("type").value_or("message");
  f.ignore({"id", "status"});
  if (type == "message") {
    add_message(f);
  } else if (type == "function_call") {
    add_call(f);
  } else if (type == "custom_tool_call") {
    add_custom_call(f);
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    add_output(f);
  } else if (type == "reasoning") {
    add_reasoning(f);
  } else if (type == "local_shell_call") {
    put_call(f, "local_shell", f.need("action"));
  } else if (type == "web_search_call" || type == "file_search_call") {
    // It ran on other servers, and says nothing of what it found.
    f.ignore({"action", "queries", "results"});
    left_out.push_back(where + " (" + type + ")");
  } else {
    f.refuse("type", "\"" + type + "\" is not supported");
  }
  f.finish();
}

void Items::add_message(Fields& f) {
  f.need("role");
  f.ignore({"phase"});
  std::string role = f.text("role").value();
  if (role == "developer") role = "system";
  if (role != "system" && role != "user" && role != "assistant") {
    f.refuse("role", "is not one of system, developer, user, assistant");
  }
  std::string content =
      read_content(f.need("content"), f.path("content"), {"input_text", "output_text", "text"});
  // Thoughts that came before belong to this message.
  const bool goes_on = role == "assistant" && !messages.empty() &&
                       messages.back().role == "assistant" && !messages.back().content &&
                       !has_calls();
  if (!goes_on) messages.emplace_back();
  messages.back().role = role;
  messages.back().content = std::move(content);
}

void Items::add_call(Fields& f) {
  f.need("name");
  const std::string space = f.text("namespace").value_or("");
  put_call(f, ToolList::called(space, f.text("name").value()), f.object_in_text("arguments"));
}

// A tool that takes a text is a function with one parameter for the model.
void Items::add_custom_call(Fields& f) {
  f.need("name");
  f.need("input");
  put_call(f, f.text("name").value(), {{"input", f.text("input").value()}});
}

void Items::put_call(Fields& f, const std::string& name, json arguments) {
  f.need("call_id");
  assistant();
  const auto [calls, is_new] = calls_.try_emplace(messages.size() - 1, empty_list());
  calls->second.push_back({{"id", f.text("call_id").value()},
                           {"type", "function"},
                           {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
}

void Items::add_output(Fields& f) {
  f.need("call_id");
  f.ignore({"name"});
  Message message;
  message.role = "tool";
  message.tool_call_id = f.text("call_id");
  message.content =
      read_content(f.need("output"), f.path("output"), {"input_text", "output_text", "text"});
  messages.push_back(std::move(message));
}

void Items::add_reasoning(Fields& f) {
  f.ignore({"summary", "encrypted_content"});
  const json* content = f.find("content");
  if (content == nullptr || content->empty()) return;
  const std::string text = read_content(*content, f.path("content"), {"reasoning_text"});
  messages.emplace_back();
  messages.back().role = "assistant";
  messages.back().reasoning = text;
}

std::vector<Message> read_input(Fields& f) {
  Items items;
  if (const auto instructions = f.text("instructions")) {
    Message message;
    message.role = "system";
    message.content = instructions;
    items.messages.push_back(std::move(message));
  }
  const json& input = f.need("input");
  if (input.is_string()) {
    Message message;
    message.role = "user";
    message.content = input.get<std::string>();
    items.messages.push_back(std::move(message));
  } else if (input.is_array() && !input.empty()) {
    for (size_t i = 0; i < input.size(); ++i) {
      items.add(input[i], "input[" + std::to_string(i) + "]");
    }
    for (std::string& place : items.left_out) f.note_left_out(std::move(place));
  } else {
    f.refuse("input", "is not a text or a list with at least one item");
  }
  items.finish();
  for (Message& message : items.messages) {
    if (!message.content) message.content = "";  // many templates add it to a text
  }
  return std::move(items.messages);
}

TextFormat read_text(Fields& f) {
  const json* text = f.find("text");
  if (text == nullptr) return {};
  Fields inner(*text, "text");
  const TextFormat out = read_text_format(inner.find("format"), "text.format", true);
  const auto verbosity = inner.text("verbosity");
  if (verbosity && *verbosity != "medium") f.note_left_out("text.verbosity");
  inner.finish();
  return out;
}

std::optional<std::string> read_effort(Fields& f) {
  const json* reasoning = f.find("reasoning");
  if (reasoning == nullptr) return std::nullopt;
  Fields inner(*reasoning, "reasoning");
  const std::optional<std::string> out = inner.text("effort");
  inner.leave_out({"summary", "generate_summary"});  // thoughts come whole
  inner.finish();
  f.take_left_out(inner);
  return out;
}

// What items are to hold besides: log probabilities, or what there never is.
void read_include(Fields& f, Generation* g) {
  const int64_t top = f.integer("top_logprobs", 0, 20).value_or(0);
  bool wanted = top > 0;
  static const char* const kNever[] = {
      "reasoning.encrypted_content",   "file_search_call.results",
      "web_search_call.results",       "web_search_call.action.sources",
      "message.input_image.image_url", "computer_call_output.output.image_url",
      "code_interpreter_call.outputs"};
  const json* include = f.find("include");
  if (include != nullptr && !include->is_array()) f.refuse("include", "is not a list");
  for (size_t i = 0; include != nullptr && i < include->size(); ++i) {
    const json& name = (*include)[i];
    const std::string path = "include[" + std::to_string(i) + "]";
    if (name == "message.output_text.logprobs") {
      wanted = true;
    } else if (std::find(std::begin(kNever), std::end(kNever), name) != std::end(kNever)) {
      f.note_left_out(path);
    } else {
      f.refuse(path.c_str(), "is not known here");
    }
  }
  if (wanted) g->n_logprobs = static_cast<uint32_t>(1 + top);
}

// What a response repeats of its request.
json echoed(const json& body) {
  json out = json::object();
  const std::pair<const char*, json> fields[] = {{"instructions", nullptr},
                                                 {"max_output_tokens", nullptr},
                                                 {"metadata", json::object()},
                                                 {"parallel_tool_calls", true},
                                                 {"temperature", nullptr},
                                                 {"tool_choice", "auto"},
                                                 {"tools", empty_list()},
                                                 {"top_p", nullptr},
                                                 {"text", nullptr},
                                                 {"reasoning", nullptr},
                                                 {"truncation", "disabled"}};
  for (const auto& [name, otherwise] : fields) {
    const auto found = body.find(name);
    out[name] = found != body.end() ? *found : otherwise;
  }
  if (out["text"].is_null()) out["text"] = {{"format", {{"type", "text"}}}};
  return out;
}

}  // namespace

Asked read_response(const json& body, const Engine& engine, const Settings& settings) {
  Asked out;
  Generation g;
  Fields f(body, "");
  out.stream = read_common(f, engine, settings, {"max_output_tokens"}, &g);
  Conversational chat;
  chat.messages = read_input(f);
  chat.param = "input";
  chat.now = static_cast<uint64_t>(std::time(nullptr));
  read_thinking(f, "reasoning.effort", read_effort(f), &chat);
  const ToolList list = ToolList::of_responses(f);
  const Tools tools = list.read();
  chat.tools = tools.for_template;
  const TextFormat format = read_text(f);
  f.only("previous_response_id", nullptr, "responses are not kept; send their items again");
  f.only("conversation", nullptr, "conversations are not kept; send their items again");
  f.only("background", false, "answers are written while the request waits");
  f.only("truncation", "disabled", "nothing is left out of a prompt");
  read_include(f, &g);
  f.only("prompt", nullptr, "there are no stored prompts");
  f.leave_out({"stream_options", "client_metadata", "max_tool_calls", "prompt_cache_options"});
  Expected expected = ask_chat(engine, f, chat, list, tools, format, &g, &out);
  out.format = std::make_unique<ResponsesFormat>(engine, g, std::move(expected), echoed(body),
                                                 list.origins());
  add_choices(g, 1, {}, &out);
  return out;
}

}  // namespace server
