// SPDX-License-Identifier: MIT
#include "text/grammar/tool_calls.h"

#include <algorithm>

#include "text/grammar/schema_compiler.h"
#include "text/grammar/token_tree.h"
#include "text/jinja/json.h"

namespace sharpi::grammar {
namespace {

constexpr uint32_t kMaxCalls = 16;  // in an answer that has to be calls
constexpr size_t kMaxToolName = 256;

// Marks behind which a call stands that can be held to a schema.
constexpr std::string_view kHermes = "<tool_call>", kHermesEnd = "</tool_call>";
constexpr std::string_view kMistral = "[TOOL_CALLS]", kMistralArguments = "[ARGS]";
constexpr std::string_view kPython = "<|python_tag|>";
constexpr std::string_view kDeepSeek = "<｜tool▁call▁begin｜>", kDeepSeekName = "<｜tool▁sep｜>",
                           kDeepSeekEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kHarmony = " to=functions.", kHarmonyBody = "<|message|>";
constexpr std::string_view kHeld[] = {kHermes, kMistral, kPython, kDeepSeek, kHarmony};
// Calls that are not JSON. A model may not begin one where schemas have to be kept to.
constexpr std::string_view kNotHeld[] = {"<|tool_call>", "<|tool_call_start|>",
                                         "<start_function_call>"};

struct ToolShape {
  std::string name;
  Expr arguments;
};

class CallGrammar {
 public:
  CallGrammar(Expressions& e, JsonTexts& json, std::vector<ToolShape> tools)
      : e_(e), json_(json), tools_(std::move(tools)) {
    ByteSet all;
    any_ = e_.any_number(e_.set(all.set()));
  }

  /// Calls alone, one behind the other.
  Expr calls(bool single) {
    const Expr call =
        e_.sequence({mark(kHermes), e_.byte('\n'), hermes(), e_.byte('\n'), mark(kHermesEnd)});
    if (single) return call;
    return e_.sequence(call, e_.repeat(e_.sequence(e_.byte('\n'), call), 0, kMaxCalls - 1));
  }

  /// Text with calls in it.
  Expr text_with_calls(bool single) {
    const Expr more = e_.sequence(triggered(), free_text(false));
    const Expr then = single ? e_.optional(more) : e_.any_number(more);
    // Nothing but an object at the very beginning is a call, too.
    const Expr bare = e_.sequence(bare_call(), free_text(false));
    return e_.sequence(e_.either({free_text(true), bare}), then);
  }

 private:
  // What control tokens or plain text can spell.
  Expr mark(std::string_view text) {
    return e_.sequence(e_.optional(e_.byte(TokenTree::kControl)), e_.bytes(text));
  }
  // An object of a name and arguments, under these keys.
  Expr object(std::string_view name_key, const std::vector<std::string_view>& argument_keys) {
    std::vector<Expr> choices, keys;
    for (const std::string_view key : argument_keys) keys.push_back(json_.key(key));
    const Expr key = e_.either(std::move(keys));
    for (const ToolShape& tool : tools_) {
      choices.push_back(
          e_.sequence({json_.key(tool.name), json_.then(json_.pair(key, tool.arguments))}));
    }
    const Expr named = e_.sequence({json_.key(name_key), e_.byte(':'), e_.optional(e_.byte(' '))});
    return json_.braced(e_.sequence(named, e_.either(std::move(choices))));
  }
  Expr hermes() {
    std::vector<Expr> choices;
    for (const ToolShape& tool : tools_) {
      choices.push_back(e_.sequence({e_.bytes("{\"name\": "), json_.key(tool.name),
                                     e_.bytes(", \"arguments\": "), tool.arguments, e_.byte('}')}));
    }
    return e_.either(std::move(choices));
  }
  // The name as it is, something, and the arguments.
  Expr named(Expr between) {
    std::vector<Expr> choices;
    for (const ToolShape& tool : tools_) {
      choices.push_back(e_.sequence({e_.bytes(tool.name), between, tool.arguments}));
    }
    return e_.either(std::move(choices));
  }
  Expr bare_call() { return e_.sequence(blanks(), object("name", {"parameters", "arguments"})); }
  Expr blanks() {
    ByteSet set;
    for (const char c : {' ', '\n', '\r', '\t'}) set.set(static_cast<unsigned char>(c));
    return e_.any_number(e_.set(set));
  }
  Expr triggered();
  Expr free_text(bool at_beginning);

