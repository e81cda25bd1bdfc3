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

// Calls that are not JSON. Only models whose templates have such marks may begin one.
struct OwnSpelling {
  ValueForm form;
  std::string_view open, close;
  std::string_view inside;  // where other models have the same marks: what stands between them
};
constexpr OwnSpelling kOwn[] = {
    {ValueForm::kGemma, "<|tool_call>", "<tool_call|>", ""},
    {ValueForm::kFunctionGemma, "<start_function_call>", "<end_function_call>", ""},
    {ValueForm::kPython, "<|tool_call_start|>", "<|tool_call_end|>", ""},
    {ValueForm::kParameterTags, kHermes, kHermesEnd, "<parameter="},
    {ValueForm::kArgumentTags, kHermes, kHermesEnd, "<arg_key>"}};

const OwnSpelling* own_spelling(std::string_view chat_template) {
  const auto* found = std::find_if(std::begin(kOwn), std::end(kOwn), [&](const OwnSpelling& own) {
    return chat_template.find(own.open) != chat_template.npos &&
           chat_template.find(own.inside) != chat_template.npos;
  });
  return found == std::end(kOwn) ? nullptr : found;
}

struct ToolShape {
  std::string name;
  Expr arguments;
};

// A tool of the request.
struct GivenTool {
  std::string name, where;
  const SchemaValue* schema = nullptr;  // null: any arguments
  bool strict = true;                   // what cannot be enforced is refused
};

class CallGrammar {
 public:
  /// @param own_tools the same with arguments as the model spells them.
  CallGrammar(Expressions& e, JsonTexts& json, std::vector<ToolShape> tools, const OwnSpelling* own,
              std::vector<ToolShape> own_tools, bool single)
      : e_(e),
        json_(json),
        tools_(std::move(tools)),
        own_(own),
        own_tools_(std::move(own_tools)),
        single_(single) {
    ByteSet all;
    any_ = e_.any_number(e_.set(all.set()));
  }

  /// Calls alone, one behind the other.
  Expr calls() {
    if (own_ != nullptr) {
      const bool list = own_->form == ValueForm::kPython;
      const Expr call = own_call();
      if (single_ || list) return call;
      return e_.sequence(call, e_.repeat(e_.sequence(between_own(), call), 0, kMaxCalls - 1));
    }
    const Expr call =
        e_.sequence({mark(kHermes), e_.byte('\n'), hermes(), e_.byte('\n'), mark(kHermesEnd)});
    if (single_) return call;
    return e_.sequence(call, e_.repeat(e_.sequence(e_.byte('\n'), call), 0, kMaxCalls - 1));
  }

