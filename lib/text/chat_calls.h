// SPDX-License-Identifier: MIT
// Calls of tools as models write them, each kind of spelling read into a name and arguments.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/jinja/json.h"

namespace sharpi {

class ToolSchemas;
struct CallContext;

struct ToolCall {
  jinja::Value name, arguments, id;  // id: none where the spelling has none
};

/// What is known of a call from the beginning of a text that may still grow. Once it is kComplete
/// or kBroken, more text does not change that.
enum class CallState { kComplete, kIncomplete, kBroken };

/// Text without the blanks around it.
std::string_view strip_blanks(std::string_view text);

/// The call behind an opening mark, up to and with its closing one: JSON, or one of the spellings
/// of Qwen3-Coder, GLM, DeepSeek and Gemma. What ends a call or an argument ends nothing inside a
/// string of JSON or of Gemma's, and elsewhere only where the rest of a call follows. *used: its
/// bytes.
CallState read_marked(std::string_view text, std::string_view close, const CallContext& context,
                      ToolCall* out, size_t* used);

/// The calls behind an opening mark, up to and with its closing one: one as above, or a list of
/// them, as LFM2 writes it: JSON, or calls as in Python.
CallState read_marked_list(std::string_view text, std::string_view close,
                           const CallContext& context, std::vector<ToolCall>* out, size_t* used);

/// Mistral's, behind [TOOL_CALLS]: a JSON array of calls, or NAME[ARGS]{...}, with [CALL_ID]ID
/// before [ARGS] or without. *used: bytes of it.
CallState read_mistral(std::string_view text, jinja::Heap* heap, std::vector<ToolCall>* out,
                       size_t* used);

/// A JSON object that is nothing but a call, as Llama 3 writes it without any mark. Where there are
/// tools, it has to be one of them.
CallState read_bare(std::string_view text, const ToolSchemas& tools, jinja::Heap* heap,
                    std::vector<ToolCall>* out, size_t* used);

/// The JSON that a text begins with. *used: its bytes.
CallState read_json_begin(std::string_view text, jinja::Heap* heap, jinja::Value* out,
                          size_t* used);

/// Arguments alone: a JSON object.
bool read_arguments(std::string_view text, jinja::Heap* heap, jinja::Value* out);

}  // namespace sharpi
