// SPDX-License-Identifier: MIT
// What /v1/messages answers: blocks of thoughts, text and calls, whole and as events.
// Thread rule: one thread an object.
#pragma once

#include <string>
#include <vector>

#include "answer_format.h"
#include "reply.h"

namespace server {

/// An error as Anthropic's clients read it.
json messages_error_json(int status, const std::string& sentence);
/// `usage`: tokens that were held are told apart from those that were read.
json messages_usage(const Usage& usage);

class MessagesFormat : public AnswerFormat {
 public:
  MessagesFormat(const Engine& engine, const Generation& generation, Expected expected);
  std::string begin(const Outcome& outcome) override;
  std::string waiting(const Progress& progress) override;
  std::string pieces(size_t choice, const std::vector<Piece>& pieces) override;
  std::string end(size_t choice, const Outcome& outcome) override;
  std::string finish(const Usage& usage) override;
  std::string failed(int http_status, const std::string& sentence) override;
  json whole(const Usage& usage) override;

 private:
  enum class Open { kNothing, kThinking, kText };
  static std::string say(const char* type, json data);
  std::string block_event(const char* type, const char* member, const json& value) const;
  std::string take(const Delta& delta);
  std::string add_text(Open what, const std::string& text);
  std::string add_call(const ToolCall& call);
  std::string close();
  json block(const std::string& text) const;
  json message(const Usage& usage) const;

  const Engine& engine_;
  Reply reply_;
  const uint32_t max_tokens_;
  const std::string id_;
  std::string session_;
  json content_ = json::array();  // finished blocks
  Open open_ = Open::kNothing;
  std::string text_;  // of the open one
  json stop_reason_, stop_sequence_;
};

}  // namespace server