  /// Text with calls in it.
  Expr text_with_calls() {
    const Expr more = e_.sequence(triggered(), free_text(false));
    const Expr then = single_ ? e_.optional(more) : e_.any_number(more);
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
  Expr named(Expr between) { return named(tools_, between); }
  Expr named(const std::vector<ToolShape>& tools, Expr between) {
    std::vector<Expr> choices;
    for (const ToolShape& tool : tools) {
      choices.push_back(e_.sequence({e_.bytes(tool.name), between, tool.arguments}));
    }
    return e_.either(std::move(choices));
  }
  // What stands between two calls in the model's own spelling.
  Expr between_own() {
    const Expr line = e_.byte('\n');
    if (own_->form == ValueForm::kParameterTags) return line;
    return own_->form == ValueForm::kArgumentTags ? e_.optional(line) : Expressions::kEmpty;
  }
  // A call in the model's own spelling, or all that stand in one list.
  Expr own_call() {
    if (own_->form == ValueForm::kParameterTags) {
      return e_.sequence({mark(own_->open), e_.bytes("\n<function="),
                          named(own_tools_, e_.bytes(">\n")), e_.bytes("</function>\n"),
                          mark(own_->close)});
    }
    if (own_->form == ValueForm::kArgumentTags) {
      return e_.sequence(
          {mark(own_->open), named(own_tools_, e_.optional(e_.byte('\n'))), mark(own_->close)});
    }
    const Expr call = named(own_tools_, Expressions::kEmpty);
    if (own_->form != ValueForm::kPython) {
      return e_.sequence({mark(own_->open), e_.bytes("call:"), call, mark(own_->close)});
    }
    const Expr more = e_.repeat(e_.sequence(e_.bytes(", "), call), 0, single_ ? 0 : kMaxCalls - 1);
    return e_.sequence(
        {mark(own_->open), e_.byte('['), call, more, e_.byte(']'), mark(own_->close)});
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
  const OwnSpelling* const own_;  // null: the model spells calls in one of the forms of JSON
  const std::vector<ToolShape> own_tools_;
  const bool single_;
  Expr any_ = 0;
};

Expr CallGrammar::triggered() {
  const Expr blank = json_.blank();
  const Expr call = object("name", {"arguments", "parameters"});
  const Expr in_hermes = e_.sequence({mark(kHermes), blank, call, blank, mark(kHermesEnd)});
  const Expr others = single_ ? Expressions::kEmpty : e_.any_number(json_.then(call));
  const Expr list = json_.bracketed(e_.sequence(call, others));
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
  return e_.either({in_hermes, in_mistral, in_python, in_deepseek, in_harmony, spaced, control,
                    own_ != nullptr ? own_call() : Expressions::kNothing});
}

Expr CallGrammar::free_text(bool at_beginning) {
  std::vector<Expr> marks;
  for (const std::string_view text : kHeld) marks.push_back(e_.bytes(text));
  for (const OwnSpelling& own : kOwn) marks.push_back(e_.bytes(own.open));
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

Status read_tools(const GrammarRequest& request, const jinja::Value& list,
                  std::vector<GivenTool>* out) {
  if (!is_list(list)) return Status::error(Code::kInvalidArgument, "the tools are not a list");
  for (size_t i = 0; i < list.list->items.size(); ++i) {
    const SchemaValue& item = list.list->items[i];
    const SchemaValue* inner = member(item, "function");
    const SchemaValue& function = inner != nullptr ? *inner : item;
    GivenTool tool;
    tool.where = "tools[" + std::to_string(i) + "]";
    const SchemaValue* name = member(function, "name");
    if (name == nullptr || !name->is_string() || name->bytes().empty() ||
        name->bytes().size() > kMaxToolName) {
      return Status::error(Code::kInvalidArgument, "%s has no name of 1 to 256 bytes",
                           tool.where.c_str());
    }
    if (!request.tool.empty() && name->bytes() != request.tool) continue;
    tool.name = name->bytes();
    const SchemaValue* strict = member(function, "strict");
    const SchemaValue* parameters = member(function, "parameters");
    const bool described = parameters != nullptr && is_object(*parameters) &&
                           !parameters->dict->items.empty() &&
                           (strict == nullptr || !is_false(*strict));
    if (described) tool.schema = parameters;
    tool.strict = !request.lenient ||
                  (strict != nullptr && strict->is(jinja::Kind::kBool) && !is_false(*strict));
    out->push_back(std::move(tool));
  }
  if (!out->empty()) return Status::ok();
  return Status::error(Code::kInvalidArgument, "there is no function of that name among the tools");
}

// The tools with their arguments in a form.
Result<std::vector<ToolShape>> shapes_of(Expressions& e, JsonTexts& texts,
                                         const std::vector<GivenTool>& tools,
                                         std::vector<std::string>* notes) {
  std::vector<ToolShape> out;
  for (const GivenTool& tool : tools) {
    Expr arguments = texts.any_arguments();
    if (tool.schema != nullptr) {
      SchemaCompiler compiler(e, texts, SchemaDocument(tool.schema, tool.where + ".parameters"),
                              tool.strict, notes);
      SHARPI_TRY_ASSIGN(arguments, compiler.arguments());
    }
    out.push_back({tool.name, arguments});
  }
  return out;
}

// The same in the model's own form; the names stand there without quotes.
Result<std::vector<ToolShape>> own_shapes(Expressions& e, const OwnSpelling& own,
                                          const std::vector<GivenTool>& tools,
                                          std::vector<std::string>* notes) {
  JsonTexts texts(e, own.form);
  for (const GivenTool& tool : tools) {
    if (!texts.is_function_name(tool.name)) {
      return Status::error(Code::kUnsupported, "%s has a name that this model's calls cannot spell",
                           tool.where.c_str());
    }
  }
  return shapes_of(e, texts, tools, notes);
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
  std::vector<GivenTool> tools;
  SHARPI_TRY(read_tools(request, list, &tools));
  const OwnSpelling* own = own_spelling(request.chat_template);
  const bool in_text = !request.must_call && request.kind == GrammarKind::kAny;
  std::vector<ToolShape> shapes, in_own;
  if (in_text || own == nullptr) {
    SHARPI_TRY_ASSIGN(shapes, shapes_of(e, json, tools, notes));
  }
  if (own != nullptr) {
    SHARPI_TRY_ASSIGN(in_own, own_shapes(e, *own, tools, notes));
  }
  CallGrammar calls(e, json, std::move(shapes), own, std::move(in_own), request.single_call);
  if (in_text) return calls.text_with_calls();
  return request.must_call ? calls.calls() : e.either({content, calls.calls()});
}

}  // namespace sharpi::grammar
