// SPDX-License-Identifier: MIT
// A JSON Schema as a document: which keywords there are, and where references lead.
// Thread rule: one thread an object.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "text/jinja/value.h"

namespace sharpi::grammar {

using SchemaValue = jinja::Value;

/// What becomes of a keyword.
enum class KeywordUse : uint8_t {
  kEnforced,
  kAnnotation,  // says nothing about what matches
  kChecked,     // cannot be enforced while a text is written
  kUnknown,
};
KeywordUse use_of_keyword(std::string_view keyword);

class SchemaDocument {
 public:
  /// @param where what the root is called in sentences.
  SchemaDocument(const SchemaValue* root, std::string where);

  struct Place {
    const SchemaValue* schema = nullptr;  // null: there is none
    std::string where;
  };
  Place root() const { return {root_, where_}; }
  /// "#/a/b", "#name", or an $id of the document, with such a fragment or without.
  /// @param from the schema that refers: without an $id in front, it means the resource around it.
  Place resolve(std::string_view reference, const SchemaValue* from) const;

 private:
  void index(const SchemaValue& value, const std::string& where, const SchemaValue* resource,
             int depth);
  void index_names(const SchemaValue& value, const std::string& where, const SchemaValue* resource);
  Place pointed(Place from, std::string_view pointer) const;

  const SchemaValue* root_;
  const std::string where_;
  std::map<std::string, Place, std::less<>> resources_;                  // by $id
  std::map<std::pair<const SchemaValue*, std::string>, Place> anchors_;  // by resource and name
  std::map<const SchemaValue*, Place> around_;  // schemas within a resource that is not the root
};

/// A member of an object; null where there is none, or no object.
const SchemaValue* member(const SchemaValue& object, std::string_view name);
inline bool is_false(const SchemaValue& v) {
  return v.is(jinja::Kind::kBool) && !v.boolean;
}
inline bool is_object(const SchemaValue& v) {
  return v.is(jinja::Kind::kDict);
}
inline bool is_list(const SchemaValue& v) {
  return v.is(jinja::Kind::kList);
}
/// As JSON Schema compares: 1 is 1.0, and true is not 1.
bool same_json(const SchemaValue& a, const SchemaValue& b, int depth = 0);
/// A whole number from 0 to 2^31 - 1, also written as 3.0.
bool read_count(const SchemaValue& v, uint32_t* out);

}  // namespace sharpi::grammar
