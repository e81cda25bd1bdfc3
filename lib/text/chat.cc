// SPDX-License-Identifier: MIT
#include "text/chat.h"

#include <algorithm>
#include <optional>

#include "text/utf8.h"

namespace sharpi {
namespace {

constexpr std::string_view kOpenThink = "<think>\n";
constexpr std::string_view kCloseThink = "</think>";
constexpr std::string_view kEmptyThink = "<think>\n\n</think>\n\n";

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// The template with the escape \n inside its string literals as the newline it means, because
/// some files store literals with real newlines.
std::string with_newlines(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '\\' && i + 1 < text.size() && text[i + 1] == 'n';
    out.push_back(escape ? '\n' : text[i]);
    i += escape ? 1 : 0;
  }
  return out;
}

/// What Python's str.strip() removes.
bool is_strippable(uint32_t cp) {
  return (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
         cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
         cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

std::string_view strip(std::string_view text) {
  size_t begin = 0, end = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t n = utf8_character(text, at);
    const bool space = n != 0 && is_strippable(utf8_code_point(text, at, n));
    const size_t next = at + std::max(n, 1u);
    if (!space && !inside) begin = at;
    if (!space) inside = true, end = next;
    at = next;
  }
  return inside ? text.substr(begin, end - begin) : std::string_view();
}

std::string_view strip_newlines_left(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

std::string_view strip_newlines_right(std::string_view text) {
  const size_t last = text.find_last_not_of('\n');
  return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
}

Status check_roles(std::span<const ChatMessage> messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string_view role = messages[i].role;
    if (role == "system" || role == "user" || role == "assistant") continue;
    return Status::error(Code::kInvalidArgument,
                         "message %zu has role \"%.*s\", which is not system, user or assistant", i,
                         static_cast<int>(std::min<size_t>(role.size(), 32)), role.data());
  }
  return Status::ok();
}

Status misplaced_system(size_t i) {
  return Status::error(Code::kInvalidArgument,
                       "message %zu: the template takes a system message "
                       "in first place only",
                       i);
}

// ---- ChatML ------------------------------------------------------------------------------------

struct ChatMlStyle {
  bool bos;               // prints bos_token
  bool history;           // drops the thoughts of earlier turns
  bool think_every_turn;  // shows a block, even empty, for each answer after the last question
  bool strip_content;     // Qwen3.5: contents are stripped, and a system message must come first
  bool needs_question;    // refuses a conversation without a user message
  bool closes_think, opens_think;  // in the generation prompt
  explicit ChatMlStyle(std::string_view t)
      : bos(has(t, "bos_token")),
        history(has(t, "last_query_index")),
        think_every_turn(!has(t, "loop.last or (not loop.last and")),
        strip_content(has(t, "render_content(") && (has(t, ")|trim") || has(t, ") | trim"))),
        needs_question(has(t, "No user query found")) {
    const size_t at = t.rfind("add_generation_prompt");
    const std::string_view tail = at == std::string_view::npos ? t : t.substr(at);
    closes_think = has(tail, kEmptyThink);
    opens_think = has(tail, "<think>\n'") || has(tail, "<think>\n\"");
  }
};

struct Thought {
  std::string_view reasoning, answer;
};

/// An assistant content that carries its own <think> block, taken apart.
Thought split_thought(std::string_view content) {
  const size_t first = content.find(kCloseThink);
  if (first == std::string_view::npos) return {{}, content};
  std::string_view reasoning = strip_newlines_right(content.substr(0, first));
  const size_t open = reasoning.rfind("<think>");
  if (open != std::string_view::npos) reasoning.remove_prefix(open + 7);
  const size_t last = content.rfind(kCloseThink);
  return {strip_newlines_left(reasoning),
          strip_newlines_left(content.substr(last + kCloseThink.size()))};
}

/// Index of the last user message that is a question rather than a tool's answer; none if no
/// message is.
std::optional<size_t> last_question(const ChatMlStyle& style,
                                    std::span<const ChatMessage> messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role != "user") continue;
    const std::string_view text =
        style.strip_content ? strip(messages[i].content) : messages[i].content;
    if (!text.starts_with("<tool_response>") || !text.ends_with("</tool_response>")) return i;
  }
  return std::nullopt;
}

