// SPDX-License-Identifier: MIT
#include "reply.h"

#include <algorithm>

#include "sampling_request.h"
#include "sse.h"

namespace server {
namespace {

constexpr size_t kPromptEnd = 64;  // tokens; marks that open a block are at the very end

// What sharpi_chat_parse() leaves out at the ends of a part.
constexpr char kBlanks[] = " \t\r\n";
// Every mark begins with one of these.
constexpr char kMarks[] = "<[";

// Where the JSON value that begins at `at` ends. The text is the library's, and so well formed.
size_t end_of_value(const std::string& text, size_t at) {
  int depth = 0;
  for (bool quoted = false; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted && c == '\\') {
      ++at;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '{' || c == '[')) {
      ++depth;
    } else if (!quoted && (c == '}' || c == ']')) {
      if (depth-- == 0) break;
    } else if (!quoted && c == ',' && depth == 0) {
      break;
    }
  }
  return at;
}

// A call of the library's list. Arguments stay as they are spelled where they have numbers that a
// double does not hold.
ToolCall read_call(const std::string& text) {
  static const std::string kName = "\"name\": ", kArguments = "\"arguments\": ";
  ToolCall out{new_id("call_"), "", ""};
  const size_t name = text.find(kName) + kName.size(), name_end = end_of_value(text, name);
  const json name_value = json::parse(text.substr(name, name_end - name), nullptr, false);
  if (name_value.is_string()) out.name = name_value.get<std::string>();
  const size_t begin = text.find(kArguments, name_end) + kArguments.size();
  out.arguments = text.substr(begin, end_of_value(text, begin) - begin);
  const json arguments = json::parse(out.arguments, nullptr, false);
  if (arguments.is_string()) out.arguments = arguments.get<std::string>();
  if (!arguments.is_discarded() && !arguments.is_string()) out.arguments = dump(arguments);
  return out;
}

std::vector<ToolCall> read_calls(const std::string& text, size_t from) {
  std::vector<ToolCall> out;
  size_t n = 0;
  for (size_t at = 1; at < text.size() && text[at] != ']'; ++n) {
    const size_t end = end_of_value(text, at);
    if (n >= from) out.push_back(read_call(text.substr(at, end - at)));
    at = text.find_first_not_of(", ", end);
  }
  return out;
}

}  // namespace

std::string prompt_end(const Engine& engine, const Tokens& prompt) {
  const size_t n = std::min(prompt.size(), kPromptEnd);
  return engine.text_of(prompt.data() + prompt.size() - n, n, SHARPI_DETOKENIZE_SPECIAL);
}

Reply::Reply(const Engine& engine, const Tokens& prompt, Expected expected)
    : Reply(prompt_end(engine, prompt), std::move(expected)) {}

// Content that has to match a schema is no mark any more once it has begun.
bool Reply::may_mark(const std::string& text) const {
  if (expected_.constrained && !content_.empty()) return false;
  return text.find_first_of(kMarks) != std::string::npos;
}

Delta Reply::push(const std::string& text) {
  if (text.empty()) return {};
  text_ += text;
  const bool marks = may_mark(text);
  if (marks) plain_ = Plain::kNo;
  if (plain_ != Plain::kNo) return add_plain(text);
  return marks ? parse(SHARPI_PARSE_PARTIAL) : parse_piece(text);
}

json Reply::schema_check() const {
  if (expected_.schema.empty() || content_.empty()) return nullptr;
  sharpi_error err = SHARPI_ERROR_INIT;
  const sharpi_status status = sharpi_schema_check(expected_.schema.data(), expected_.schema.size(),
                                                   content_.data(), content_.size(), &err);
  if (status == SHARPI_OK) return {{"valid", true}, {"error", nullptr}};
  const bool is_known = status == SHARPI_E_MISMATCH || status == SHARPI_E_INVALID_ARGUMENT;
  return {{"valid", is_known ? json(false) : json(nullptr)}, {"error", err.text}};
}

