// SPDX-License-Identifier: MIT
// Calls as Python writes them, [f(a="x", n=[1, None]), g()], which LFM2 puts between its marks.
#include <string>

#include "base/utf8.h"
#include "text/call_scanner.h"
#include "text/tool_schemas.h"

namespace sharpi {
namespace {

using jinja::Kind;
using jinja::Value;

class PythonReader {
 public:
  PythonReader(const CallContext& context, CallScanner* scanner)
      : context_(context), scanner_(*scanner) {}

  /// What stands behind the opening bracket, up to and with the closing one.
  CallState calls(std::vector<ToolCall>* out) {
    for (;;) {
      ToolCall one{{}, Value::of(Kind::kDict, context_.heap->dict()), Value::none()};
      SHARPI_TRY_CALL(call(&one));
      out->push_back(one);
      bool more = false;
      SHARPI_TRY_CALL(goes_on(']', &more));
      if (!more) return CallState::kComplete;
    }
  }

 private:
  static constexpr int kMaxDepth = 64;
  static constexpr size_t kMaxWord = 1024;  // of a number or a word
  static constexpr uint32_t kNoCharacter = 0xFFFD;

  CallState call(ToolCall* out) {
    std::string_view name;
    scanner_.blanks();
    SHARPI_TRY_CALL(word_before("(", &name));
    out->name = context_.heap->text(name, true);
    for (bool more = !ends(')'); more;) {
      std::string_view key, plain;
      Value value;
      scanner_.blanks();
      SHARPI_TRY_CALL(word_before("=", &key));
      SHARPI_TRY_CALL(this->value(&value, 0, &plain));
      if (!plain.empty()) {
        const Value spelled = value;
        value = context_.tools->typed(name, key, plain, context_.heap, &spelled);
      }
      SHARPI_TRY_CALL(add(key, value, out->arguments.dict));
      SHARPI_TRY_CALL(goes_on(')', &more));
    }
    return CallState::kComplete;
  }

  /// A name and what has to follow it.
  CallState word_before(std::string_view mark, std::string_view* out) {
    SHARPI_TRY_CALL(scanner_.until(mark, out));
    while (out->ends_with(' ')) out->remove_suffix(1);
    const bool is_name = !out->empty() && out->find_first_of("{}[]()<>,:='\"\\\n") == out->npos;
    return is_name ? CallState::kComplete : CallState::kBroken;
  }

  /// Goes behind a closing bracket if it stands here.
  bool ends(char close) {
    scanner_.blanks();
    if (scanner_.at_end() || scanner_.here() != close) return false;
    scanner_.skip(1);
    return true;
  }

  /// Goes behind what follows an item: a comma, or the closing bracket, or both.
  CallState goes_on(char close, bool* more) {
    *more = !ends(close);
    if (!*more) return CallState::kComplete;
    if (scanner_.at_end()) return CallState::kIncomplete;
    if (scanner_.here() != ',') return CallState::kBroken;
    scanner_.skip(1);
    *more = !ends(close);
    return *more && scanner_.at_end() ? CallState::kIncomplete : CallState::kComplete;
  }

  CallState add(std::string_view key, const Value& value, jinja::Dict* out) {
    const Value name = context_.heap->text(key, true);
    return jinja::set_key(out, name, value, context_.heap).is_ok() ? CallState::kComplete
                                                                   : CallState::kBroken;
  }

  /// *plain: where the value is a word without quotes, that word.
  CallState value(Value* out, int depth, std::string_view* plain) {
    if (depth > kMaxDepth) return CallState::kBroken;
    scanner_.blanks();
    if (scanner_.at_end()) return CallState::kIncomplete;
    const char first = scanner_.here();
    if (first == '"' || first == '\'') {
      std::string text;
      SHARPI_TRY_CALL(string(&text));
      *out = context_.heap->text(text, true);
      return CallState::kComplete;
    }
    if (first != '[' && first != '(' && first != '{') return word(out, plain);
    scanner_.skip(1);
    return first == '{' ? dict(out, depth) : list(out, first == '[' ? ']' : ')', depth);
  }

  CallState list(Value* out, char close, int depth) {
    jinja::List* items = context_.heap->list();
    *out = Value::of(Kind::kList, items);
    for (bool more = !ends(close); more;) {
      Value item;
      std::string_view plain;
      SHARPI_TRY_CALL(value(&item, depth + 1, &plain));
      items->items.push_back(item);
      if (!context_.heap->charge(2 * sizeof(Value)).is_ok()) return CallState::kBroken;
      SHARPI_TRY_CALL(goes_on(close, &more));
    }
    return CallState::kComplete;
  }

