// SPDX-License-Identifier: MIT
// Whether a whole JSON text is valid for a schema: every keyword of JSON Schema 2020-12 and of the
// drafts before it but references that are resolved while checking ($dynamicRef), those that no
// grammar holds among them.
// Thread rule: pure functions.
#pragma once

#include <string_view>

#include "base/status.h"

namespace sharpi::grammar {

/// kMismatch: not valid, the text names the place in the value and the keyword; kInvalidArgument:
/// the schema is malformed, or the text is no JSON; kUnsupported: a reference that leads out of the
/// document, a pattern that is not regular; kDoesNotFit: too much work.
Status check_against_schema(std::string_view schema, std::string_view json);

}  // namespace sharpi::grammar
