// SPDX-License-Identifier: MIT
// What /v1/responses answers: items of thoughts, text and calls, whole and as events.
// Thread rule: one thread an object.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "answer_format.h"
#include "reply.h"

namespace server {

class ResponsesFormat : public AnswerFormat {
 public:
  /// @param echo fields of the request that the response repeats.
  ResponsesFormat(const Engine& engine, const Tokens& prompt, Expected expected, json echo);
  std::string begin(const Outcome& outcome) override;
  std::string pieces(size_t choice, const std::vector<Piece>& pieces) override;
  std::string end(size_t choice, const Outcome& outcome) override;
  std::string finish(const Usage& usage) override;
  std::string failed(int http_status, const std::string& sentence) override;
  json whole(const Usage& usage) override;

 private:
  enum class Open { kNothing, kReasoning, kMessage };
  std::string say(const char* type, json data);
  std::string take(const Delta& delta);
  std::string open(Open what);
  std::string close();
  std::string add_text(Open what, const std::string& text);
  std::string add_call(const ToolCall& call);
  std::string item_event(const char* type, const json& item);
  json part(const std::string& text) const;
  json response(const char* status) const;

  const Engine& engine_;
  Reply reply_;
  const std::string id_;
  const std::time_t created_;
  const json echo_;
  std::string session_;
  json output_ = json::array();  // finished items
  Open open_ = Open::kNothing;
  std::string item_id_, text_;
  uint64_t sequence_ = 0;
  bool cut_ = false;  // by its limit
};

}  // namespace server
