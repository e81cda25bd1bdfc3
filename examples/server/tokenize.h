// SPDX-License-Identifier: MIT
// /v1/tokenize and /v1/detokenize: text and its tokens.
// Thread rule: pure functions.
#pragma once

#include "engine.h"
#include "fields.h"

namespace server {

/// The tokens of a text, or of a conversation. Both throw RequestError.
json tokenized(const json& body, const Engine& engine);
/// The text of tokens.
json detokenized(const json& body, const Engine& engine);

}  // namespace server
