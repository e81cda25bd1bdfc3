// SPDX-License-Identifier: MIT
// /v1/chat/completions.
#include <algorithm>
#include <ctime>

#include "answer_format.h"
#include "chat_messages.h"
#include "reply.h"
#include "sampling_request.h"
#include "sse.h"
#include "tool_list.h"

namespace server {
namespace {

class ChatFormat : public AnswerFormat {
 public:
  ChatFormat(const Engine& engine, const Asked& asked, const Expected& expected, bool usage)
      : engine_(engine),
        id_(new_id("chatcmpl-")),
        created_(std::time(nullptr)),
        logprobs_(asked.generations.front().n_logprobs > 0),
        usage_(usage) {
    const std::string before = prompt_end(engine, asked.generations.front().prompt);
    for (size_t i = 0; i < asked.generations.size(); ++i) choices_.emplace_back(before, expected);
  }

  std::string begin(const Outcome& outcome) override {
    session_ = outcome.session;
    std::string out;
    for (size_t i = 0; i < choices_.size(); ++i) {
      out += event(chunk(i, {{"role", "assistant"}, {"content", ""}}, nullptr, json::array()));
    }
    return out;
  }

  std::string pieces(size_t choice, const std::vector<Piece>& pieces) override {
    std::string text;
    json logprobs = json::array();
    for (const Piece& piece : pieces) {
      text += piece.text;
      if (logprobs_ && piece.token >= 0) {
        logprobs.push_back(logprob_json(engine_, piece.logprobs));
      }
    }
    Choice& c = choices_[choice];
    c.logprobs.insert(c.logprobs.end(), logprobs.begin(), logprobs.end());
    return deltas(choice, c.reply.push(text), logprobs);
  }

  std::string end(size_t choice, const Outcome& outcome) override {
    Choice& c = choices_[choice];
    const std::string out = deltas(choice, c.reply.finish(), json::array());
    c.finish = finish_reason(outcome, !c.reply.calls().empty());
    json last = chunk(choice, json::object(), c.finish, json::array());
    add_check(c.reply, &last["choices"][0]);
    return out + event(last);
  }

  std::string finish(const Usage& usage) override {
    if (!usage_) return kDone;
    json last = chunk(0, json::object(), nullptr, json::array());
    last["choices"] = json::array();
    last["usage"] = usage_json(usage);
    return event(last) + kDone;
  }

  json whole(const Usage& usage) override {
    json choices = json::array();
    for (size_t i = 0; i < choices_.size(); ++i) choices.push_back(choice_json(i));
    return {{"id", id_},
            {"object", "chat.completion"},
            {"created", created_},
            {"model", engine_.name()},
            {"choices", choices},
            {"usage", usage_json(usage)},
            {"sharpi_session", session_}};
  }

 private:
  struct Choice {
    Choice(std::string prompt_end, Expected expected)
        : reply(std::move(prompt_end), std::move(expected)) {}
    Reply reply;
    json logprobs = json::array();
    const char* finish = "stop";
  };

  json choice_json(size_t index) const {
    const Choice& c = choices_[index];
    const Reply& reply = c.reply;
    json message = {{"role", "assistant"}, {"content", reply.content()}, {"refusal", nullptr}};
    if (!reply.reasoning().empty()) message["reasoning_content"] = reply.reasoning();
    if (!reply.calls().empty()) {
      message["tool_calls"] = json::array();
      for (const ToolCall& call : reply.calls()) message["tool_calls"].push_back(call_json(call));
      if (reply.content().empty()) message["content"] = nullptr;
    }
    json out = {
        {"index", index}, {"message", message}, {"finish_reason", c.finish}, {"logprobs", nullptr}};
    if (logprobs_) out["logprobs"] = {{"content", c.logprobs}, {"refusal", nullptr}};
    add_check(reply, &out);
    return out;
  }

  json chunk(size_t index, const json& delta, const json& finish, const json& logprobs) const {
    json choice = {{"index", index}, {"delta", delta}, {"finish_reason", finish}};
    choice["logprobs"] = nullptr;
    if (!logprobs.empty()) choice["logprobs"] = {{"content", logprobs}, {"refusal", nullptr}};
    json out = {{"id", id_},
                {"object", "chat.completion.chunk"},
                {"created", created_},
                {"model", engine_.name()},
                {"choices", json::array({choice})},
                {"sharpi_session", session_}};
    if (usage_) out["usage"] = nullptr;
    return out;
  }

  static void add_check(const Reply& reply, json* choice) {
    json check = reply.schema_check();
    if (!check.is_null()) (*choice)["sharpi_schema"] = std::move(check);
  }

