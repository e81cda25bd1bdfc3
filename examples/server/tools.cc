// SPDX-License-Identifier: MIT
#include "tools.h"

#include <algorithm>

#include "constraint.h"
#include "json_schema.h"
#include "reply.h"
#include "sse.h"

namespace server {
namespace {

constexpr uint32_t kMaxCalls = 16;

Tool read_tool(const json& tool, const std::string& where, bool flat) {
  Fields outer(tool, where);
  const std::string type = outer.text("type").value_or("function");
  if (type != "function") outer.refuse("type", "\"" + type + "\" is not supported: only functions");
  const json& inside = flat ? tool : outer.need("function");
  Fields f(inside, flat ? where : where + ".function");
  f.need("name");
  Tool out{f.text("name").value(), json()};
  if (out.name.empty() || out.name.size() > 128) f.refuse("name", "is not of 1 to 128 bytes");
  if (const json* parameters = f.find("parameters")) {
    if (!parameters->is_object()) f.refuse("parameters", "is not a schema");
    if (!parameters->empty()) out.parameters = *parameters;
  }
  f.ignore({"type", "description", "strict"});
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

// What control tokens or plain text can spell.
Expr mark(Grammar& g, const std::string& text) {
  const char control = static_cast<char>(TokenTrie::kControl);
  return g.either({g.bytes(text), g.bytes(control + text)});
}

// Calls in the form of Hermes, which sharpi_chat_parse() reads from every model.
Expr calls(Grammar& g, JsonGrammar& parts, const Tools& tools) {
  std::vector<Expr> choices;
  for (size_t i = 0; i < tools.list.size(); ++i) {
    const Tool& tool = tools.list[i];
    if (!tools.named.empty() && tool.name != tools.named) continue;
    const Expr arguments = tool.parameters.is_null()
                               ? parts.object()
                               : schema_grammar(g, parts, tool.parameters,
                                                "tools[" + std::to_string(i) + "].parameters");
    choices.push_back(g.sequence({g.bytes("{\"name\": "), parts.literal(tool.name),
                                  g.bytes(", \"arguments\": "), arguments, g.bytes("}")}));
  }
  const Expr call = g.sequence({mark(g, "<tool_call>"), g.bytes("\n"), g.either(choices),
                                g.bytes("\n"), mark(g, "</tool_call>")});
  if (!tools.parallel) return call;
  return g.sequence({call, g.repeat(g.sequence({g.bytes("\n"), call}), 0, kMaxCalls - 1)});
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
  out.parallel = fields.boolean("parallel_tool_calls").value_or(true);
  read_choice(fields, flat, &out);
  return out;
}

TextFormat read_text_format(const json* format, const std::string& where, bool flat) {
  TextFormat out;
  if (format == nullptr) return out;
  Fields f(*format, where);
  f.need("type");
  const std::string type = f.text("type").value();
  out.json = type != "text";
  if (type == "json_schema") {
    const json& inside = flat ? *format : f.need("json_schema");
    const std::string at = flat ? where : where + ".json_schema";
    Fields schema(inside, at);
    out.schema = schema.need("schema");
    out.where = at + ".schema";
    schema.ignore({"type", "name", "description", "strict"});
    schema.finish();
  } else if (type != "text" && type != "json_object") {
    f.refuse("type", "is not text, json_object or json_schema");
  }
  if (!flat || type != "json_schema") f.finish();
  return out;
}

std::shared_ptr<Constraint> make_constraint(const Engine& engine, const Tokens& prompt,
                                            const Tools& tools, const TextFormat& format) {
  if (!format.json && !tools.required) return nullptr;
  Grammar g;
  JsonGrammar parts(g);
  std::vector<Expr> choices;
  if (!tools.list.empty()) {
    try {
      choices.push_back(calls(g, parts, tools));
    } catch (const std::length_error&) {
      throw RequestError(400, "the schemas of tools are too large", "tools");
    }
  }
  if (!tools.required) {
    choices.push_back(format.schema ? schema_grammar(g, parts, *format.schema, format.where)
                                    : parts.object());
  }
  const Expr root = g.either(choices);
  g.settle(root);
  return std::make_shared<Constraint>(engine, std::move(g), root, prompt_end(engine, prompt));
}

}  // namespace server