Delta Reply::finish() {
  return parse(0);
}

// Parses all of the text again, which is needed as long as something of it may be held back. Where
// a piece without a mark came out as it went in, nothing is, and until the next mark text only adds
// to the part that it stands in.
Delta Reply::parse_piece(const std::string& text) {
  Delta delta = parse(SHARPI_PARSE_PARTIAL);
  const bool ends_blank = std::string_view(kBlanks).find(text.back()) != std::string_view::npos;
  if (ends_blank || !delta.calls.empty()) return delta;
  blanks_.clear();
  if (open_ == SHARPI_PART_REASONING && delta.reasoning == text && delta.content.empty()) {
    plain_ = Plain::kReasoning;
  } else if (open_ == SHARPI_PART_CONTENT && delta.content == text && delta.reasoning.empty()) {
    plain_ = Plain::kContent;
  }
  return delta;
}

// Blanks at the end wait for what follows: at the end of a part they are left out.
Delta Reply::add_plain(const std::string& text) {
  Delta delta;
  const size_t last = text.find_last_not_of(kBlanks);
  if (last == std::string::npos) {
    blanks_ += text;
    return delta;
  }
  const bool thinks = plain_ == Plain::kReasoning;
  std::string& added = thinks ? delta.reasoning : delta.content;
  added = std::move(blanks_);
  added.append(text, 0, last + 1);
  blanks_ = text.substr(last + 1);
  (thinks ? reasoning_ : content_) += added;
  return delta;
}

Delta Reply::parse(uint32_t flags) {
  ++n_parses_;
  sharpi_parse_params params;
  sharpi_parse_params_init(&params, sizeof params);
  params.flags = flags | SHARPI_PARSE_REASONING;
  if (!expected_.tools.empty()) {
    params.flags |= SHARPI_PARSE_CALLS;
    params.tools = expected_.tools.data();
    params.tools_len = expected_.tools.size();
  }
  if (expected_.constrained) params.flags |= SHARPI_PARSE_CONSTRAINED;
  params.prompt = prompt_end_.data();
  params.prompt_len = prompt_end_.size();
  sharpi_chat_parts parts{};
  parts.struct_size = sizeof parts;
  const std::string out =
      sized<std::string, size_t>([&](char* to, size_t cap, size_t* len, sharpi_error* err) {
        return sharpi_chat_parse(&params, text_.data(), text_.size(), &parts, to, cap, len, err);
      });
  open_ = parts.open;
  const std::string reasoning = out.substr(0, parts.reasoning_len);
  const std::string content = out.substr(parts.reasoning_len, parts.content_len);
  Delta delta;
  if (reasoning.size() > reasoning_.size()) delta.reasoning = reasoning.substr(reasoning_.size());
  if (content.size() > content_.size()) delta.content = content.substr(content_.size());
  reasoning_ += delta.reasoning;
  content_ += delta.content;
  if (parts.n_tool_calls > calls_.size()) {
    delta.calls = read_calls(out.substr(parts.reasoning_len + parts.content_len), calls_.size());
    calls_.insert(calls_.end(), delta.calls.begin(), delta.calls.end());
  }
  return delta;
}

json logprob_json(const Engine& engine, const std::vector<sharpi_logprob>& list) {
  const auto one = [&](const sharpi_logprob& entry) {
    const std::string bytes = engine.token_bytes(entry.token);
    json numbers = json::array();
    for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
    return json{{"token", bytes},
                {"logprob", std::max(-9999.0, static_cast<double>(entry.logprob))},
                {"bytes", numbers}};
  };
  json out = one(list.front());
  out["top_logprobs"] = json::array();
  for (size_t i = 1; i < list.size(); ++i) out["top_logprobs"].push_back(one(list[i]));
  return out;
}

const char* finish_reason(const Outcome& outcome, bool has_calls) {
  if (outcome.finish == Finish::kLength) return "length";
  return has_calls ? "tool_calls" : "stop";
}

json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

}  // namespace server
