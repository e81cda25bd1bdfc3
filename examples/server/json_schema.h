// SPDX-License-Identifier: MIT
// JSON schemas as grammars of the JSON texts that they allow. A subset, which docs/server.md lists;
// everything else is refused by its name.
// Thread rule: one thread an object.
#pragma once

#include <map>
#include <span>
#include <string>

#include "fields.h"
#include "grammar.h"

namespace server {

/// JSON's own parts. Whitespace is bounded, and so are the digits of numbers.
class JsonGrammar {
 public:
  explicit JsonGrammar(Grammar& grammar);

  Expr value() const { return value_; }
  Expr object() const { return object_; }
  Expr array() const { return array_; }
  Expr string() const { return string_; }
  Expr number() const { return number_; }
  Expr integer() const { return integer_; }
  Expr boolean() const { return boolean_; }
  Expr null() const { return null_; }
  Expr blank() const { return blank_; }
  Expr string_of_length(uint32_t low, uint32_t high);
  /// A list in brackets of `low` to `high` items.
  Expr list(Expr item, uint32_t low, uint32_t high);
  /// A key, a colon and a value.
  Expr pair(Expr key, Expr value);
  Expr literal(const json& value);
  /// A key that is none of these.
  Expr other_key(std::vector<std::string> keys);

 private:
  void make_string();
  void make_number();
  Expr key_from(std::span<const std::string> keys, size_t n);

  Grammar& g_;
  Expr character_ = 0, plain_character_ = 0, blank_ = 0;
  Expr string_ = 0, number_ = 0, integer_ = 0, boolean_ = 0, null_ = 0;
  Expr value_ = 0, object_ = 0, array_ = 0;
};

/// The texts that a schema allows. Throws RequestError naming the keyword that is not supported;
/// `where` is the schema's place in the request.
Expr schema_grammar(Grammar& grammar, JsonGrammar& parts, const json& schema,
                    const std::string& where);

}  // namespace server
