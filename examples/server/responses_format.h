// SPDX-License-Identifier: MIT
// What /v1/responses answers: items of thoughts, text and calls, whole and as events.
// Thread rule: one thread an object.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "answer_format.h"
#include "reply.h"
#include "tool_list.h"

namespace server {

class ResponsesFormat : public AnswerFormat {
 public:
  /// @param echo fields of the request that the response repeats.
  /// @param origins of the functions that may be called.
  ResponsesFormat(const Engine& engine, const Generation& generation, Expected expected, json echo,
                  std::vector<ToolOrigin> origins);
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
  std::string call_events(json item, const char* member, const char* event,
                          const std::string& text);
  std::string item_event(const char* type, const json& item);
  json part(const std::string& text, const json& logprobs) const;
  json response(const char* status) const;

  const Engine& engine_;
  Reply reply_;
  const std::string id_;
  const std::time_t created_;
  const json echo_;
  const std::vector<ToolOrigin> origins_;
  const bool has_logprobs_;
  std::string session_;
  json output_ = json::array();  // finished items
  Open open_ = Open::kNothing;
  std::string item_id_, text_;
  json logprobs_ = json::array();  // of the open message
  json coming_ = json::array();    // of tokens whose text did not come out yet
  uint64_t sequence_ = 0;
  bool cut_ = false;  // by its limit
};

}  // namespace server
