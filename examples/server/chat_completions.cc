// SPDX-License-Identifier: MIT
// /v1/chat/completions.
#include <algorithm>
#include <ctime>

#include "answer_format.h"
#include "chat_messages.h"
#include "reply.h"
#include "sampling_request.h"
#include "sse.h"
#include "tools.h"

namespace server {
namespace {

class ChatFormat : public AnswerFormat {
 public:
  ChatFormat(const Engine& engine, const Tokens& prompt, Expected expected, bool logprobs,
             bool usage)
      : engine_(engine),
        reply_(engine, prompt, std::move(expected)),
        id_(new_id("chatcmpl-")),
        created_(std::time(nullptr)),
        logprobs_(logprobs),
        usage_(usage) {}

  std::string begin(const Outcome& outcome) override {
    session_ = outcome.session;
    return event(chunk({{"role", "assistant"}, {"content", ""}}, nullptr, json::array()));
  }

  std::string pieces(const std::vector<Piece>& pieces) override {
    std::string out, text;
    json logprobs = json::array();
    for (const Piece& piece : pieces) {
      text += piece.text;
      if (logprobs_ && piece.token >= 0) {
        logprobs.push_back(logprob_json(engine_, piece.logprobs));
      }
    }
    all_logprobs_.insert(all_logprobs_.end(), logprobs.begin(), logprobs.end());
    return deltas(reply_.push(text), std::move(logprobs));
  }

  std::string end(const Outcome& outcome) override {
    if (outcome.finish == Finish::kFailed) {
      return event(error_json(outcome.http_status, outcome.error));
    }
    std::string out = deltas(reply_.finish(), json::array());
    json last =
        chunk(json::object(), finish_reason(outcome, !reply_.calls().empty()), json::array());
    out += event(last);
    if (usage_) {
      json usage = chunk(json::object(), nullptr, json::array());
      usage["choices"] = json::array();
      usage["usage"] = usage_json(outcome.usage);
      out += event(usage);
    }
    return out + kDone;
  }

  json whole(const Outcome& outcome) override {
    json message = {{"role", "assistant"}, {"content", reply_.content()}, {"refusal", nullptr}};
    if (!reply_.reasoning().empty()) message["reasoning_content"] = reply_.reasoning();
    if (!reply_.calls().empty()) {
      message["tool_calls"] = json::array();
      for (const ToolCall& call : reply_.calls()) message["tool_calls"].push_back(call_json(call));
      if (reply_.content().empty()) message["content"] = nullptr;
    }
    json choice = {{"index", 0},
                   {"message", message},
                   {"finish_reason", finish_reason(outcome, !reply_.calls().empty())},
                   {"logprobs", nullptr}};
    if (logprobs_) choice["logprobs"] = {{"content", all_logprobs_}, {"refusal", nullptr}};
    return {{"id", id_},
            {"object", "chat.completion"},
            {"created", created_},
            {"model", engine_.name()},
            {"choices", json::array({choice})},
            {"usage", usage_json(outcome.usage)},
            {"sharpi_session", outcome.session}};
  }

 private:
  json chunk(const json& delta, const json& finish, const json& logprobs) const {
    json choice = {{"index", 0}, {"delta", delta}, {"finish_reason", finish}};
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

  static json call_json(const ToolCall& call) {
    return {{"id", call.id},
            {"type", "function"},
            {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
  }

  std::string deltas(const Delta& delta, json logprobs) {
    std::string out;
    json parts = json::object();
    if (!delta.reasoning.empty()) parts["reasoning_content"] = delta.reasoning;
    if (!delta.content.empty()) parts["content"] = delta.content;
    for (size_t i = 0; i < delta.calls.size(); ++i) {
      json call = call_json(delta.calls[i]);
      call["index"] = reply_.calls().size() - delta.calls.size() + i;
      parts["tool_calls"].push_back(std::move(call));
    }
    if (!parts.empty() || !logprobs.empty()) out = event(chunk(parts, nullptr, logprobs));
    return out;
  }

  const Engine& engine_;
  Reply reply_;
  const std::string id_;
  const std::time_t created_;
  const bool logprobs_, usage_;
  std::string session_;
  json all_logprobs_ = json::array();
};

void read_logprobs(Fields& f, Generation* g) {
  const bool wanted = f.boolean("logprobs").value_or(false);
  const int64_t top = f.integer("top_logprobs", 0, 20).value_or(0);
  if (top > 0 && !wanted) f.refuse("top_logprobs", "needs logprobs to be true");
  if (wanted) g->n_logprobs = static_cast<uint32_t>(1 + top);
}

}  // namespace

Asked read_chat(const json& body, const Engine& engine, const Settings& settings) {
  Asked out;
  Generation& g = out.generation;
  Fields f(body, "");
  out.stream = read_common(f, engine, settings, {"max_completion_tokens", "max_tokens"}, &g);
  Conversational chat;
  chat.messages = read_messages(f.need("messages"));
  chat.now = static_cast<uint64_t>(std::time(nullptr));
  read_thinking(f, "reasoning_effort", f.text("reasoning_effort"), &chat);
  read_logprobs(f, &g);
  const Tools tools = read_tools(f, false);
  chat.tools = tools.for_template;
  const TextFormat format = read_text_format(f.find("response_format"), "response_format", false);
  const bool usage = read_stream_options(f, out.stream);
  f.only("modalities", json::array({"text"}), "only text is written");
  f.finish();
  ask_chat(engine, chat, tools, format, &g);
  Expected expected{tools.for_template, format.kind != SHARPI_GRAMMAR_ANY};
  out.format =
      std::make_unique<ChatFormat>(engine, g.prompt, std::move(expected), g.n_logprobs > 0, usage);
  return out;
}

}  // namespace server
