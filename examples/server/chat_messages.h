// SPDX-License-Identifier: MIT
// A conversation as clients send it, made ready for the model's template.
// Thread rule: one thread an object.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "answer_format.h"
#include "engine.h"
#include "fields.h"
#include "reply.h"
#include "tool_list.h"
#include "tools.h"

namespace server {

struct Message {
  std::string role;
  std::optional<std::string> content, reasoning, tool_calls, tool_call_id, name;
};

struct Conversational {
  std::vector<Message> messages;
  std::string tools;               // JSON array; empty = none
  std::string variables;           // JSON object for the template; empty = none
  uint32_t flags = 0;              // SHARPI_CHAT_*
  uint64_t now = 0;                // one time for all renderings of the request
  const char* param = "messages";  // the field that the messages come from
  std::string opening;             // the answer goes on from this text; empty: it begins
};

/// The messages of a chat completion. Throws RequestError.
std::vector<Message> read_messages(const json& messages);
/// The text of a content: a string, or parts of text. `types` are the names of such parts.
std::string read_content(const json& content, const std::string& where,
                         std::initializer_list<const char*> types);

/// How much a model may think: `effort`, from the field of that name, and chat_template_kwargs.
void read_thinking(Fields& fields, const char* effort_name,
                   const std::optional<std::string>& effort, Conversational* chat);
/// The conversation as tokens, with the opening of the answer. Throws RequestError where the
/// template refuses.
Tokens chat_prompt(const Engine& engine, const Conversational& chat);
/// Ends the reading of a request whose fields were all asked for: *first gets the whole
/// conversation as tokens with the opening of the answer, the lengths that other prompts will share
/// with it, and what the answer has to keep to; *asked what was left out. Returns what the answer
/// may consist of. Throws RequestError where the template refuses, or nothing is left for an
/// answer.
Expected ask_chat(const Engine& engine, Fields& fields, const Conversational& chat,
                  const ToolList& list, const Tools& tools, const TextFormat& format,
                  Generation* first, Asked* asked);

}  // namespace server
