// SPDX-License-Identifier: MIT
// Calls of functions in generated text, with arguments that keep to the functions' schemas, in the
// spellings that chat_parse.h reads.
// Thread rule: pure functions over the given objects.
#pragma once

#include <string>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/grammar/json_texts.h"

namespace sharpi::grammar {

/// Any tokens.
Expr any_text(Expressions& e);

/// `content`, or calls of the request's tools. Where anything may be written, a call may begin
/// anywhere, and keeps to its schema from there on. A call that has to come is written as the
/// model's template does where that is no JSON, otherwise as Hermes does. kUnsupported: a schema,
/// or a name that the spelling has no way to write.
Result<Expr> with_tool_calls(Expressions& e, JsonTexts& json, const GrammarRequest& request,
                             Expr content, jinja::Heap* heap, std::vector<std::string>* notes);

}  // namespace sharpi::grammar
