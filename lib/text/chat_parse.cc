// SPDX-License-Identifier: MIT
#include "text/chat_parse.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "text/chat_calls.h"

namespace sharpi {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

/// What ends the part that a mark begins.
enum class Ends : uint8_t {
  kMark,     // another mark
  kCall,     // the end of the JSON that follows
  kMessage,  // a mark of gpt-oss, whose parts begin with a header
  kItself,   // nothing: the mark stands alone and is dropped
};

struct Marks {
  std::string_view open, close;
  ChatPart part;
  Ends ends = Ends::kMark;
};

constexpr Marks kMarks[] = {
    {"<think>", "</think>", ChatPart::kReasoning},                // Qwen, DeepSeek, GLM, Nemotron
    {"<|channel>thought\n", "<channel|>", ChatPart::kReasoning},  // Gemma 4
    {"[THINK]", "[/THINK]", ChatPart::kReasoning},                // Mistral
    {"<seed:think>", "</seed:think>", ChatPart::kReasoning},      // Seed-OSS
    {"<tool_call>", "</tool_call>", ChatPart::kToolCall},         // Hermes, Qwen, GLM
    {"<|tool_call_start|>", "<|tool_call_end|>", ChatPart::kToolCall},
    {"<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", ChatPart::kToolCall},  // DeepSeek
    {"<｜tool▁calls▁begin｜>", "", ChatPart::kContent, Ends::kItself},
    {"<｜tool▁calls▁end｜>", "", ChatPart::kContent, Ends::kItself},
    {"[TOOL_CALLS]", "", ChatPart::kToolCall, Ends::kCall},    // Mistral
    {"<|python_tag|>", "", ChatPart::kToolCall, Ends::kCall},  // Llama 3
    {"<|start|>", "", ChatPart::kContent, Ends::kMessage},     // gpt-oss
    {"<|channel|>", "", ChatPart::kContent, Ends::kMessage},
};
constexpr std::string_view kTurn = "<|start|>", kChannel = "<|channel|>", kBody = "<|message|>";
/// Headers are short and of one line: what is longer is text about such marks.
constexpr size_t kMaxHeader = 256;
/// What ends a message of gpt-oss; the last two begin another one and are read again.
constexpr std::string_view kMessageEnds[] = {"<|end|>", "<|return|>", "<|call|>", kTurn, kChannel};

/// Where a mark stands next. Questions go forward through the text, so each byte is looked at once.
class NextPlace {
 public:
  size_t of(std::string_view mark, std::string_view text, size_t at) {
    if (at < asked_ || at > found_) {
      found_ = std::min(text.find(mark, at), text.size());
      asked_ = at;
    }
    return found_;
  }