  CallState dict(Value* out, int depth) {
    *out = Value::of(Kind::kDict, context_.heap->dict());
    for (bool more = !ends('}'); more;) {
      Value key, item;
      std::string_view plain;
      SHARPI_TRY_CALL(value(&key, kMaxDepth, &plain));
      if (!key.is_string()) return CallState::kBroken;
      scanner_.blanks();
      SHARPI_TRY_CALL(scanner_.word(":"));
      SHARPI_TRY_CALL(value(&item, depth + 1, &plain));
      SHARPI_TRY_CALL(add(key.bytes(), item, out->dict));
      SHARPI_TRY_CALL(goes_on('}', &more));
    }
    return CallState::kComplete;
  }

  /// Numbers, and the words of Python and of JSON.
  CallState word(Value* out, std::string_view* plain) {
    const std::string_view near = scanner_.rest().substr(0, kMaxWord + 1);
    const size_t end = near.find_first_of(",)]} \t\r\n:");
    if (end == near.npos) {
      return near.size() <= kMaxWord ? CallState::kIncomplete : CallState::kBroken;
    }
    *plain = near.substr(0, end);
    scanner_.skip(end);
    if (*plain == "None") {
      *out = Value::none();
    } else if (*plain == "True" || *plain == "False") {
      *out = Value::of(*plain == "True");
    } else if (!jinja::parse_json(*plain, "an argument", context_.heap, out,
                                  jinja::JsonNumbers::kAsWritten)
                    .is_ok()) {
      return CallState::kBroken;
    }
    return CallState::kComplete;
  }

  CallState string(std::string* out) {
    const std::string_view text = scanner_.rest();
    if (text.size() > *context_.left) return CallState::kBroken;
    const char quote = text[0];
    for (size_t at = 1; at < text.size();) {
      if (text[at] == quote) {
        scanner_.skip(at + 1);
        return CallState::kComplete;
      }
      if (text[at] != '\\') {
        out->push_back(text[at++]);
        continue;
      }
      const size_t used = escape(text.substr(at), out);
      if (used == 0) break;
      at += used;
    }
    *context_.left -= text.size();
    return CallState::kIncomplete;
  }

  /// The bytes of an escape; 0: not all of it is there.
  static size_t escape(std::string_view text, std::string* out) {
    static constexpr std::string_view kLetters = "abfnrtv0\\'\"/",
                                      kMeanings = {"\a\b\f\n\r\t\v\0\\'\"/", 12};
    if (text.size() < 2) return 0;
    if (text[1] == '\n') return 2;  // the line goes on
    if (const size_t at = kLetters.find(text[1]); at != kLetters.npos) {
      out->push_back(kMeanings[at]);
      return 2;
    }
    uint32_t code = 0;
    size_t used = code_point(text, &code);
    if (used == SIZE_MAX) {  // no escape: it stands for itself
      out->push_back('\\');
      return 1;
    }
    if (used == 0) return 0;
    if (code >= 0xD800 && code < 0xDC00) {  // the first half of a pair, as JSON writes it
      uint32_t low = 0;
      const size_t more = code_point(text.substr(used), &low);
      if (more == 0) return 0;
      const bool pair = more != SIZE_MAX && low >= 0xDC00 && low < 0xE000;
      code = pair ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) : kNoCharacter;
      used += pair ? more : 0;
    }
    const bool is_character = code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
    utf8_append(is_character ? code : kNoCharacter, out);
    return used;
  }

  /// \xHH, \uHHHH or \UHHHHHHHH: its bytes; 0: not all of it is there; SIZE_MAX: something else.
  static size_t code_point(std::string_view text, uint32_t* out) {
    if (text.empty()) return 0;
    if (text[0] != '\\') return SIZE_MAX;
    if (text.size() < 2) return 0;
    const size_t n = text[1] == 'x' ? 2 : text[1] == 'u' ? 4 : text[1] == 'U' ? 8 : 0;
    if (n == 0) return SIZE_MAX;
    for (size_t i = 0; i < n; ++i) {
      if (2 + i >= text.size()) return 0;
      const char c = text[2 + i];
      const bool digit = c >= '0' && c <= '9', lower = c >= 'a' && c <= 'f';
      if (!digit && !lower && (c < 'A' || c > 'F')) return SIZE_MAX;
      *out = *out * 16 + static_cast<uint32_t>(digit   ? c - '0'
                                               : lower ? c - 'a' + 10
                                                       : c - 'A' + 10);
    }
    return 2 + n;
  }

  const CallContext& context_;
  CallScanner& scanner_;
};

}  // namespace

CallState read_python_calls(const CallContext& context, CallScanner* scanner,
                            std::vector<ToolCall>* out) {
  return PythonReader(context, scanner).calls(out);
}

}  // namespace sharpi
