// SPDX-License-Identifier: MIT
// Anthropic's conversations: how many tokens one has.
// Thread rule: pure functions.
#pragma once

#include "engine.h"
#include "fields.h"

namespace server {

/// What /v1/messages/count_tokens answers. Throws RequestError.
json count_anthropic(const json& body, const Engine& engine);

}  // namespace server
