// SPDX-License-Identifier: MIT
// Calls that are no JSON. A value may contain whatever ends one: an end counts only where the rest
// of a call follows it.
#include <string>

#include "text/call_scanner.h"
#include "text/tool_schemas.h"

namespace sharpi {
namespace {

using jinja::Kind;
using jinja::Value;

constexpr int kMaxDepth = 64;
constexpr int kMaxStrayEnds = 4;
constexpr size_t kMaxWord = 1024;  // of a value without quotes
constexpr std::string_view kParameterEnd = "</parameter>", kFunctionEnd = "</function>";

bool set_argument(std::string_view key, const Value& value, const CallContext& context,
                  ToolCall* out) {
  const Value name = context.heap->text(key, true);
  return jinja::set_key(out->arguments.dict, name, value, context.heap).is_ok();
}

/// Whether what follows an end is the rest of a call. kIncomplete: more text may make it that.
using Follows = CallState (*)(std::string_view close, const CallContext& context,
                              CallScanner scanner);

/// The same where the value is JSON, whose end is clear: marks in its strings end nothing. kBroken:
/// it is none.
CallState read_json_value(std::string_view end, std::string_view close, Follows follows,
                          const CallContext& context, CallScanner* scanner, std::string_view* out) {
  const std::string_view text = scanner->rest();
  CallScanner inside = *scanner;
  inside.blanks();
  Value value;
  size_t used = 0;
  CallState state = read_json_begin(inside.rest(), context.heap, &value, &used);
  if (state == CallState::kComplete) {
    inside.skip(used);
    inside.blanks();
    *out = text.substr(0, inside.at() - scanner->at());
    state = inside.word(end);
  }
  if (state == CallState::kComplete) state = follows(close, context, CallScanner(inside.rest()));
  if (state == CallState::kComplete) *scanner = inside;
  if (state != CallState::kIncomplete) return state;
  *context.left -= std::min<uint64_t>(*context.left, text.size());
  return context.whole ? CallState::kBroken : state;
}

/// Goes behind the first `end` that the rest of a call follows; *out: what stands before it.
/// @param json the schema may want JSON there.
CallState read_value(std::string_view end, std::string_view close, Follows follows, bool json,
                     const CallContext& context, CallScanner* scanner, std::string_view* out) {
  const std::string_view text = scanner->rest();
  if (text.size() > *context.left) return CallState::kBroken;
  if (json) {
    const CallState read = read_json_value(end, close, follows, context, scanner, out);
    if (read != CallState::kBroken) return read;
    if (text.size() > *context.left) return read;
  }
  CallState state = CallState::kIncomplete;
  size_t at = text.find(end);
  for (; at != text.npos; at = text.find(end, at + 1)) {
    state = follows(close, context, CallScanner(text.substr(at + end.size())));
    if (state == CallState::kIncomplete && context.whole) state = CallState::kBroken;
    if (state != CallState::kBroken) break;
    state = CallState::kIncomplete;
  }
  if (state == CallState::kComplete) {
    *out = text.substr(0, at);
    scanner->skip(at + end.size());
  } else {
    *context.left -= std::min(at, text.size());
  }
  return state;
}

CallState follows_parameter(std::string_view close, const CallContext& context,
                            CallScanner scanner) {
  for (int i = 0;; ++i) {  // some models end a parameter twice
    scanner.blanks();
    const CallState stray = scanner.word(kParameterEnd);
    if (stray == CallState::kIncomplete) return stray;
    if (stray == CallState::kBroken) break;
    if (i == kMaxStrayEnds) return CallState::kBroken;
  }
  std::string_view key;
  if (scanner.rest().starts_with("<parameter=")) {
    scanner.skip(std::string_view("<parameter=").size());
    SHARPI_TRY_CALL(scanner.until(">", &key));
    return key.find_first_of("\n<") == key.npos ? CallState::kComplete : CallState::kBroken;
  }
  if (const CallState s = scanner.word(close); s != CallState::kBroken) return s;
  if (const CallState s = scanner.word(kFunctionEnd); s != CallState::kBroken) {
    return s == CallState::kComplete ? read_close(close, context, &scanner) : s;
  }
  return std::string_view("<parameter=").starts_with(scanner.rest()) ? CallState::kIncomplete
                                                                     : CallState::kBroken;
}

CallState follows_argument(std::string_view close, const CallContext& context,
                           CallScanner scanner) {
  scanner.blanks();
  if (const CallState s = scanner.word("<arg_key>"); s != CallState::kBroken) return s;
  return read_close(close, context, &scanner);
}

CallState read_parameter(std::string_view close, const CallContext& context, CallScanner* scanner,
                         ToolCall* out) {
  std::string_view key, value;
  SHARPI_TRY_CALL(scanner->until(">", &key));
  if (key.find_first_of("\n<") != key.npos) return CallState::kBroken;
  key = strip_blanks(key);
  const bool json = context.tools->types(out->name.bytes(), key).may_be_json();
  SHARPI_TRY_CALL(
      read_value(kParameterEnd, close, follows_parameter, json, context, scanner, &value));
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  const Value typed = context.tools->typed(out->name.bytes(), key, value, context.heap);
  return set_argument(key, typed, context, out) ? CallState::kComplete : CallState::kBroken;
}

/// A value of Gemma's spelling.
class GemmaReader {
 public:
  GemmaReader(const CallContext& context, CallScanner* scanner)
      : context_(context), scanner_(*scanner) {}

