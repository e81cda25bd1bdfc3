// SPDX-License-Identifier: MIT
#include "text/chat_parse.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "text/call_scanner.h"
#include "text/chat_calls.h"
#include "text/tool_schemas.h"

namespace sharpi {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

/// What ends the part that a mark begins.
enum class Ends : uint8_t {
  kMark,     // another mark, wherever it stands
  kClose,    // another mark, behind a whole call
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
    // Hermes, Qwen and GLM; LFM2; DeepSeek; Gemma 4; FunctionGemma.
    {"<tool_call>", "</tool_call>", ChatPart::kToolCall, Ends::kClose},
    {"<|tool_call_start|>", "<|tool_call_end|>", ChatPart::kToolCall, Ends::kClose},
    {"<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", ChatPart::kToolCall, Ends::kClose},
    {"<|tool_call>", "<tool_call|>", ChatPart::kToolCall, Ends::kClose},
    {"<start_function_call>", "<end_function_call>", ChatPart::kToolCall, Ends::kClose},
    {"<｜tool▁calls▁begin｜>", "", ChatPart::kToolCall, Ends::kItself},
    {"<｜tool▁calls▁end｜>", "", ChatPart::kToolCall, Ends::kItself},
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

/// Bytes that a parse looks through in search of ends that do not come.
constexpr uint64_t kMaxLookedThrough = uint64_t{64} << 20;

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

bool is_thought(std::string_view header) {
  return header.find("<|channel|>analysis") != header.npos;
}

class Parser {
 public:
  /// The first n_read bytes of the text are the prompt's.
  Parser(const ParseRequest& request, std::string_view text, size_t n_read, ParsedChat* out)
      : request_(request), text_(text), n_read_(n_read), out_(*out) {}

