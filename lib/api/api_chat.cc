// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "api/api_guard.h"
#include "api/api_handles.h"
#include "api/api_out.h"
#include "api/api_params.h"
#include "text/chat.h"
#include "text/chat_parse.h"

namespace api = sharpi::api;
using sharpi::Code;
using sharpi::Status;

namespace {

constexpr uint32_t kChatFlags = SHARPI_CHAT_NO_PROMPT | SHARPI_CHAT_THINKING |
                                SHARPI_CHAT_NO_THINKING | SHARPI_CHAT_DESCRIBE_TOOLS;
constexpr api::StructInfo kParams{"sharpi_chat_params", 64, sizeof(sharpi_chat_params)};
constexpr uint32_t kParseFlags =
    SHARPI_PARSE_PARTIAL | SHARPI_PARSE_REASONING | SHARPI_PARSE_CALLS | SHARPI_PARSE_CONSTRAINED;
constexpr api::StructInfo kParseParams{"sharpi_parse_params", 40, sizeof(sharpi_parse_params)};
constexpr api::StructInfo kMessage{"sharpi_message", 72, sizeof(sharpi_message)};

sharpi_chat_params default_params() {
  sharpi_chat_params p{};
  p.struct_size = sizeof p;
  p.message_size = sizeof(sharpi_message);
  return p;
}

Status read_text(const char* text, size_t len, const char* what, std::string_view* out) {
  if (text == nullptr && len > 0) {
    return Status::error(Code::kInvalidArgument, "%s is null", what);
  }
  *out = text != nullptr ? std::string_view(text, len) : std::string_view();
  return Status::ok();
}

Status read_message(const sharpi_message& m, sharpi::ChatMessage* out) {
  SHARPI_TRY(api::require(m.role, "role"));
  out->role = m.role;
  SHARPI_TRY(read_text(m.content, m.content_len, "content", &out->content));
  SHARPI_TRY(read_text(m.parts, m.parts_len, "parts", &out->parts));
  if (m.parts != nullptr && m.content != nullptr) {
    return Status::error(Code::kInvalidArgument, "content and parts are both given");
  }
  SHARPI_TRY(read_text(m.reasoning, m.reasoning_len, "reasoning", &out->reasoning));
  SHARPI_TRY(read_text(m.tool_calls, m.tool_calls_len, "tool_calls", &out->tool_calls));
  if (m.tool_call_id != nullptr) out->tool_call_id = m.tool_call_id;
  if (m.name != nullptr) out->name = m.name;
  return Status::ok();
}

Status read_messages(const sharpi_chat_params& p, std::vector<sharpi::ChatMessage>* out) {
  SHARPI_TRY(api::require_array(p.messages, p.n_messages, "messages"));
  if (p.n_messages == 0) return Status::error(Code::kInvalidArgument, "there are no messages");
  SHARPI_TRY(api::check_row_size(p.message_size, kMessage.v1_size, kMessage.name));
  const auto* from = reinterpret_cast<const char*>(p.messages);
  for (uint32_t i = 0; i < p.n_messages; ++i, from += p.message_size) {
    for (size_t at = sizeof(sharpi_message); at < p.message_size; ++at) {
      if (from[at] == 0) continue;
      return Status::error(Code::kUnsupported,
                           "messages[%u] has byte %zu set, but this library knows only %zu bytes",
                           i, at, sizeof(sharpi_message));
    }
    sharpi_message message{};
    std::memcpy(&message, from, std::min<size_t>(p.message_size, sizeof message));
    if (Status s = read_message(message, &out->emplace_back()); !s.is_ok()) {
      return Status::error(s.code(), "messages[%u].%s", i, s.text().c_str());
    }
  }
  return Status::ok();
}

Status render(const sharpi_model* model, const sharpi_chat_params* params,
              sharpi::jinja::MarkedText* out) {
  const sharpi::Tokenizer* tokenizer = nullptr;
  SHARPI_TRY(api::find_tokenizer(model, &tokenizer));
  SHARPI_TRY(api::require(params, "params"));
  sharpi_chat_params p = default_params();
  SHARPI_TRY(api::adopt_struct(kParams, params, &p));
  SHARPI_TRY(api::require_flags(p.flags, kChatFlags, "flags"));
  const bool on = (p.flags & SHARPI_CHAT_THINKING) != 0;
  const bool off = (p.flags & SHARPI_CHAT_NO_THINKING) != 0;
  if (on && off) {
    return Status::error(Code::kInvalidArgument,
                         "flags ask for both SHARPI_CHAT_THINKING and SHARPI_CHAT_NO_THINKING");
  }
  std::vector<sharpi::ChatMessage> messages;
  SHARPI_TRY(read_messages(p, &messages));
  sharpi::ChatRequest request;
  request.messages = messages;
  SHARPI_TRY(read_text(p.tools, p.tools_len, "tools", &request.tools));
  SHARPI_TRY(read_text(p.variables, p.variables_len, "variables", &request.variables));
  request.add_generation_prompt = (p.flags & SHARPI_CHAT_NO_PROMPT) == 0;
  request.thinking = on    ? sharpi::Thinking::kOn
                     : off ? sharpi::Thinking::kOff
                           : sharpi::Thinking::kTemplate;
  request.now = static_cast<int64_t>(p.now);
  request.describe_tools = (p.flags & SHARPI_CHAT_DESCRIBE_TOOLS) != 0;
  SHARPI_TRY_ASSIGN(*out, model->text->chat()->render(request));
  return Status::ok();
}

sharpi_parse_params default_parse_params() {
  sharpi_parse_params p{};
  p.struct_size = sizeof p;
  p.flags = SHARPI_PARSE_REASONING | SHARPI_PARSE_CALLS;
  return p;
}

Status read_parse_params(const sharpi_parse_params* params, sharpi::ParseRequest* out) {
  sharpi_parse_params p = default_parse_params();
  if (params != nullptr) SHARPI_TRY(api::adopt_struct(kParseParams, params, &p));
  SHARPI_TRY(api::require_flags(p.flags, kParseFlags, "flags"));
  SHARPI_TRY(read_text(p.prompt, p.prompt_len, "prompt", &out->prompt));
  SHARPI_TRY(read_text(p.tools, p.tools_len, "tools", &out->tools));
  out->partial = (p.flags & SHARPI_PARSE_PARTIAL) != 0;
  out->reasoning = (p.flags & SHARPI_PARSE_REASONING) != 0;
  out->calls = (p.flags & SHARPI_PARSE_CALLS) != 0;
  out->constrained = (p.flags & SHARPI_PARSE_CONSTRAINED) != 0;
  return Status::ok();
}

}  // namespace

