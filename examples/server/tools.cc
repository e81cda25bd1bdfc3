// SPDX-License-Identifier: MIT
#include "tools.h"

#include <algorithm>

#include "constraint.h"
#include "grammar_cache.h"
#include "reply.h"
#include "sse.h"

namespace server {
namespace {

Tool read_tool(const json& tool, const std::string& where, bool flat) {
  Fields outer(tool, where);
  const std::string type = outer.text("type").value_or("function");
  if (type != "function") outer.refuse("type", "\"" + type + "\" is not supported: only functions");
  const json& inside = flat ? tool : outer.need("function");
  Fields f(inside, flat ? where : where + ".function");
  f.need("name");
  Tool out{f.text("name").value(), std::nullopt};
  if (out.name.empty() || out.name.size() > 128) f.refuse("name", "is not of 1 to 128 bytes");
  if (const json* parameters = f.find("parameters")) {
    if (!parameters->is_object()) f.refuse("parameters", "is not a schema");
  }
  out.strict = f.boolean("strict");
  f.ignore({"type", "description"});
  f.finish();
  if (!flat) outer.finish();
  return out;
}

void read_choice(Fields& fields, bool flat, Tools* tools) {
  const json* choice = fields.find("tool_choice");
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    tools->list.clear();
    tools->for_template.clear();
    return;
  }
  tools->required = true;
  if (choice->is_object()) {
    Fields f(*choice, "tool_choice");
    f.only("type", "function", "only functions are called");
    const json& inside = flat ? *choice : f.need("function");
    Fields named(inside, flat ? "tool_choice" : "tool_choice.function");
    named.need("name");
    tools->named = named.text("name").value();
  } else if (*choice != "required") {
    fields.refuse("tool_choice", "is not none, auto, required or a function");
  }
  const bool known = std::any_of(tools->list.begin(), tools->list.end(), [&](const Tool& tool) {
    return tools->named.empty() || tool.name == tools->named;
  });
  if (!known) fields.refuse("tool_choice", "asks for a function that tools does not have");
}

// Where a call has to come, every schema holds, but for those that say "strict": false; otherwise
// those that say "strict": true. Empty: no call has to keep to anything.
std::string tools_to_enforce(const Tools& tools, bool other_format) {
  const bool all = tools.required || other_format;
  const bool any_strict = std::any_of(tools.list.begin(), tools.list.end(),
                                      [](const Tool& tool) { return tool.strict.value_or(false); });
  if (tools.list.empty() || (!all && !any_strict)) return "";
  if (all) return tools.for_template;
  json list = json::parse(tools.for_template);
  for (json& tool : list) {
    json& function = tool.contains("function") ? tool["function"] : tool;
    if (!function.contains("strict") || function["strict"] != json(true)) {
      function["strict"] = false;
    }
  }
  return dump(list);
}

// Other notations would come out as mistakes in their first line.
void check_syntax(Fields& f, const std::string& grammar) {
  const std::string syntax = f.text("syntax").value_or("gbnf");
  if (syntax != "gbnf") f.refuse("syntax", "\"" + syntax + "\" is not supported: only GBNF is");
  if (grammar.find("::=") == std::string::npos) {
    f.refuse("grammar",
             "has no rule as GBNF writes it (root ::= ...): only GBNF is taken, not Lark");
  }
}

// The library calls the schema "schema": here it is what the request calls it.
std::string placed(std::string sentence, const std::string& where) {
  if (!where.empty() && sentence.starts_with("schema")) sentence.replace(0, 6, where);
  return sentence;
}

// What a sentence begins with, for a header: names within it are the client's.
std::string place_of(const std::string& sentence) {
  std::string out = sentence.substr(0, std::min<size_t>(sentence.find(' '), 100));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c <= ' ' || c > '~' || c == ','; }, '?');
  return out;
}

}  // namespace