  Expressions& e_;
  JsonTexts& json_;
  const std::vector<ToolShape> tools_;
  Expr any_ = 0;
};

Expr CallGrammar::triggered() {
  const Expr blank = json_.blank();
  const Expr call = object("name", {"arguments", "parameters"});
  const Expr in_hermes = e_.sequence({mark(kHermes), blank, call, blank, mark(kHermesEnd)});
  const Expr list = json_.bracketed(e_.sequence(call, e_.any_number(json_.then(call))));
  const Expr in_mistral =
      e_.sequence({mark(kMistral), blank, e_.either({list, named(mark(kMistralArguments))})});
  const Expr in_python = e_.sequence({mark(kPython), blank, call});
  const Expr fenced = e_.either({e_.sequence({e_.bytes("function"), mark(kDeepSeekName),
                                              named(e_.bytes("\n```json\n")), e_.bytes("\n```")}),
                                 named(mark(kDeepSeekName))});
  const Expr in_deepseek = e_.sequence({mark(kDeepSeek), fenced, mark(kDeepSeekEnd)});
  // What stands in a header says nothing of the arguments.
  const Expr header = e_.terminal(e_.sequence(
      e_.complement(e_.sequence({any_, e_.bytes(kHarmonyBody), any_})), e_.bytes(kHarmonyBody)));
  const Expr in_harmony = e_.sequence(e_.bytes(kHarmony), named(e_.sequence(e_.byte('<'), header)));
  const Expr spaced = e_.sequence(e_.bytes(kHarmony), named(e_.sequence(e_.byte(' '), header)));
  const Expr control =
      e_.sequence(e_.bytes(kHarmony), named(e_.sequence(e_.byte(TokenTree::kControl), header)));
  return e_.either({in_hermes, in_mistral, in_python, in_deepseek, in_harmony, spaced, control});
}

Expr CallGrammar::free_text(bool at_beginning) {
  std::vector<Expr> marks;
  for (const std::string_view text : kHeld) marks.push_back(e_.bytes(text));
  for (const std::string_view text : kNotHeld) marks.push_back(e_.bytes(text));
  Expr out = e_.complement(e_.sequence({any_, e_.either(std::move(marks)), any_}));
  if (at_beginning) {
    std::vector<Expr> keys;
    for (const char* key : {"name", "type", "function", "parameters", "arguments"}) {
      keys.push_back(json_.key(key));
    }
    const Expr like_a_call =
        e_.sequence({blanks(), e_.byte('{'), blanks(), e_.either(std::move(keys)), any_});
    out = e_.both(out, e_.complement(like_a_call));
  }
  return e_.terminal(out);
}

Status check_spelling(std::string_view chat_template) {
  const auto has = [&](std::string_view mark) {
    return chat_template.find(mark) != chat_template.npos;
  };
  if (std::any_of(std::begin(kHeld), std::end(kHeld), has)) return Status::ok();
  for (const std::string_view text : kNotHeld) {
    if (!has(text)) continue;
    return Status::error(Code::kUnsupported,
                         "this model writes calls behind %s, which cannot be held to a schema "
                         "where the model may also answer without one",
                         std::string(text).c_str());
  }
  return Status::ok();
}

}  // namespace

Expr any_text(Expressions& e) {
  ByteSet all;
  return e.terminal(e.any_number(e.set(all.set())));
}

Result<Expr> with_tool_calls(Expressions& e, JsonTexts& json, const GrammarRequest& request,
                             Expr content, jinja::Heap* heap, std::vector<std::string>* notes) {
  jinja::Value list;
  SHARPI_TRY(jinja::parse_json(request.tools, "the list of tools", heap, &list,
                               jinja::JsonNumbers::kAsWritten));
  if (!is_list(list)) return Status::error(Code::kInvalidArgument, "the tools are not a list");
  std::vector<ToolShape> tools;
  for (size_t i = 0; i < list.list->items.size(); ++i) {
    const SchemaValue& item = list.list->items[i];
    const std::string where = "tools[" + std::to_string(i) + "]";
    const SchemaValue* inner = member(item, "function");
    const SchemaValue& function = inner != nullptr ? *inner : item;
    const SchemaValue* name = member(function, "name");
    if (name == nullptr || !name->is_string() || name->bytes().empty() ||
        name->bytes().size() > kMaxToolName) {
      return Status::error(Code::kInvalidArgument, "%s has no name of 1 to 256 bytes",
                           where.c_str());
    }
    if (!request.tool.empty() && name->bytes() != request.tool) continue;
    const SchemaValue* strict = member(function, "strict");
    const SchemaValue* parameters = member(function, "parameters");
    const bool described = parameters != nullptr && is_object(*parameters) &&
                           !parameters->dict->items.empty() &&
                           (strict == nullptr || !is_false(*strict));
    Expr arguments = json.object();
    if (described) {
      const bool forgiving = request.lenient && (strict == nullptr || is_false(*strict) ||
                                                 !strict->is(jinja::Kind::kBool));
      SchemaCompiler compiler(e, json, SchemaDocument(parameters, where + ".parameters"),
                              !forgiving, notes);
      SHARPI_TRY_ASSIGN(arguments, compiler.whole());
    }
    tools.push_back({std::string(name->bytes()), arguments});
  }
  if (tools.empty()) {
    return Status::error(Code::kInvalidArgument,
                         "there is no function of that name among the tools");
  }
  CallGrammar calls(e, json, std::move(tools));
  if (request.must_call) return calls.calls(request.single_call);
  if (request.kind != GrammarKind::kAny) {
    return e.either({content, calls.calls(request.single_call)});
  }
  SHARPI_TRY(check_spelling(request.chat_template));
  return calls.text_with_calls(request.single_call);
}

}  // namespace sharpi::grammar
