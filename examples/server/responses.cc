// SPDX-License-Identifier: MIT
#include <algorithm>

#include "responses_format.h"
#include "sampling_request.h"
#include "sse.h"

namespace server {
namespace {

// The text of an argument of that name, where the arguments are an object with such a one.
std::string argument_of(const std::string& arguments, const char* name) {
  const json parsed = json::parse(arguments, nullptr, false);
  const bool has = parsed.is_object() && parsed.contains(name) && parsed[name].is_string();
  return has ? parsed[name].get<std::string>() : arguments;
}

}  // namespace

ResponsesFormat::ResponsesFormat(const Engine& engine, const Generation& generation,
                                 Expected expected, json echo, std::vector<ToolOrigin> origins)
    : engine_(engine),
      reply_(engine, generation.prompt, std::move(expected)),
      id_(new_id("resp_")),
      created_(std::time(nullptr)),
      echo_(std::move(echo)),
      origins_(std::move(origins)),
      has_logprobs_(generation.n_logprobs > 0) {}

std::string ResponsesFormat::say(const char* type, json data) {
  json out = {{"type", type}, {"sequence_number", sequence_++}};
  out.update(data);
  return named_event(type, out);
}

json ResponsesFormat::response(const char* status) const {
  json out = {{"id", id_},
              {"object", "response"},
              {"created_at", created_},
              {"status", status},
              {"error", nullptr},
              {"incomplete_details", nullptr},
              {"model", engine_.name()},
              {"output", output_},
              {"previous_response_id", nullptr},
              {"store", false},
              {"usage", nullptr},
              {"sharpi_session", session_}};
  out.update(echo_);
  return out;
}

json ResponsesFormat::part(const std::string& text, const json& logprobs) const {
  if (open_ == Open::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", json::array()},
          {"logprobs", logprobs}};
}

std::string ResponsesFormat::item_event(const char* type, const json& item) {
  return say(type, {{"output_index", output_.size()}, {"item", item}});
}

std::string ResponsesFormat::begin(const Outcome& outcome) {
  session_ = outcome.session;
  std::string out = say("response.created", {{"response", response("in_progress")}});
  out += say("response.in_progress", {{"response", response("in_progress")}});
  return out;
}

std::string ResponsesFormat::open(Open what) {
  if (open_ == what) return "";
  std::string out = close();
  open_ = what;
  text_.clear();
  logprobs_ = json::array();
  const bool thinks = what == Open::kReasoning;
  item_id_ = new_id(thinks ? "rs_" : "msg_");
  json item = {{"id", item_id_}, {"type", thinks ? "reasoning" : "message"}};
  if (thinks) {
    item["summary"] = json::array();
  } else {
    item["role"] = "assistant";
  }
  item["status"] = "in_progress";
  item["content"] = json::array();
  out += item_event("response.output_item.added", item);
  out += say("response.content_part.added", {{"item_id", item_id_},
                                             {"output_index", output_.size()},
                                             {"content_index", 0},
                                             {"part", part("", json::array())}});
  return out;
}

std::string ResponsesFormat::close() {
  if (open_ == Open::kNothing) return "";
  const bool thinks = open_ == Open::kReasoning;
  json at = {{"item_id", item_id_}, {"output_index", output_.size()}, {"content_index", 0}};
  json text = at, whole = at;
  text["text"] = text_;
  if (!thinks) text["logprobs"] = logprobs_;
  whole["part"] = part(text_, logprobs_);
  std::string out =
      say(thinks ? "response.reasoning_text.done" : "response.output_text.done", text);
  out += say("response.content_part.done", whole);
  json item = {{"id", item_id_}, {"type", thinks ? "reasoning" : "message"}};
  if (thinks) {
    item["summary"] = json::array();
  } else {
    item["role"] = "assistant";
  }
  item["status"] = "completed";
  item["content"] = json::array({part(text_, logprobs_)});
  out += item_event("response.output_item.done", item);
  output_.push_back(std::move(item));
  open_ = Open::kNothing;
  return out;
}

std::string ResponsesFormat::add_text(Open what, const std::string& text) {
  if (text.empty()) return "";
  std::string out = open(what);
  text_ += text;
  json delta = {{"item_id", item_id_},
                {"output_index", output_.size()},
                {"content_index", 0},
                {"delta", text}};
  if (what == Open::kMessage) {
    logprobs_.insert(logprobs_.end(), coming_.begin(), coming_.end());
    delta["logprobs"] = std::move(coming_);
  }
  coming_ = json::array();
  out +=
      say(what == Open::kReasoning ? "response.reasoning_text.delta" : "response.output_text.delta",
          delta);
  return out;
}

std::string ResponsesFormat::add_call(const ToolCall& call) {
  const auto origin = std::find_if(origins_.begin(), origins_.end(),
                                   [&](const auto& o) { return o.called == call.name; });
  const bool is_custom = origin != origins_.end() && origin->is_custom;
  json item = {{"id", new_id(is_custom ? "ctc_" : "fc_")},
               {"type", is_custom ? "custom_tool_call" : "function_call"},
               {"status", "in_progress"},
               {"call_id", call.id},
               {"name", origin != origins_.end() ? origin->name : call.name}};
  if (origin != origins_.end() && !origin->space.empty()) item["namespace"] = origin->space;
  coming_ = json::array();
  if (is_custom) {
    return call_events(std::move(item), "input", "response.custom_tool_call_input",
                       argument_of(call.arguments, "input"));
  }
  return call_events(std::move(item), "arguments", "response.function_call_arguments",
                     call.arguments);
}

std::string ResponsesFormat::call_events(json item, const char* member, const char* event,
                                         const std::string& text) {
  std::string out = close();
  item[member] = "";
  const json at = {{"item_id", item["id"]}, {"output_index", output_.size()}};
  out += item_event("response.output_item.added", item);
  json delta = at, done = at;
  delta["delta"] = text;
  done["name"] = item["name"];
  done[member] = text;
  const std::string name = event;
  out += say((name + ".delta").c_str(), delta);
  out += say((name + ".done").c_str(), done);
  item["status"] = "completed";
  item[member] = text;
  out += item_event("response.output_item.done", item);
  output_.push_back(std::move(item));
  return out;
}

std::string ResponsesFormat::take(const Delta& delta) {
  std::string out = add_text(Open::kReasoning, delta.reasoning);
  out += add_text(Open::kMessage, delta.content);
  for (const ToolCall& call : delta.calls) out += add_call(call);
  return out;
}

// With log probabilities token by token, so that each stands where its text does.
std::string ResponsesFormat::pieces(size_t, const std::vector<Piece>& pieces) {
  std::string text, out;
  for (const Piece& piece : pieces) {
    text += piece.text;
    if (!has_logprobs_) continue;
    if (piece.token >= 0) coming_.push_back(logprob_json(engine_, piece.logprobs));
    out += take(reply_.push(text));
    text.clear();
  }
  return out + take(reply_.push(text));
}

std::string ResponsesFormat::end(size_t, const Outcome& outcome) {
  cut_ = outcome.finish == Finish::kLength;
  std::string out = take(reply_.finish());
  return out + close();
}

std::string ResponsesFormat::finish(const Usage& usage) {
  return say(cut_ ? "response.incomplete" : "response.completed", {{"response", whole(usage)}});
}

std::string ResponsesFormat::failed(int, const std::string& sentence) {
  json failed = response("failed");
  failed["error"] = {{"code", "server_error"}, {"message", sentence}};
  return say("response.failed", {{"response", failed}});
}

json ResponsesFormat::whole(const Usage& usage) {
  json out = response(cut_ ? "incomplete" : "completed");
  json check = reply_.schema_check();
  if (!check.is_null()) out["sharpi_schema"] = std::move(check);
  if (cut_) out["incomplete_details"] = {{"reason", "max_output_tokens"}};
  out["usage"] = {{"input_tokens", usage.prompt_tokens},
                  {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
                  {"output_tokens", usage.completion_tokens},
                  {"output_tokens_details", {{"reasoning_tokens", 0}}},
                  {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  return out;
}

}  // namespace server
