// SPDX-License-Identifier: MIT
#include "messages_format.h"

#include <utility>

#include "sampling_request.h"
#include "sse.h"

namespace server {

json messages_error_json(int status, const std::string& sentence) {
  const char* type = status == 401   ? "authentication_error"
                     : status == 403 ? "permission_error"
                     : status == 404 ? "not_found_error"
                     : status == 413 ? "request_too_large"
                     : status == 429 ? "rate_limit_error"
                     : status == 503 ? "overloaded_error"
                     : status >= 500 ? "api_error"
                                     : "invalid_request_error";
  return {{"type", "error"}, {"error", {{"type", type}, {"message", sentence}}}};
}

json messages_usage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens}};
}

MessagesFormat::MessagesFormat(const Engine& engine, const Generation& generation,
                               Expected expected)
    : engine_(engine),
      reply_(engine, generation.prompt, std::move(expected)),
      max_tokens_(generation.max_tokens),
      id_(new_id("msg_")) {}

std::string MessagesFormat::say(const char* type, json data) {
  json out = {{"type", type}};
  out.update(data);
  return named_event(type, out);
}

std::string MessagesFormat::block_event(const char* type, const char* member,
                                        const json& value) const {
  return say(type, {{"index", content_.size()}, {member, value}});
}

json MessagesFormat::message(const Usage& usage) const {
  return {{"id", id_},
          {"type", "message"},
          {"role", "assistant"},
          {"model", engine_.name()},
          {"content", content_},
          {"stop_reason", stop_reason_},
          {"stop_sequence", stop_sequence_},
          {"usage", messages_usage(usage)},
          {"sharpi_session", session_}};
}

std::string MessagesFormat::begin(const Outcome& outcome) {
  session_ = outcome.session;
  return say("message_start", {{"message", message(outcome.usage)}});
}

std::string MessagesFormat::waiting(const Progress& progress) {
  return AnswerFormat::waiting(progress) + say("ping", json::object());
}

json MessagesFormat::block(const std::string& text) const {
  if (open_ == Open::kText) return {{"type", "text"}, {"text", text}};
  return {{"type", "thinking"}, {"thinking", text}, {"signature", ""}};
}

std::string MessagesFormat::close() {
  if (open_ == Open::kNothing) return "";
  std::string out;
  if (open_ == Open::kThinking) {  // nobody signs here, and clients wait for it
    out = block_event("content_block_delta", "delta",
                      {{"type", "signature_delta"}, {"signature", ""}});
  }
  out += say("content_block_stop", {{"index", content_.size()}});
  content_.push_back(block(text_));
  open_ = Open::kNothing;
  return out;
}

std::string MessagesFormat::add_text(Open what, const std::string& text) {
  if (text.empty()) return "";
  std::string out;
  if (open_ != what) {
    out = close();
    open_ = what;
    text_.clear();
    out += block_event("content_block_start", "content_block", block(""));
  }
  text_ += text;
  const json delta = what == Open::kText ? json{{"type", "text_delta"}, {"text", text}}
                                         : json{{"type", "thinking_delta"}, {"thinking", text}};
  return out + block_event("content_block_delta", "delta", delta);
}

// Arguments that are no JSON stand there as the text that they are.
std::string MessagesFormat::add_call(const ToolCall& call) {
  std::string out = close();
  json block = {
      {"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", json::object()}};
  out += block_event("content_block_start", "content_block", block);
  out += block_event("content_block_delta", "delta",
                     {{"type", "input_json_delta"}, {"partial_json", call.arguments}});
  out += say("content_block_stop", {{"index", content_.size()}});
  json input = json::parse(call.arguments, nullptr, false);
  block["input"] = input.is_discarded() ? json(call.arguments) : std::move(input);
  content_.push_back(std::move(block));
  return out;
}

std::string MessagesFormat::take(const Delta& delta) {
  std::string out = add_text(Open::kThinking, delta.reasoning);
  out += add_text(Open::kText, delta.content);
  for (const ToolCall& call : delta.calls) out += add_call(call);
  return out;
}

std::string MessagesFormat::pieces(size_t, const std::vector<Piece>& pieces) {
  std::string text;
  for (const Piece& piece : pieces) text += piece.text;
  return take(reply_.push(text));
}

std::string MessagesFormat::end(size_t, const Outcome& outcome) {
  std::string out = take(reply_.finish());
  out += close();
  if (outcome.finish == Finish::kLength) {
    const bool is_limit = max_tokens_ != 0 && outcome.usage.completion_tokens >= max_tokens_;
    stop_reason_ = is_limit ? "max_tokens" : "model_context_window_exceeded";
  } else if (!outcome.stop.empty()) {
    stop_reason_ = "stop_sequence";
    stop_sequence_ = outcome.stop;
  } else {
    stop_reason_ = reply_.calls().empty() ? "end_turn" : "tool_use";
  }
  return out;
}

std::string MessagesFormat::finish(const Usage& usage) {
  const json delta = {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}};
  json last = {{"delta", delta}, {"usage", messages_usage(usage)}};
  json check = reply_.schema_check();
  if (!check.is_null()) last["sharpi_schema"] = std::move(check);
  return say("message_delta", last) + say("message_stop", json::object());
}

std::string MessagesFormat::failed(int http_status, const std::string& sentence) {
  return named_event("error", messages_error_json(http_status, sentence));
}

json MessagesFormat::whole(const Usage& usage) {
  json out = message(usage);
  json check = reply_.schema_check();
  if (!check.is_null()) out["sharpi_schema"] = std::move(check);
  return out;
}

}  // namespace server
