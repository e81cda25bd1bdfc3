// SPDX-License-Identifier: MIT
// JSON schemas as the JSON texts that they allow. Several schemas that hold at once (allOf, $ref
// beside other keywords, a choice of anyOf) are one list of parts.
// Thread rule: one thread an object.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/grammar/json_numbers.h"
#include "text/grammar/json_texts.h"
#include "text/grammar/schema_document.h"
#include "text/tool_schemas.h"

namespace sharpi::grammar {

struct SchemaPart {
  const SchemaValue* schema;
  std::string where;
  uint32_t done = 0;  // kDone*: keywords that were dealt with
  /// Schemas with unevaluatedProperties or unevaluatedItems that this one is applied for: they see
  /// what it says of members and items.
  std::vector<const SchemaValue*> within = {};
  bool call = false;         // it describes the arguments of a call, not a value inside them
  uint32_t n_dependent = 0;  // dependencies of members that were dealt with
  bool added = false;        // what such a dependency comes to: the document does not say it
  bool tagged = false;       // it describes an argument that stands between tags as a text
};
using SchemaParts = std::vector<SchemaPart>;

/// A schema that holds for the same value: of allOf, anyOf, oneOf, $ref.
SchemaPart applied(const SchemaPart& by, const SchemaValue& schema, std::string where);
/// What unevaluatedProperties or unevaluatedItems of these parts say of a member or an item.
/// @param describes for each part, whether it says something of it by itself.
void add_unevaluated(const SchemaParts& parts, const char* keyword,
                     const std::vector<bool>& describes, SchemaParts* out);

class SchemaCompiler {
 public:
  /// @param strict what cannot be enforced is refused; otherwise it is noted.
  SchemaCompiler(Expressions& e, JsonTexts& json, SchemaDocument document, bool strict,
                 std::vector<std::string>* notes);

  /// The texts that the document allows. kUnsupported names the keyword by its place.
  Result<Expr> whole() { return whole(false); }
  /// The same as arguments of a call: an object, in the form that calls have for it.
  Result<Expr> arguments() { return whole(true); }

 private:
  static constexpr uint32_t kDoneAnyOf = 1, kDoneOneOf = 2, kDoneReferences = 4;
  static constexpr uint32_t kMaxDependencies = 6;  // of one object: each doubles it
  using Types = uint32_t;                          // bits of kNull, ...
  static constexpr Types kNull = 1, kBoolean = 2, kInteger = 4, kFraction = 8, kString = 16,
                         kObject = 32, kArray = 64, kAllTypes = 127;
  static constexpr Types kNumber = kInteger | kFraction;
  struct Deferred {
    Expr rule;
    SchemaParts parts;
  };
  struct Member {
    std::string name;
    SchemaParts parts;
    bool required = false;
    Expr pair = 0;
  };
  struct NamePattern {
    size_t part;
    Expr names;
    const SchemaValue* schema;
    std::string where;
  };
  struct ObjectShape {
    std::vector<Member> members;
    std::vector<NamePattern> patterns;
    std::vector<Expr> name_rules;  // of propertyNames
    uint32_t low = 0, high = Expressions::kAnyNumber;
    bool others = false;  // members that are not named were asked for
    bool call = false;    // they are the arguments of a call
  };

  Result<Expr> whole(bool call);
  Expr refuse(const std::string& where, const std::string& what);
  void note(const std::string& sentence);
  void unenforced(const std::string& where, const std::string& what);
  bool ok() { return status_.is_ok() && !e_.is_spent(); }

  Expr any(SchemaParts parts, int depth);
  bool flatten(const SchemaPart& part, SchemaParts* out, std::vector<const SchemaValue*>* open,
               bool* referred);
  bool flatten_inner(const SchemaPart& part, SchemaParts* out,
                     std::vector<const SchemaValue*>* open, bool* referred);
  void check_keywords(const SchemaPart& part);
  Expr deferred(SchemaParts parts);
  Expr choice(const SchemaParts& parts, size_t at, const char* keyword, int depth);
  Expr exactly_one(const SchemaParts& parts, const SchemaPart& at,
                   const std::vector<SchemaParts>& choices, std::vector<Expr> made);
  bool never_both(const SchemaParts& a, const SchemaParts& b);
  Expr plain(const SchemaParts& parts, int depth);

  bool types_of_part(const SchemaPart& part, Types* types);
  Types types_of(const SchemaParts& parts);
  Types possible_types(const SchemaParts& parts, int depth);
  Expr values(const SchemaParts& parts, Types types);
  bool allows(const SchemaParts& parts, Types types, const SchemaValue& value);
  bool matches(Expr regular, std::string_view text);

  Expr number(const SchemaParts& parts, Types types);
  bool read_range(const SchemaParts& parts, Types types, NumberRange* out);
  void read_bounds(const SchemaPart& part, NumberRange* out);
  void read_multiple(const SchemaPart& part, NumberRange* out);
  Expr string(const SchemaParts& parts);
  Expr string_terminal(const SchemaParts& parts);
  Expr pattern(std::string_view pattern, const std::string& where, JsonTexts& texts);
  void count(const SchemaPart& part, const char* name, uint32_t* out);

  Expr object(const SchemaParts& parts, int depth);
  bool read_object(const SchemaParts& parts, ObjectShape* out);
  void read_members(const SchemaParts& parts, ObjectShape* out);
  void add_member_parts(const SchemaParts& parts, ObjectShape* shape);
  Expr other_members(const SchemaParts& parts, const ObjectShape& shape, int depth);
  Expr other_names(const ObjectShape& shape, uint32_t matched);
  bool other_parts(const SchemaParts& parts, const ObjectShape& shape, uint32_t matched,
                   SchemaParts* out);
  Expr members_in_order(const ObjectShape& shape, Expr other, const std::string& where);
  struct Dependency {
    size_t part;
    std::string name;  // of the member that others depend on
    const SchemaValue* then;
    std::string where;
  };
  bool next_dependency(const SchemaParts& parts, Dependency* out);
  Expr either_way(const SchemaParts& parts, const Dependency& on, int depth);
  const SchemaValue* with_members(const std::vector<SchemaValue>& names);
  const SchemaValue* without_member(const std::string& name);
  JsonTexts& texts_of(const SchemaParts& parts) {
    return !parts.empty() && parts[0].tagged ? *json_.tagged() : json_;
  }
  Expr member_value(const ObjectShape& shape, std::string_view name, SchemaParts parts,
                    const std::string& where, int depth);
  Expr tagged_value(std::string_view name, const SchemaParts& parts, const std::string& where,
                    int depth);
  const SchemaValue* other_than_text(const ArgumentTypes& types);
  const SchemaValue* text_alone(bool or_null);
  Expr array(const SchemaParts& parts, int depth);
  Expr distinct_items(const std::vector<SchemaValue>& values, uint32_t low, uint32_t high);
  bool listed_values(const SchemaParts& parts, std::vector<SchemaValue>* out);

  Expressions& e_;
  JsonTexts& json_;
  const SchemaDocument document_;
  const bool strict_;
  std::vector<std::string>* notes_;
  Status status_;
  jinja::Heap heap_{uint64_t{8} << 20};  // of schemas that are added to the document's
  std::deque<SchemaValue> kept_;
  std::map<std::string, const SchemaValue*> added_;
  std::map<std::string, Expr> rules_;
  std::deque<Deferred> to_do_;
};

}  // namespace sharpi::grammar
