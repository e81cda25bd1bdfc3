// SPDX-License-Identifier: MIT
// Calls of tools as models write them, each kind of spelling read into a name and arguments.
// Thread rule: pure functions.
#pragma once

#include <string_view>

#include "text/jinja/json.h"

namespace sharpi {

struct ToolCall {
  jinja::Value name, arguments, id;  // id: none where the spelling has none
};

/// What is known of a call from the beginning of a text that may still grow. Once it is kComplete
/// or kBroken, more text does not change that.
enum class CallState { kComplete, kIncomplete, kBroken };

/// Text without the blanks around it.
std::string_view strip_blanks(std::string_view text);

/// A whole body that stood between two marks: JSON, or one of the spellings of Qwen3-Coder, GLM and
/// DeepSeek. False: it is none of them.
bool read_call(std::string_view body, jinja::Heap* heap, ToolCall* out);

/// Mistral's, behind [TOOL_CALLS]: a JSON array of calls, or NAME[ARGS]{...}, with [CALL_ID]ID
/// before [ARGS] or without. *used: bytes of it.
CallState read_mistral(std::string_view text, jinja::Heap* heap, std::vector<ToolCall>* out,
                       size_t* used);

/// A JSON object that is nothing but a call, as Llama 3 writes it without any mark.
CallState read_bare(std::string_view text, jinja::Heap* heap, std::vector<ToolCall>* out,
                    size_t* used);

/// Arguments alone: a JSON object.
bool read_arguments(std::string_view text, jinja::Heap* heap, jinja::Value* out);

}  // namespace sharpi
