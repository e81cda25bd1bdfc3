// SPDX-License-Identifier: MIT
// A chat answer taken apart while it comes: thoughts, content, tool calls.
// Thread rule: one thread an object.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine.h"
#include "fields.h"
#include "generation.h"

namespace server {

struct ToolCall {
  std::string id, name, arguments;  // arguments: text that holds JSON
};

/// What an answer may consist of, besides thoughts.
struct Expected {
  std::string tools;         // those of the request, as templates take them; empty: no calls
  bool constrained = false;  // its content has to match a schema
  std::string schema = {};  // which the whole content is held against; empty: nothing is left of it
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
  Reply(const Engine& engine, const Tokens& prompt, Expected expected);
  Reply(std::string prompt_end, Expected expected)
      : prompt_end_(std::move(prompt_end)), expected_(std::move(expected)) {}

  /// What a piece adds. Costs as much as the piece is long where it is plain text, as much as all
  /// of the answer where a mark may begin in it.
  Delta push(const std::string& text);
  /// What was held back as a possible beginning of a mark.
  Delta finish();

  const std::string& reasoning() const { return reasoning_; }
  const std::string& content() const { return content_; }
  const std::vector<ToolCall>& calls() const { return calls_; }
  /// Whether all of the content is valid for a schema that says more than could be enforced:
  /// {"valid": ..., "error": ...}, valid null where it cannot be said. Null: there is none, or no
  /// content.
  json schema_check() const;
  /// How often all of the text was parsed.
  size_t n_parses() const { return n_parses_; }

 private:
  enum class Plain { kNo, kReasoning, kContent };
  Delta parse(uint32_t flags);
  Delta parse_piece(const std::string& text);
  Delta add_plain(const std::string& text);

  bool may_mark(const std::string& text) const;

  std::string prompt_end_, text_;
  Expected expected_;
  std::string reasoning_, content_;
  Plain plain_ = Plain::kNo;  // which part takes text as it comes
  std::string blanks_;        // at its end, waiting for more
  sharpi_part open_ = SHARPI_PART_CONTENT;
  size_t n_parses_ = 0;
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