Tools read_tools(Fields& fields, bool flat) {
  Tools out;
  const json* tools = fields.find("tools");
  if (tools != nullptr) {
    if (!tools->is_array()) fields.refuse("tools", "is not a list");
    json list = json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      const json& tool = (*tools)[i];
      out.list.push_back(read_tool(tool, "tools[" + std::to_string(i) + "]", flat));
      if (flat) {
        json function = tool;
        function.erase("type");
        list.push_back({{"type", "function"}, {"function", function}});
      } else {
        list.push_back(tool);
      }
    }
    if (!list.empty()) out.for_template = dump(list);
  }
  const std::optional<bool> parallel = fields.boolean("parallel_tool_calls");
  read_choice(fields, flat, &out);
  // Who names a function waits for one call of it; small models would go on calling.
  out.parallel = parallel.value_or(out.named.empty());
  return out;
}

TextFormat read_text_format(const json* format, const std::string& where, bool flat) {
  TextFormat out;
  if (format == nullptr) return out;
  Fields f(*format, where);
  f.need("type");
  const std::string type = f.text("type").value();
  if (type == "json_object") {
    out = {SHARPI_GRAMMAR_JSON_SCHEMA, R"({"type": "object"})", where, false};
  } else if (type == "json_schema") {
    const json& inside = flat ? *format : f.need("json_schema");
    const std::string at = flat ? where : where + ".json_schema";
    Fields schema(inside, at);
    out = {SHARPI_GRAMMAR_JSON_SCHEMA, dump(schema.need("schema")), at + ".schema",
           !schema.boolean("strict").value_or(true)};
    schema.ignore({"type", "name", "description"});
    schema.finish();
  } else if (type == "regex" || type == "grammar") {
    f.need(type.c_str());
    out = {type == "regex" ? SHARPI_GRAMMAR_REGEX : SHARPI_GRAMMAR_GBNF,
           f.text(type.c_str()).value(), where + "." + type, false};
    if (type == "grammar") check_syntax(f, out.text);
  } else if (type != "text") {
    f.refuse("type", "is not text, json_object, json_schema, regex or grammar");
  }
  if (!flat || type != "json_schema") f.finish();
  return out;
}

std::shared_ptr<Constraint> make_constraint(const Engine& engine, const Tokens& prompt,
                                            const Tools& tools, const TextFormat& format,
                                            std::vector<std::string>* unenforced) {
  GrammarRequest request;
  const bool has_format = format.kind != SHARPI_GRAMMAR_ANY;
  request.tools = tools_to_enforce(tools, has_format);
  if (!has_format && request.tools.empty()) return nullptr;
  if (!tools.required) {
    request.kind = format.kind;
    request.text = format.text;
  } else {
    request.flags |= SHARPI_GRAMMAR_MUST_CALL;
    request.tool = tools.named;
  }
  if (!request.tools.empty() && !tools.parallel) request.flags |= SHARPI_GRAMMAR_SINGLE_CALL;
  // Schemas of tools come from servers that nobody here has written: what they say besides is left
  // to whoever is called, unless they ask for more.
  const bool only_tools = request.kind == SHARPI_GRAMMAR_ANY;
  if (only_tools || format.lenient) request.flags |= SHARPI_GRAMMAR_LENIENT;
  try {
    const auto grammar = engine.grammars().find(engine.model(), request);
    for (size_t i = 0; unenforced != nullptr && i < grammar->notes.size(); ++i) {
      unenforced->push_back(place_of(placed(grammar->notes[i], format.where)));
    }
    return std::make_shared<Constraint>(grammar->handle.get(), prompt_end(engine, prompt),
                                        !only_tools);
  } catch (const LibraryError& e) {
    if (e.status() == SHARPI_E_OUT_OF_MEMORY || e.status() == SHARPI_E_INTERNAL) throw;
    const std::string sentence = placed(e.what(), format.where);
    const size_t end = sentence.find(' ');
    const bool is_path =
        sentence.starts_with("tools[") ||
        (end != sentence.npos && !format.where.empty() && sentence.starts_with(format.where));
    const std::string param = is_path                ? sentence.substr(0, end)
                              : format.where.empty() ? "tools"
                                                     : format.where;
    throw RequestError(400, sentence, param, "unsupported_schema");
  }
}

}  // namespace server
