// SPDX-License-Identifier: MIT
// A chat answer taken apart while it comes: thoughts, content, tool calls.
// Thread rule: one thread an object.
#pragma once

#include <string>
#include <vector>

#include "engine.h"
#include "fields.h"
#include "generation.h"

namespace server {

struct ToolCall {
  std::string id, name, arguments;  // arguments: text that holds JSON
};

/// What is new since the last call.
struct Delta {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

class Reply {
 public:
  /// The end of the prompt may have opened a block that the answer goes on in.
  Reply(const Engine& engine, const Tokens& prompt);

  Delta push(const std::string& text);
  /// What was held back as a possible beginning of a mark.
  Delta finish();

  const std::string& reasoning() const { return reasoning_; }
  const std::string& content() const { return content_; }
  const std::vector<ToolCall>& calls() const { return calls_; }

 private:
  Delta parse(uint32_t flags);

  std::string prompt_end_, text_;
  std::string reasoning_, content_;
  std::vector<ToolCall> calls_;
};

/// The last tokens of a prompt as text: what sharpi_chat_parse() looks at.
std::string prompt_end(const Engine& engine, const Tokens& prompt);

/// Log probabilities of a piece as chat completions list them.
json logprob_json(const Engine& engine, const std::vector<sharpi_logprob>& list);
/// "stop", "length", "tool_calls".
const char* finish_reason(const Outcome& outcome, bool has_calls);
json usage_json(const Usage& usage);

}  // namespace server