void append_chatml_answer(const ChatMlStyle& style, std::string_view content, bool after_question,
                          bool last, std::string* out) {
  if (!style.history) {
    out->append(content);
    return;
  }
  Thought thought = split_thought(content);
  const bool show =
      after_question && (style.think_every_turn || last || !thought.reasoning.empty());
  if (show) {
    const std::string_view reasoning =
        style.strip_content ? strip(thought.reasoning) : strip_newlines_right(thought.reasoning);
    out->append(kOpenThink).append(reasoning).append("\n</think>\n\n");
    if (!style.strip_content) thought.answer = strip_newlines_left(thought.answer);
  }
  out->append(thought.answer);
}

Result<std::string> render_chatml(std::string_view jinja, std::span<const ChatMessage> messages,
                                  const ChatOptions& options) {
  const ChatMlStyle style(jinja);
  std::string out(style.bos ? options.bos_text : std::string_view());
  const std::optional<size_t> question = last_question(style, messages);
  if (!question && style.needs_question) {
    return Status::error(Code::kInvalidArgument, "the template wants a user message");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& m = messages[i];
    if (style.strip_content && m.role == "system" && i > 0) return misplaced_system(i);
    const std::string_view content = style.strip_content ? strip(m.content) : m.content;
    out.append("<|im_start|>").append(m.role).append("\n");
    if (m.role == "assistant") {
      append_chatml_answer(style, content, question && i > *question, i + 1 == messages.size(),
                           &out);
    } else {
      out.append(content);
    }
    out.append("<|im_end|>\n");
  }
  if (!options.add_generation_prompt) return out;
  out.append("<|im_start|>assistant\n");
  // A template that only opens the block belongs to a model that always thinks.
  if (!options.thinking && style.closes_think)
    out.append(kEmptyThink);
  else if (style.opens_think)
    out.append(kOpenThink);
  return out;
}

// ---- Gemma -------------------------------------------------------------------------------------

/// Gemma 4's answers without their <|channel>...<channel|> parts.
std::string without_channels(std::string_view text) {
  constexpr std::string_view kOpen = "<|channel>", kClose = "<channel|>";
  std::string out;
  while (true) {
    const size_t close = text.find(kClose);
    const std::string_view part = text.substr(0, close);
    out.append(part.substr(0, part.find(kOpen)));
    if (close == std::string_view::npos) break;
    text.remove_prefix(close + kClose.size());
  }
  return std::string(strip(out));
}

Result<std::string> render_gemma4(std::string_view jinja, std::span<const ChatMessage> messages,
                                  const ChatOptions& options) {
  const bool trims = has(jinja, "| trim") || has(jinja, "|trim");
  const bool can_think = has(jinja, "<|think|>");
  const bool thinks = can_think && options.thinking;
  std::string out;
  if (has(jinja, "bos_token")) out = options.bos_text.empty() ? "<bos>" : options.bos_text;
  size_t first = 0;
  if (thinks) {
    out.append("<|turn>system\n").append(has(jinja, "<|think|>\n") ? "<|think|>\n" : "<|think|>");
    if (!messages.empty() && messages[0].role == "system") {
      out.append(trims ? strip(messages[0].content) : messages[0].content);
      first = 1;
    }
    out.append("<turn|>\n");
  }
  for (const ChatMessage& m : messages.subspan(first)) {
    const bool answer = m.role == "assistant";
    out.append("<|turn>").append(answer ? "model" : m.role).append("\n");
    if (answer && has(jinja, "strip_thinking"))
      out.append(without_channels(m.content));
    else
      out.append(trims ? strip(m.content) : m.content);
    out.append("<turn|>\n");
  }
  if (!options.add_generation_prompt) return out;
  out.append("<|turn>model\n");
  const size_t at = jinja.rfind("add_generation_prompt");
  const std::string_view tail = at == std::string_view::npos ? jinja : jinja.substr(at);
  constexpr std::string_view kNoThought = "<|channel>thought\n<channel|>";
  if (!options.thinking && has(tail, kNoThought)) out.append(kNoThought);
  return out;
}

