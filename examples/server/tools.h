// SPDX-License-Identifier: MIT
// Functions that a model may call, and texts that it has to keep to: what a request says of both,
// and the constraint that follows from it.
// Thread rule: one thread an object.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine.h"
#include "fields.h"
#include "generation.h"

namespace server {

struct Tool {
  std::string name;
  std::optional<bool> strict;  // its arguments keep to its schema also where no call has to come
};

struct Tools {
  std::vector<Tool> list;
  std::string for_template;  // JSON array as templates take it; empty: none
  bool required = false;     // at least one call has to come
  std::string named;         // it has to be this one; empty: any
  bool parallel = true;      // several may come
};

/// What an answer's content has to be.
struct TextFormat {
  sharpi_grammar_kind kind = SHARPI_GRAMMAR_ANY;
  std::string text;      // of this kind
  std::string where;     // its place in the request
  bool lenient = false;  // what cannot be enforced is left out
};

/// `tools`, `tool_choice` and `parallel_tool_calls`. @param flat Responses' form: name and
/// parameters stand beside the type, not in "function". Throws RequestError.
Tools read_tools(Fields& fields, bool flat);
/// `response_format` of chat completions; or, flat, `text.format` of responses.
TextFormat read_text_format(const json* format, const std::string& where, bool flat);
/// Null where anything may come. @param unenforced nullable: gets the places of what a schema says
/// and nothing enforces. Throws RequestError for what cannot be enforced.
std::shared_ptr<Constraint> make_constraint(const Engine& engine, const Tokens& prompt,
                                            const Tools& tools, const TextFormat& format,
                                            std::vector<std::string>* unenforced = nullptr);

}  // namespace server