  Status run(const Marks* marks) {
    SHARPI_TRY(ToolSchemas::read(request_.tools, &heap_, &tools_));
    if (marks != nullptr) {
      thought(*marks);
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
    if (request_.partial && is_between_messages()) out_.open = ChatPart::kHeader;
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
  bool is_active(const Marks& m) const {
    if (m.ends == Ends::kMessage) return request_.reasoning || request_.calls;
    return m.part == ChatPart::kReasoning ? request_.reasoning : request_.calls;
  }
  CallContext context() { return {&heap_, &tools_, !request_.partial, &left_}; }

  /// The text from from_ on is content up to here.
  void flush(size_t end) {
    from_ = std::max(from_, n_read_);
    if (end > from_) append(text_.substr(from_, end - from_), &out_.content);
    from_ = std::max(from_, end);
  }

  /// Whether content stands before this place.
  bool has_content(size_t end) {
    const size_t from = std::min(std::max(from_, n_read_), end);
    if (!out_.content.empty() || from == content_from_) return true;
    const bool has = !strip_blanks(text_.substr(from, end - from)).empty();
    if (has) content_from_ = from;
    return has;
  }

  /// Goes on to the next mark and returns it; null: there is none, or a call without marks was.
  const Marks* content() {
    if (out_.content.empty() && from_ == at_ && n_plain_ == 0 && bare_call()) return nullptr;
    const Marks* next = nullptr;
    size_t begin = text_.size(), held = 0;
    for (size_t i = 0; i < std::size(kMarks); ++i) {
      if (!is_active(kMarks[i])) continue;
      const size_t found = opens_[i].of(kMarks[i].open, text_, at_ + n_plain_);
      if (found >= begin) continue;
      begin = found;
      next = &kMarks[i];
    }
    if (next == nullptr) {
      for (const Marks& m : kMarks) {
        if (is_active(m)) held = std::max(held, begun(rest().substr(n_plain_), m.open));
      }
    }
    if (request_.constrained && has_content(begin - held)) {  // one text, whatever is in it
      next = nullptr;
      begin = text_.size();
      held = 0;
    }
    n_plain_ = 0;
    if (next == nullptr && request_.partial) {
      flush(begin - held);
      from_ = text_.size();
    }
    at_ = begin;
    return next;
  }

  /// A call without marks, where nothing but calls came before. True: it is read, or may be one.
  bool bare_call() {
    if (!request_.calls || request_.constrained) return false;
    size_t used = 0;
    const CallState state = read_bare(rest(), tools_, &heap_, &calls_, &used);
    if (state == CallState::kComplete) {
      at_ = std::min(text_.find_first_not_of(" \t\r\n;", at_ + used), text_.size());
    } else if (state == CallState::kIncomplete && request_.partial) {
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
        if (has_content(begin)) return false;
        flush(begin);
        thought(marks);
        return true;
      case Ends::kClose:
      case Ends::kCall:
        return call(marks, begin);
      case Ends::kMessage:
        return message(begin);
      case Ends::kItself:
        flush(begin);
        return true;
    }
    return true;
  }

  /// What stands behind the mark of a thought.
  void thought(const Marks& marks) {
    const size_t close = text_.find(marks.close, at_);
    if (close != text_.npos) {
      append(text_.substr(at_, close - at_), &out_.reasoning);
      at_ = close + marks.close.size();
      return;
    }
    const size_t end = call_in_thought();
    const std::string_view inside = text_.substr(at_, end - at_);
    const bool held_back = request_.partial && end == text_.size();
    const size_t held = held_back ? held_in_thought(inside, marks) : 0;
    append(inside.substr(0, inside.size() - held), &out_.reasoning);
    if (request_.partial || end == text_.size()) out_.open = ChatPart::kReasoning;
    at_ = request_.partial ? text_.size() : end;
  }

  /// Bytes at the end of a thought that may begin its end, or a call.
  size_t held_in_thought(std::string_view inside, const Marks& marks) const {
    size_t held = begun(inside, marks.close);
    for (const Marks& m : kMarks) {
      if (is_call(m)) held = std::max(held, begun(inside, m.open));
    }
    return held;
  }

  bool is_call(const Marks& m) const {
    return request_.calls && (m.ends == Ends::kClose || m.ends == Ends::kCall);
  }

  /// Where the first call begins in a thought that has no end (yet); the end of the text: nowhere.
  /// More text may end the thought behind it, and then it is no call.
  size_t call_in_thought() {
    NextPlace places[std::size(kMarks)];
    for (size_t at = at_;;) {
      const Marks* next = nullptr;
      size_t begin = text_.size();
      for (size_t i = 0; i < std::size(kMarks); ++i) {
        const size_t found = is_call(kMarks[i]) ? places[i].of(kMarks[i].open, text_, at) : begin;
        if (found >= begin) continue;
        begin = found;
        next = &kMarks[i];
      }
      if (next == nullptr) return text_.size();
      std::vector<ToolCall> found;
      size_t used = 0;
      at = begin + next->open.size();
      const CallState state = read(*next, text_.substr(at), &found, &used);
      const bool may_be = state == CallState::kIncomplete && request_.partial;
      if (may_be || (state == CallState::kComplete && known(found))) return begin;
    }
  }

  /// Whether the calls are of tools that there are, as far as that is known.
  bool known(const std::vector<ToolCall>& calls) const {
    return tools_.empty() || std::all_of(calls.begin(), calls.end(), [&](const ToolCall& c) {
             return tools_.knows(c.name.bytes());
           });
  }

  /// The calls behind a mark.
  CallState read(const Marks& marks, std::string_view text, std::vector<ToolCall>* out,
                 size_t* used) {
    if (marks.ends == Ends::kClose) {
      return read_marked_list(text, marks.close, context(), out, used);
    }
    return marks.open == "[TOOL_CALLS]" ? read_mistral(text, &heap_, out, used)
                                        : read_bare(text, tools_, &heap_, out, used);
  }

  /// Calls behind a mark. False: there are none.
  bool call(const Marks& marks, size_t begin) {
    size_t used = 0;
    const CallState state = read(marks, rest(), &calls_, &used);
    const bool open = state == CallState::kIncomplete && request_.partial;
    if (state != CallState::kComplete && !open) return false;
    flush(begin);
    if (open) {
      out_.open = ChatPart::kToolCall;
      used = text_.size() - at_;
    }
    at_ += used;
    return true;
  }

  /// A message of gpt-oss: its header says whether it is thought, said or a call.
  bool message(size_t begin) {
    const std::string_view near = text_.substr(begin, kMaxHeader + kBody.size());
    const size_t line = near.find('\n'), found = near.find(kBody);
    if (found == near.npos) {  // it may still come, if it may begin near enough
      const bool ends_here = begin + near.size() == text_.size() && line == near.npos;
      const bool open = ends_here && near.size() - begun(near, kBody) <= kMaxHeader;
      if (!open || !request_.partial) return false;
      flush(begin);
      at_ = text_.size();
      out_.open = ChatPart::kHeader;
      return true;
    }
    if (found > kMaxHeader || line < found) return false;
    const size_t body = begin + found;
    flush(begin);
    at_ = body + kBody.size();
    const std::string_view header = text_.substr(begin, found);
    const bool is_answer = recipient_of(header).empty() && !is_thought(header);
    if (request_.constrained && is_answer) {  // one text, whatever is in it
      append(rest(), &out_.content);
      at_ = text_.size();
      return true;
    }
    size_t end = text_.size(), end_size = 0, held = 0;
    for (size_t i = 0; i < std::size(kMessageEnds); ++i) {
      const std::string_view mark = kMessageEnds[i];
      const size_t place = ends_[i].of(mark, text_, at_);
      held = std::max(held, begun(rest(), mark));
      if (place >= end) continue;
      end = place;
      end_size = mark == kTurn || mark == kChannel ? 0 : mark.size();
    }
    const bool closed = end < text_.size();
    const std::string_view inside =
        text_.substr(at_, end - at_ - (closed || !request_.partial ? 0 : held));
    const size_t first = std::max(begin, n_read_);
    at_ = end + end_size;
    add_message(header, inside, closed,
                text_.substr(std::min(first, at_), at_ - std::min(first, at_)));
    if (closed) message_end_ = at_;
    return true;
  }

  /// The text ends behind a message, or where the next one is about to begin.
  bool is_between_messages() const {
    if (message_end_ == SIZE_MAX) return false;
    const std::string_view behind = strip_blanks(text_.substr(message_end_));
    return kTurn.starts_with(behind) || kChannel.starts_with(behind);
  }

  void add_message(std::string_view header, std::string_view inside, bool closed,
                   std::string_view whole) {
    const std::string_view name = recipient_of(header);
    if (!name.empty() && request_.calls) {
      if (!closed) out_.open = ChatPart::kToolCall;
      if (!closed && request_.partial) return;
      ToolCall c{heap_.text(name, true), {}, Value::none()};
      if (read_arguments(inside, &heap_, &c.arguments))
        calls_.push_back(c);
      else
        append(whole, &out_.content);
    } else if (is_thought(header) && request_.reasoning) {
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

  const ParseRequest& request_;
  std::string_view text_;
  size_t n_read_;
  ParsedChat& out_;
  size_t at_ = 0;                   // what comes before is read
  size_t from_ = 0;                 // where content begins that is not in its part yet
  size_t content_from_ = SIZE_MAX;  // a from_ that content is known to follow
  size_t message_end_ = SIZE_MAX;   // of the last message that has ended
  size_t n_plain_ = 0;              // bytes from at_ on in which no mark begins
  NextPlace opens_[std::size(kMarks)], ends_[std::size(kMessageEnds)];
  Heap heap_{uint64_t{256} << 20};
  ToolSchemas tools_;
  uint64_t left_ = kMaxLookedThrough;
  std::vector<ToolCall> calls_;
};

}  // namespace

Status parse_chat(const ParseRequest& request, std::string_view text, ParsedChat* out) {
  *out = {};
  const bool marks = request.reasoning || request.calls;
  const std::string_view read = marks ? begun_message(request.prompt) : std::string_view();
  if (read.empty()) {
    const Marks* open = request.reasoning ? opened_by(request.prompt) : nullptr;
    return Parser(request, text, 0, out).run(open);
  }
  std::string whole(read);
  whole.append(text);
  return Parser(request, whole, read.size(), out).run(nullptr);
}

}  // namespace sharpi
