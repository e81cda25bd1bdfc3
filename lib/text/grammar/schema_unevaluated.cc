// SPDX-License-Identifier: MIT
// unevaluatedProperties and unevaluatedItems: what a schema says of members and items that neither
// it nor a schema that is applied for it says anything of.
#include <algorithm>

#include "text/grammar/schema_compiler.h"

namespace sharpi::grammar {

SchemaPart applied(const SchemaPart& by, const SchemaValue& schema, std::string where) {
  SchemaPart out{&schema, std::move(where), 0, by.within, by.call};
  out.tagged = by.tagged;
  const bool sees = member(*by.schema, "unevaluatedProperties") != nullptr ||
                    member(*by.schema, "unevaluatedItems") != nullptr;
  if (sees) out.within.push_back(by.schema);
  return out;
}

void add_unevaluated(const SchemaParts& parts, const char* keyword,
                     const std::vector<bool>& describes, SchemaParts* out) {
  for (const SchemaPart& one : parts) {
    const SchemaValue* others = member(*one.schema, keyword);
    if (others == nullptr) continue;
    bool seen = false;
    for (size_t i = 0; i < parts.size() && !seen; ++i) {
      const auto& within = parts[i].within;
      const bool is_inner = std::find(within.begin(), within.end(), one.schema) != within.end();
      const bool says = describes[i] || member(*parts[i].schema, keyword) != nullptr;
      seen = is_inner ? says : parts[i].schema == one.schema && describes[i];
    }
    if (!seen) out->push_back({others, one.where + "." + keyword});
  }
}

}  // namespace sharpi::grammar
