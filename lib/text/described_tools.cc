// SPDX-License-Identifier: MIT
#include "text/described_tools.h"

#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace sharpi {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

constexpr std::string_view kBefore =
    "You may call functions. Each line is one of them, as JSON:\n<tools>\n";
constexpr std::string_view kAfter =
    "</tools>\nTo call one, answer with its name and its arguments, as JSON between these marks:\n"
    "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {}}\n</tool_call>\n"
    "What it gives comes back between <tool_response> and </tool_response>.";
constexpr std::string_view kAnswerOpen = "<tool_response>\n", kAnswerClose = "\n</tool_response>";

Status write(const Value& value, Heap* heap, std::string* out) {
  jinja::MarkedText text;
  SHARPI_TRY(jinja::write_json(value, {}, heap, &text));
  out->append(text.bytes());
  return Status::ok();
}

Status parse_list(std::string_view json, const char* what, Heap* heap, Value* out) {
  SHARPI_TRY(jinja::parse_json(json, what, heap, out));
  if (out->is(Kind::kList)) return Status::ok();
  return Status::error(Code::kInvalidArgument, "%s is not a JSON array", what);
}

Status describe(std::string_view tools, std::string* out) {
  Heap heap(jinja::Limits{}.max_bytes);
  Value list;
  SHARPI_TRY(parse_list(tools, "tools", &heap, &list));
  out->append(kBefore);
  for (const Value& tool : list.list->items) {
    const Value* inner = tool.is(Kind::kDict) ? tool.dict->find("function") : nullptr;
    SHARPI_TRY(write(inner != nullptr ? *inner : tool, &heap, out));
    out->push_back('\n');
  }
  out->append(kAfter);
  return Status::ok();
}

/// Calls in the form that the description asks for.
Status write_calls(std::string_view calls, std::string* out) {
  Heap heap(jinja::Limits{}.max_bytes);
  Value list;
  SHARPI_TRY(parse_list(calls, "tool_calls", &heap, &list));
  for (const Value& call : list.list->items) {
    const Value* inner = call.is(Kind::kDict) ? call.dict->find("function") : nullptr;
    const Value& function = inner != nullptr ? *inner : call;
    if (!out->empty()) out->push_back('\n');
    out->append("<tool_call>\n");
    SHARPI_TRY(write(function, &heap, out));
    out->append("\n</tool_call>");
  }
  return Status::ok();
}

}  // namespace

Status DescribedTools::add_message(const ChatMessage& m, bool calls, bool* follows_answer) {
  const bool answers = calls && m.role == "tool";
  const bool joins = answers && *follows_answer;
  *follows_answer = answers;
  ChatMessage changed = m;
  if (answers) {
    std::string text(joins ? messages_.back().content : std::string_view());
    if (joins) text.push_back('\n');
    text.append(kAnswerOpen).append(m.content).append(kAnswerClose);
    if (joins) messages_.pop_back();
    changed = {"user", keep(std::move(text))};
  } else if (calls && m.tool_calls.data() != nullptr) {
    std::string text(m.content);
    SHARPI_TRY(write_calls(m.tool_calls, &text));
    changed.content = keep(std::move(text));
    changed.tool_calls = {};
  }
  messages_.push_back(changed);
  return Status::ok();
}

void DescribedTools::add_description(std::string text, Place place) {
  const bool is_system = !messages_.empty() && messages_.front().role == "system";
  const bool joins = !messages_.empty() && messages_.front().parts.data() == nullptr &&
                     (is_system || place == Place::kFirstMessage);
  if (joins) {
    ChatMessage& first = messages_.front();
    if (is_system) {
      text.insert(0, std::string(first.content) + "\n\n");
    } else {
      text.append("\n\n").append(first.content);
    }
    first.content = keep(std::move(text));
  } else {
    messages_.insert(messages_.begin(), ChatMessage{"system", keep(std::move(text))});
  }
}

Status DescribedTools::make(const ChatRequest& request, Place place, bool calls,
                            DescribedTools* out) {
  bool follows_answer = false;
  for (const ChatMessage& m : request.messages) {
    SHARPI_TRY(out->add_message(m, calls, &follows_answer));
  }
  if (place == Place::kNowhere) return Status::ok();
  std::string text;
  SHARPI_TRY(describe(request.tools, &text));
  out->add_description(std::move(text), place);
  return Status::ok();
}

}  // namespace sharpi