  /// *plain: where the value is a word without quotes, that word.
  CallState value(Value* out, int depth, std::string_view* plain) {
    if (depth > kMaxDepth) return CallState::kBroken;
    scanner_.blanks();
    std::string_view text;
    if (const CallState s = quoted(&text); s != CallState::kBroken) {
      *out = context_.heap->text(text, true);
      return s;
    }
    if (scanner_.at_end()) return CallState::kIncomplete;
    if (scanner_.here() == '[') return list(out, depth);
    if (scanner_.here() == '{') {
      scanner_.skip(1);
      return members(out, depth, {});
    }
    if (scanner_.here() == '"') return json_string(out);
    return word(out, plain);
  }

  /// What stands behind an opening brace. @param tool whose arguments these are; empty: of none.
  CallState members(Value* out, int depth, std::string_view tool) {
    *out = Value::of(Kind::kDict, context_.heap->dict());
    for (bool first = true;; first = false) {
      scanner_.blanks();
      if (scanner_.at_end()) return CallState::kIncomplete;
      if (scanner_.here() == '}') break;
      if (!first) {
        if (scanner_.here() != ',') return CallState::kBroken;
        scanner_.skip(1);
        scanner_.blanks();
      }
      std::string_view key, plain;
      SHARPI_TRY_CALL(read_key(&key));
      Value item;
      SHARPI_TRY_CALL(value(&item, depth + 1, &plain));
      if (!plain.empty() && !tool.empty()) {
        const Value spelled = item;
        item = context_.tools->typed(tool, key, plain, context_.heap, &spelled);
      }
      const Value name = context_.heap->text(key, true);
      if (!jinja::set_key(out->dict, name, item, context_.heap).is_ok()) return CallState::kBroken;
    }
    scanner_.skip(1);
    return CallState::kComplete;
  }

 private:
  /// A text between two equal marks; kBroken: there is none here.
  CallState quoted(std::string_view* out) {
    for (const std::string_view quote : {"<|\"|>", "<escape>"}) {
      const CallState s = scanner_.word(quote);
      if (s == CallState::kBroken) continue;
      if (s == CallState::kIncomplete) return s;
      const std::string_view rest = scanner_.rest();
      if (rest.size() > *context_.left) return CallState::kBroken;
      const size_t end = rest.find(quote);
      if (end == rest.npos) {
        *context_.left -= rest.size();
        return CallState::kIncomplete;
      }
      *out = rest.substr(0, end);
      scanner_.skip(end + quote.size());
      return CallState::kComplete;
    }
    return CallState::kBroken;
  }

  CallState read_key(std::string_view* out) {
    if (const CallState s = quoted(out); s != CallState::kBroken) {
      if (s != CallState::kComplete) return s;
      scanner_.blanks();
      return scanner_.word(":");
    }
    SHARPI_TRY_CALL(scanner_.until(":", out));
    *out = strip_blanks(*out);
    if (out->size() > 1 && out->front() == '"' && out->back() == '"') {
      *out = out->substr(1, out->size() - 2);
    }
    const bool is_key = !out->empty() && out->find_first_of("{}[],<\n") == out->npos;
    return is_key ? CallState::kComplete : CallState::kBroken;
  }

  CallState json_string(Value* out) {
    size_t used = 0;
    SHARPI_TRY_CALL(read_json_begin(scanner_.rest(), context_.heap, out, &used));
    scanner_.skip(used);
    return CallState::kComplete;
  }