void sharpi_chat_params_init(sharpi_chat_params* p, size_t size) SHARPI_NOEXCEPT {
  const sharpi_chat_params defaults = default_params();
  api::init_struct(kParams, &defaults, p, size);
}

sharpi_status sharpi_chat_format(const sharpi_model* model, const sharpi_chat_params* params,
                                 char* out, size_t cap, size_t* out_len,
                                 sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::check_out(out, cap, out_len));
    sharpi::jinja::MarkedText text;
    SHARPI_TRY(render(model, params, &text));
    return api::copy_text(text.bytes(), out, cap, out_len);
  });
}

sharpi_status sharpi_chat_tokenize(const sharpi_model* model, const sharpi_chat_params* params,
                                   int32_t* out, uint32_t cap, uint32_t* out_n,
                                   sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::check_out(out, cap, out_n));
    sharpi::jinja::MarkedText text;
    SHARPI_TRY(render(model, params, &text));
    std::vector<int32_t> tokens;
    SHARPI_TRY(model->text->tokenizer()->encode_marked(text, &tokens));
    return api::copy_array(std::span<const int32_t>(tokens), out, cap, out_n);
  });
}

void sharpi_parse_params_init(sharpi_parse_params* p, size_t size) SHARPI_NOEXCEPT {
  const sharpi_parse_params defaults = default_parse_params();
  api::init_struct(kParseParams, &defaults, p, size);
}

sharpi_status sharpi_chat_parse(const sharpi_parse_params* params, const char* text, size_t len,
                                sharpi_chat_parts* parts, char* out, size_t cap, size_t* out_len,
                                sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    sharpi::ParseRequest request;
    SHARPI_TRY(read_parse_params(params, &request));
    SHARPI_TRY(api::require_array(text, len, "text"));
    SHARPI_TRY(api::check_out_struct(parts, 40, "sharpi_chat_parts"));
    SHARPI_TRY(api::check_out(out, cap, out_len));
    sharpi::ParsedChat parsed;
    SHARPI_TRY(sharpi::parse_chat(request, {text, len}, &parsed));
    sharpi_chat_parts p{};
    p.open = static_cast<sharpi_part>(parsed.open);
    p.n_tool_calls = parsed.n_tool_calls;
    p.reasoning_len = parsed.reasoning.size();
    p.content_len = parsed.content.size();
    p.tool_calls_len = parsed.tool_calls.size();
    api::write_out(p, parts);
    return api::copy_text(parsed.reasoning + parsed.content + parsed.tool_calls, out, cap, out_len);
  });
}