/// Gemma 2 and 3: strictly alternating turns; Gemma 3 puts the system message into the first.
Result<std::string> render_gemma3(std::string_view jinja, std::span<const ChatMessage> messages,
                                  const ChatOptions& options) {
  std::string out;
  if (has(jinja, "bos_token")) out = options.bos_text.empty() ? "<bos>" : options.bos_text;
  std::string prefix;
  size_t first = 0;
  if (!messages.empty() && messages[0].role == "system") {
    if (!has(jinja, "first_user_prefix")) {
      return Status::error(Code::kInvalidArgument, "the template takes no system message");
    }
    prefix = std::string(messages[0].content) + "\n\n";
    first = 1;
  }
  for (size_t i = first; i < messages.size(); ++i) {
    const ChatMessage& m = messages[i];
    const bool user_turn = (i - first) % 2 == 0;
    if (m.role != (user_turn ? "user" : "assistant")) {
      return Status::error(Code::kInvalidArgument,
                           "message %zu is %.*s: the template wants user and assistant in turn", i,
                           static_cast<int>(m.role.size()), m.role.data());
    }
    out.append("<start_of_turn>").append(user_turn ? "user" : "model").append("\n");
    if (i == first) out.append(prefix);
    out.append(strip(m.content)).append("<end_of_turn>\n");
  }
  if (options.add_generation_prompt) out.append("<start_of_turn>model\n");
  return out;
}

// ---- OLMoE -------------------------------------------------------------------------------------

std::string render_olmoe(std::string_view jinja, std::span<const ChatMessage> messages,
                         const ChatOptions& options) {
  constexpr std::string_view kEndOfText = "<|endoftext|>";  // both BOS and EOS of OLMoE
  const std::string_view bos = options.bos_text.empty() ? kEndOfText : options.bos_text;
  const std::string_view eos = options.eos_text.empty() ? kEndOfText : options.eos_text;
  const bool open_end = has(jinja, "not loop.last");  // no newline after a closing answer
  std::string out;
  if (has(jinja, "bos_token"))
    out = bos;
  else if (strip(jinja).starts_with("{{ eos_token }}"))
    out = eos;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& m = messages[i];
    out.append("<|").append(m.role).append("|>\n").append(m.content);
    const bool answer = m.role == "assistant";
    if (answer) out.append(eos);
    if (!answer || !open_end || i + 1 < messages.size()) out.append("\n");
  }
  if (options.add_generation_prompt) out.append("<|assistant|>\n");
  return out;
}

/// Other families use the same role marks but end every message with a token of their own.
bool is_olmoe(std::string_view jinja) {
  const size_t user = jinja.find("<|user|>\n");
  if (user == std::string_view::npos || !has(jinja, "<|assistant|>\n")) return false;
  const std::string_view rest = jinja.substr(user);
  const std::string_view statement = rest.substr(0, rest.find("}}"));
  return !has(statement, "eos_token") && !has(statement, "<|end");
}

}  // namespace

ChatFormat detect_chat_format(std::string_view jinja_template) {
  const std::string jinja = with_newlines(jinja_template);
  if (has(jinja, "<|im_start|>") && has(jinja, "<|im_end|>")) return ChatFormat::kChatMl;
  if (has(jinja, "<|turn>") && has(jinja, "<turn|>")) return ChatFormat::kGemma;
  if (has(jinja, "<start_of_turn>") && has(jinja, "<end_of_turn>")) return ChatFormat::kGemma;
  return is_olmoe(jinja) ? ChatFormat::kOlmoe : ChatFormat::kUnknown;
}

const char* chat_format_name(ChatFormat format) {
  switch (format) {
    case ChatFormat::kChatMl:
      return "chatml";
    case ChatFormat::kGemma:
      return "gemma";
    case ChatFormat::kOlmoe:
      return "olmoe";
    case ChatFormat::kUnknown:
      break;
  }
  return "unknown";
}

Result<std::string> render_chat(ChatFormat format, std::string_view jinja_template,
                                std::span<const ChatMessage> messages, const ChatOptions& options) {
  SHARPI_TRY(check_roles(messages));
  const std::string jinja = with_newlines(jinja_template);
  switch (format) {
    case ChatFormat::kChatMl:
      return render_chatml(jinja, messages, options);
    case ChatFormat::kGemma:
      return has(jinja, "<start_of_turn>") ? render_gemma3(jinja, messages, options)
                                           : render_gemma4(jinja, messages, options);
    case ChatFormat::kOlmoe:
      return render_olmoe(jinja, messages, options);
    case ChatFormat::kUnknown:
      break;
  }
  return Status::error(Code::kUnsupported,
                       "the chat template is of no known format (chatml, gemma, olmoe)");
}

}  // namespace sharpi