  static json call_json(const ToolCall& call) {
    return {{"id", call.id},
            {"type", "function"},
            {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
  }

  std::string deltas(size_t choice, const Delta& delta, const json& logprobs) const {
    json parts = json::object();
    if (!delta.reasoning.empty()) parts["reasoning_content"] = delta.reasoning;
    if (!delta.content.empty()) parts["content"] = delta.content;
    const size_t n_calls = choices_[choice].reply.calls().size();
    for (size_t i = 0; i < delta.calls.size(); ++i) {
      json call = call_json(delta.calls[i]);
      call["index"] = n_calls - delta.calls.size() + i;
      parts["tool_calls"].push_back(std::move(call));
    }
    if (parts.empty() && logprobs.empty()) return "";
    return event(chunk(choice, parts, nullptr, logprobs));
  }

  const Engine& engine_;
  const std::string id_;
  const std::time_t created_;
  const bool logprobs_, usage_;
  std::vector<Choice> choices_;
  std::string session_;
};

void read_logprobs(Fields& f, Generation* g) {
  const bool wanted = f.boolean("logprobs").value_or(false);
  const int64_t top = f.integer("top_logprobs", 0, 20).value_or(0);
  if (top > 0 && !wanted) f.refuse("top_logprobs", "needs logprobs to be true");
  if (wanted) g->n_logprobs = static_cast<uint32_t>(1 + top);
}

// How much a model may think, in the words of several clients.
void read_chat_thinking(Fields& f, Conversational* chat) {
  std::optional<std::string> effort = f.text("reasoning_effort");
  std::string name = "reasoning_effort";
  if (const json* reasoning = f.find("reasoning")) {
    Fields inner(*reasoning, "reasoning");
    if (const auto given = inner.text("effort")) {
      effort = given;
      name = "reasoning.effort";
    }
    const auto enabled = inner.boolean("enabled");
    if (enabled) chat->flags |= *enabled ? SHARPI_CHAT_THINKING : SHARPI_CHAT_NO_THINKING;
    inner.leave_out({"summary"});
    inner.only("exclude", false, "thoughts are part of the answer");
    inner.finish();
    f.take_left_out(inner);
  }
  if (const auto thinks = f.boolean("enable_thinking")) {
    chat->flags |= *thinks ? SHARPI_CHAT_THINKING : SHARPI_CHAT_NO_THINKING;
  }
  if (const json* thinking = f.find("thinking")) {
    Fields inner(*thinking, "thinking");
    inner.need("type");
    const std::string type = inner.text("type").value();
    if (type != "enabled" && type != "disabled") {
      inner.refuse("type", "is not enabled or disabled");
    }
    chat->flags |= type == "enabled" ? SHARPI_CHAT_THINKING : SHARPI_CHAT_NO_THINKING;
    inner.leave_out({"budget_tokens"});
    inner.finish();
    f.take_left_out(inner);
  }
  read_thinking(f, name.c_str(), effort, chat);
  constexpr uint32_t kBoth = SHARPI_CHAT_THINKING | SHARPI_CHAT_NO_THINKING;
  if ((chat->flags & kBoth) == kBoth) {
    throw RequestError(400, "the fields of the request differ in whether to think", name);
  }
}

}  // namespace

Asked read_chat(const json& body, const Engine& engine, const Settings& settings) {
  Asked out;
  Generation g;
  Fields f(body, "");
  out.stream = read_common(f, engine, settings, {"max_completion_tokens", "max_tokens"}, &g);
  const size_t n = read_n(f, settings);
  Conversational chat;
  chat.messages = read_messages(f.need("messages"));
  chat.now = static_cast<uint64_t>(std::time(nullptr));
  read_chat_thinking(f, &chat);
  read_logprobs(f, &g);
  const ToolList list = ToolList::of_chat(f);
  const Tools tools = list.read();
  chat.tools = tools.for_template;
  const TextFormat format = read_text_format(f.find("response_format"), "response_format", false);
  const bool usage = read_stream_options(f, out.stream);
  f.only("modalities", json::array({"text"}), "only text is written");
  f.only("functions", json::array(), "use tools");
  f.only("function_call", nullptr, "use tool_choice");
  f.only("audio", nullptr, "only text is written");
  f.only("web_search_options", nullptr, "nothing is searched from here");
  f.leave_out({"verbosity", "prediction", "client_metadata"});
  const Expected expected = ask_chat(engine, f, chat, list, tools, format, &g, &out);
  add_choices(
      g, n, [&] { return make_constraint(engine, g.prompt, tools, format); }, &out);
  out.format = std::make_unique<ChatFormat>(engine, out, expected, usage);
  return out;
}

}  // namespace server
