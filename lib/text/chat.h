// SPDX-License-Identifier: MIT
// Conversations as prompt text: the file's own Jinja template, rendered by the interpreter of
// text/jinja as HF transformers would. A file without a template gets the plain one of the format
// that its control tokens belong to.
// Thread rule: immutable after create(); any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/jinja/marked_text.h"
#include "text/tokenizer.h"

namespace sharpi {

namespace jinja {
class Template;
}

/// Where the template comes from. The numbers are those of SHARPI_CHAT_*.
enum class ChatFormat : uint32_t {
  kUnknown = 0,  // no template, and no format that the vocabulary shows
  kChatMl = 1,   // no template: the plain one of the format
  kGemma = 2,    // Gemma 4
  kOlmoe = 3,
  kTemplate = 4,  // the file's own
  kGemma3 = 5,    // no template: turns of Gemma 2 and 3
};

/// Views that outlive the call. A null view (data() == nullptr) is "none".
struct ChatMessage {
  std::string_view role, content;
  std::string_view reasoning = {};
  std::string_view tool_calls = {};  // JSON array
  std::string_view tool_call_id = {}, name = {};
  std::string_view parts = {};  // JSON array, in place of content
};

enum class Thinking : uint8_t { kTemplate, kOn, kOff };

struct ChatRequest {
  std::span<const ChatMessage> messages;
  std::string_view tools = {};      // JSON array
  std::string_view variables = {};  // JSON object
  bool add_generation_prompt = true;
  Thinking thinking = Thinking::kTemplate;
  int64_t now = 0;  // seconds since 1970; 0: the clock
  /// Tools and calls that the template has no place for become text; otherwise they are refused.
  bool describe_tools = false;
};

class ChatTemplate {
 public:
  /// Does not fail where the template is bad: render() then says what is wrong with it.
  static std::shared_ptr<const ChatTemplate> create(const Tokenizer& tokenizer,
                                                    std::string_view architecture);
  /// For tests: a template by its source, with the texts of BOS and EOS (null: none).
  static std::shared_ptr<const ChatTemplate> from_source(std::string_view source,
                                                         std::string_view bos,
                                                         std::string_view eos);

  ChatFormat format() const { return format_; }
  std::string_view source() const { return source_; }
  /// kUnsupported: no template, one with a feature that is named, or tools or calls that leave no
  /// trace in what it renders; kFormat: it is no Jinja;
  /// kInvalidArgument: it refuses these messages, or JSON is malformed; kDoesNotFit: a limit.
  Result<jinja::MarkedText> render(const ChatRequest& request) const;

 private:
  ChatTemplate() = default;
  void parse();
  Result<jinja::MarkedText> render_as_given(const ChatRequest& request) const;
  /// Whether the text is the same without the tools, without the calls.
  void find_lost(const ChatRequest& request, const jinja::MarkedText& text, bool* tools,
                 bool* calls) const;
  Result<jinja::MarkedText> render_described(const ChatRequest& request, bool tools, bool calls,
                                             Status refused) const;

  ChatFormat format_ = ChatFormat::kUnknown;
  std::string source_, bos_, eos_;
  bool has_bos_ = false, has_eos_ = false;
  std::string_view reasoning_key_;
  bool reads_parts_ = false;  // it looks into contents that are lists
  std::shared_ptr<const jinja::Template> template_;
  Status status_;
};

/// The plain template of a format that has no template in the file; empty for kUnknown.
std::string_view builtin_template(ChatFormat format, bool add_bos);

}  // namespace sharpi