  CallState list(Value* out, int depth) {
    scanner_.skip(1);
    jinja::List* items = context_.heap->list();
    *out = Value::of(Kind::kList, items);
    for (bool first = true;; first = false) {
      scanner_.blanks();
      if (scanner_.at_end()) return CallState::kIncomplete;
      if (scanner_.here() == ']') break;
      if (!first) {
        if (scanner_.here() != ',') return CallState::kBroken;
        scanner_.skip(1);
      }
      Value item;
      std::string_view plain;
      SHARPI_TRY_CALL(value(&item, depth + 1, &plain));
      items->items.push_back(item);
      if (!context_.heap->charge(2 * sizeof(Value)).is_ok()) return CallState::kBroken;
    }
    scanner_.skip(1);
    return CallState::kComplete;
  }

  /// Numbers and words of JSON; anything else is a text without its quotes.
  CallState word(Value* out, std::string_view* plain) {
    const std::string_view near = scanner_.rest().substr(0, kMaxWord + 1);
    const size_t end = near.find_first_of(",}]");
    if (end == near.npos) {
      return near.size() <= kMaxWord ? CallState::kIncomplete : CallState::kBroken;
    }
    *plain = strip_blanks(near.substr(0, end));
    if (plain->empty() || plain->find_first_of("{[<\n") != plain->npos) return CallState::kBroken;
    scanner_.skip(end);
    const bool json =
        jinja::parse_json(*plain, "an argument", context_.heap, out, jinja::JsonNumbers::kAsWritten)
            .is_ok();
    if (!json) *out = context_.heap->text(*plain, true);
    return CallState::kComplete;
  }

  const CallContext& context_;
  CallScanner& scanner_;
};

}  // namespace

CallState read_xml_call(std::string_view close, const CallContext& context, CallScanner* scanner,
                        ToolCall* out) {
  std::string_view name;
  SHARPI_TRY_CALL(scanner->word("<function="));
  SHARPI_TRY_CALL(scanner->until(">", &name));
  name = strip_blanks(name);
  if (name.empty() || name.find_first_of("\n<") != name.npos) return CallState::kBroken;
  out->name = context.heap->text(name, true);
  for (;;) {
    scanner->blanks();
    CallState s = scanner->word("<parameter=");
    if (s == CallState::kComplete) {
      SHARPI_TRY_CALL(read_parameter(close, context, scanner, out));
      continue;
    }
    if (s == CallState::kIncomplete) return s;
    s = scanner->word(kParameterEnd);
    if (s == CallState::kIncomplete) return s;
    if (s == CallState::kComplete) continue;
    s = scanner->word(kFunctionEnd);
    if (s == CallState::kComplete) return read_close(close, context, scanner);
    return s == CallState::kIncomplete ? s : scanner->word(close);
  }
}

CallState read_key_call(std::string_view close, const CallContext& context, CallScanner* scanner,
                        ToolCall* out) {
  for (;;) {
    scanner->blanks();
    const CallState s = scanner->word("<arg_key>");
    if (s == CallState::kBroken) return scanner->word(close);
    if (s == CallState::kIncomplete) return s;
    std::string_view key, value;
    SHARPI_TRY_CALL(scanner->until("</arg_key>", &key));
    scanner->blanks();
    SHARPI_TRY_CALL(scanner->word("<arg_value>"));
    key = strip_blanks(key);
    const bool json = context.tools->types(out->name.bytes(), key).may_be_json();
    SHARPI_TRY_CALL(
        read_value("</arg_value>", close, follows_argument, json, context, scanner, &value));
    const Value typed = context.tools->typed(out->name.bytes(), key, value, context.heap);
    if (!set_argument(key, typed, context, out)) return CallState::kBroken;
    if (context.whole && scanner->at_end()) return CallState::kComplete;
  }
}

CallState read_gemma_call(std::string_view close, const CallContext& context, CallScanner* scanner,
                          ToolCall* out) {
  std::string_view name;
  SHARPI_TRY_CALL(scanner->word("call:"));
  SHARPI_TRY_CALL(scanner->until("{", &name));
  name = strip_blanks(name);
  if (name.empty() || name.find_first_of("\n<") != name.npos) return CallState::kBroken;
  out->name = context.heap->text(name, true);
  SHARPI_TRY_CALL(GemmaReader(context, scanner).members(&out->arguments, 0, name));
  return read_close(close, context, scanner);
}

}  // namespace sharpi