 private:
  size_t asked_ = SIZE_MAX, found_ = 0;
};

/// Bytes at the end of `text` that are a beginning of `mark`, but not all of it.
size_t begun(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

/// The reasoning block that the prompt has opened and not closed, or null.
const Marks* opened_by(std::string_view prompt) {
  for (const Marks& m : kMarks) {
    if (m.part == ChatPart::kReasoning && strip_blanks(prompt).ends_with(strip_blanks(m.open))) {
      return &m;
    }
  }
  return nullptr;
}

/// The message of gpt-oss that the prompt has begun: "<|start|>assistant" and what follows it.
std::string_view begun_message(std::string_view prompt) {
  const size_t at = prompt.rfind(kTurn);
  if (at == prompt.npos) return {};
  const std::string_view tail = prompt.substr(at);
  constexpr std::string_view kAnswer = "<|start|>assistant";
  if (!tail.starts_with(kAnswer)) return {};
  const std::string_view more = tail.substr(kAnswer.size());
  if (!more.empty() && !more.starts_with(kChannel) && !more.starts_with(" to=")) return {};
  for (const std::string_view end : {"<|end|>", "<|return|>", "<|call|>"}) {
    if (tail.find(end) != tail.npos) return {};
  }
  return tail;
}

/// Whom a header of gpt-oss names: "assistant to=functions.f<|channel|>commentary
/// <|constrain|>json".
std::string_view recipient_of(std::string_view header) {
  const size_t at = header.find("to=");
  if (at == header.npos) return {};
  std::string_view name = header.substr(at + 3);
  name = name.substr(0, name.find_first_of(" \t\r\n<"));
  if (name.starts_with("functions.")) name.remove_prefix(std::string_view("functions.").size());
  return name;
}

class Parser {
 public:
  /// The first n_read bytes of the text are the prompt's.
  Parser(std::string_view text, size_t n_read, bool partial, ParsedChat* out)
      : text_(text), n_read_(n_read), partial_(partial), out_(*out) {}

  Status run(const Marks* marks) {
    if (marks != nullptr) {
      part(*marks);
      from_ = at_;
    }
    while (at_ < text_.size()) {
      if (marks = content(); marks == nullptr) continue;
      const size_t begin = at_;
      at_ += marks->open.size();
      if (take(*marks, begin)) {
        from_ = at_;
      } else {  // content as it was written
        at_ = std::max(begin, n_read_);
        n_plain_ = begin + marks->open.size() - std::min(at_, begin + marks->open.size());
      }
    }
    flush(at_);
    return finish();
  }

 private:
  /// Parts of a kind follow each other with a newline between them; blanks wait for what follows.
  static void append(std::string_view part, std::string* out) {
    part = strip_blanks(part);
    if (part.empty()) return;
    if (!out->empty()) out->push_back('\n');
    out->append(part);
  }
  std::string_view rest() const { return text_.substr(at_); }

  /// The text from from_ on is content up to here.
  void flush(size_t end) {
    from_ = std::max(from_, n_read_);
    if (end > from_) append(text_.substr(from_, end - from_), &out_.content);
    from_ = std::max(from_, end);
  }

  /// Goes on to the next mark and returns it; null: there is none, or a call without marks was.
  const Marks* content() {
    if (out_.content.empty() && from_ == at_ && n_plain_ == 0 && bare_call()) return nullptr;
    const Marks* next = nullptr;
    size_t begin = text_.size(), held = 0;
    for (size_t i = 0; i < std::size(kMarks); ++i) {
      const size_t found = opens_[i].of(kMarks[i].open, text_, at_ + n_plain_);
      if (found >= begin) continue;
      begin = found;
      next = &kMarks[i];
    }
    if (next == nullptr) {
      for (const Marks& m : kMarks) held = std::max(held, begun(rest().substr(n_plain_), m.open));
    }
    n_plain_ = 0;
    if (next == nullptr && partial_) {
      flush(begin - held);
      from_ = text_.size();
    }
    at_ = begin;
    return next;
  }

  /// A call without marks, where nothing but calls came before. True: it is read, or may be one.
  bool bare_call() {
    size_t used = 0;
    const CallState state = read_bare(rest(), &heap_, &calls_, &used);
    if (state == CallState::kComplete) {
      at_ = std::min(text_.find_first_not_of(" \t\r\n;", at_ + used), text_.size());
    } else if (state == CallState::kIncomplete && partial_) {
      if (strip_blanks(rest()).size() > 1) out_.open = ChatPart::kToolCall;
      at_ = text_.size();
    } else {
      return false;
    }
    from_ = at_;
    return true;
  }

  /// What the mark at `begin` begins. False: nothing, its text is content.
  bool take(const Marks& marks, size_t begin) {
    switch (marks.ends) {
      case Ends::kMark:
        flush(begin);
        part(marks);
        return true;
      case Ends::kCall:
        return calls(marks, begin);
      case Ends::kMessage:
        return message(begin);
      case Ends::kItself:
        flush(begin);
        return true;
    }
    return true;
  }

  /// What stands between two marks.
  void part(const Marks& marks) {
    const size_t close = text_.find(marks.close, at_);
    const bool closed = close != text_.npos;
    const std::string_view inside = text_.substr(at_, closed ? close - at_ : text_.npos);
    if (!closed) out_.open = marks.part;
    if (marks.part == ChatPart::kReasoning) {
      const size_t held = closed || !partial_ ? 0 : begun(inside, marks.close);
      append(inside.substr(0, inside.size() - held), &out_.reasoning);
    } else if (closed || !partial_) {
      call(marks, inside, closed);
    }
    at_ = closed ? close + marks.close.size() : text_.size();
  }

  void call(const Marks& marks, std::string_view inside, bool closed) {
    if (ToolCall c; read_call(inside, &heap_, &c)) {
      calls_.push_back(c);
      return;
    }
    std::string whole(marks.open);
    whole.append(inside).append(closed ? marks.close : std::string_view());
    append(whole, &out_.content);
  }

  /// Calls that end where their JSON does.
  bool calls(const Marks& marks, size_t begin) {
    size_t used = 0;
    const bool mistral = marks.open == "[TOOL_CALLS]";
    const CallState state = mistral ? read_mistral(rest(), &heap_, &calls_, &used)
                                    : read_bare(rest(), &heap_, &calls_, &used);
    if (state == CallState::kBroken || (state == CallState::kIncomplete && !partial_)) return false;
    flush(begin);
    if (state == CallState::kIncomplete) {
      out_.open = ChatPart::kToolCall;
      used = text_.size() - at_;
    }
    at_ += used;
    return true;
  }

  /// A message of gpt-oss: its header says whether it is thought, said or a call.
  bool message(size_t begin) {
    const std::string_view near = text_.substr(begin, kMaxHeader + kBody.size());
    const size_t found_body = near.find(kBody);
    const size_t body = found_body == near.npos ? text_.npos : begin + found_body;
    const size_t line = begin + std::min(near.find('\n'), near.size());
    if (std::min(line, body) - begin > kMaxHeader) return false;
    if (body > line) {
      if (!partial_ || line < text_.size()) return false;
      flush(begin);
      at_ = text_.size();
      return true;
    }
    flush(begin);
    at_ = body + kBody.size();
    size_t end = text_.size(), end_size = 0, held = 0;
    for (size_t i = 0; i < std::size(kMessageEnds); ++i) {
      const std::string_view mark = kMessageEnds[i];
      const size_t found = ends_[i].of(mark, text_, at_);
      held = std::max(held, begun(rest(), mark));
      if (found >= end) continue;
      end = found;
      end_size = mark == kTurn || mark == kChannel ? 0 : mark.size();
    }
    const bool closed = end < text_.size();
    const std::string_view inside = text_.substr(at_, end - at_ - (closed || !partial_ ? 0 : held));
    const size_t first = std::max(begin, n_read_);
    at_ = end + end_size;
    add_message(text_.substr(begin, body - begin), inside, closed,
                text_.substr(std::min(first, at_), at_ - std::min(first, at_)));
    return true;
  }

  void add_message(std::string_view header, std::string_view inside, bool closed,
                   std::string_view whole) {
    const std::string_view name = recipient_of(header);
    const bool thought = header.find("<|channel|>analysis") != header.npos;
    if (!name.empty()) {
      if (!closed) out_.open = ChatPart::kToolCall;
      if (!closed && partial_) return;
      ToolCall c{heap_.text(name, true), {}, Value::none()};
      if (read_arguments(inside, &heap_, &c.arguments))
        calls_.push_back(c);
      else
        append(whole, &out_.content);
    } else if (thought) {
      if (!closed) out_.open = ChatPart::kReasoning;
      append(inside, &out_.reasoning);
    } else {
      append(inside, &out_.content);
    }
  }

  Value entry_of(const ToolCall& call) {
    const auto key = [&](std::string_view text) { return heap_.text(text, false); };
    jinja::Dict *function = heap_.dict(), *entry = heap_.dict();
    function->set(key("name"), call.name);
    function->set(key("arguments"), call.arguments);
    entry->set(key("type"), key("function"));
    entry->set(key("function"), Value::of(Kind::kDict, function));
    if (!call.id.is(Kind::kNone)) entry->set(key("id"), call.id);
    return Value::of(Kind::kDict, entry);
  }

  Status finish() {
    out_.n_tool_calls = static_cast<uint32_t>(calls_.size());
    if (calls_.empty()) return Status::ok();
    jinja::List* list = heap_.list();
    for (const ToolCall& call : calls_) list->items.push_back(entry_of(call));
    jinja::MarkedText json;
    SHARPI_TRY(jinja::write_json(Value::of(Kind::kList, list), {}, &heap_, &json));
    out_.tool_calls = json.take();
    return Status::ok();
  }

  std::string_view text_;
  size_t n_read_;
  bool partial_;
  ParsedChat& out_;
  size_t at_ = 0;       // what comes before is read
  size_t from_ = 0;     // where content begins that is not in its part yet
  size_t n_plain_ = 0;  // bytes from at_ on in which no mark begins
  NextPlace opens_[std::size(kMarks)], ends_[std::size(kMessageEnds)];
  Heap heap_{uint64_t{256} << 20};
  std::vector<ToolCall> calls_;
};

}  // namespace

Status parse_chat(std::string_view prompt, std::string_view text, bool partial, ParsedChat* out) {
  *out = {};
  const std::string_view read = begun_message(prompt);
  if (read.empty()) return Parser(text, 0, partial, out).run(opened_by(prompt));
  std::string whole(read);
  whole.append(text);
  return Parser(whole, read.size(), partial, out).run(nullptr);
}

}  // namespace sharpi
