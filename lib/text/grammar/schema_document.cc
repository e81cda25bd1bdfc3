// SPDX-License-Identifier: MIT
#include "text/grammar/schema_document.h"

#include <algorithm>
#include <cstdlib>

#include "text/grammar/json_numbers.h"
#include "text/grammar/json_texts.h"

namespace sharpi::grammar {
namespace {

constexpr int kMaxDepth = 80;

constexpr std::string_view kEnforcedKeywords[] = {"type",
                                                  "nullable",
                                                  "enum",
                                                  "const",
                                                  "anyOf",
                                                  "oneOf",
                                                  "allOf",
                                                  "$ref",
                                                  "properties",
                                                  "required",
                                                  "additionalProperties",
                                                  "patternProperties",
                                                  "propertyNames",
                                                  "minProperties",
                                                  "maxProperties",
                                                  "items",
                                                  "prefixItems",
                                                  "additionalItems",
                                                  "minItems",
                                                  "maxItems",
                                                  "uniqueItems",
                                                  "minLength",
                                                  "maxLength",
                                                  "pattern",
                                                  "format",
                                                  "minimum",
                                                  "maximum",
                                                  "exclusiveMinimum",
                                                  "exclusiveMaximum",
                                                  "multipleOf",
                                                  "dependentRequired",
                                                  "dependentSchemas",
                                                  "dependencies",
                                                  "unevaluatedProperties",
                                                  "unevaluatedItems",
                                                  "not"};

constexpr std::string_view kAnnotationKeywords[] = {"title",
                                                    "description",
                                                    "default",
                                                    "example",
                                                    "examples",
                                                    "$schema",
                                                    "$id",
                                                    "id",
                                                    "$anchor",
                                                    "$comment",
                                                    "$vocabulary",
                                                    "deprecated",
                                                    "readOnly",
                                                    "writeOnly",
                                                    "$defs",
                                                    "definitions",
                                                    "discriminator",
                                                    "contentEncoding",
                                                    "contentMediaType",
                                                    "contentSchema",
                                                    "propertyOrdering",
                                                    "markdownDescription",
                                                    "enumNames",
                                                    "enumDescriptions",
                                                    "externalDocs",
                                                    "xml",
                                                    "strict",
                                                    "then",
                                                    "else",
                                                    "minContains",
                                                    "maxContains",
                                                    "$dynamicAnchor"};

constexpr std::string_view kCheckedKeywords[] = {"if", "contains", "$dynamicRef", "$recursiveRef"};

template <size_t n>
bool is_among(const std::string_view (&list)[n], std::string_view what) {
  return std::find(std::begin(list), std::end(list), what) != std::end(list);
}

// ~1 and ~0 of JSON pointers, %XX of addresses.
std::string unescaped(std::string_view token) {
  std::string bytes, out;
  for (size_t i = 0; i < token.size(); ++i) {
    const std::string digits(token.substr(std::min(i + 1, token.size()), 2));
    char* end = nullptr;
    const long value = std::strtol(digits.c_str(), &end, 16);
    if (token[i] == '%' && digits.size() == 2 && end == digits.c_str() + 2) {
      bytes += static_cast<char>(value);
      i += 2;
    } else {
      bytes += token[i];
    }
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool escape =
        bytes[i] == '~' && i + 1 < bytes.size() && (bytes[i + 1] == '0' || bytes[i + 1] == '1');
    out += escape ? (bytes[++i] == '0' ? '~' : '/') : bytes[i];
  }
  return out;
}

}  // namespace

KeywordUse use_of_keyword(std::string_view keyword) {
  if (is_among(kEnforcedKeywords, keyword)) return KeywordUse::kEnforced;
  if (is_among(kAnnotationKeywords, keyword)) return KeywordUse::kAnnotation;
  if (keyword.starts_with("x-")) return KeywordUse::kAnnotation;
  return is_among(kCheckedKeywords, keyword) ? KeywordUse::kChecked : KeywordUse::kUnknown;
}

const SchemaValue* member(const SchemaValue& object, std::string_view name) {
  return is_object(object) ? object.dict->find(name) : nullptr;
}

bool same_json(const SchemaValue& a, const SchemaValue& b, int depth) {
  using jinja::Kind;
  const auto is_number = [](const SchemaValue& v) {
    return v.is(Kind::kInt) || v.is(Kind::kFloat) || v.is(Kind::kNumeral);
  };
  if (depth > kMaxDepth) return false;
  if (is_number(a) && is_number(b)) {
    Decimal first, second;
    return read_decimal(scalar_text(a), &first) && read_decimal(scalar_text(b), &second) &&
           compare(first, second) == 0;
  }
  if (a.kind != b.kind) return false;
  if (is_list(a)) {
    const auto &x = a.list->items, &y = b.list->items;
    return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                      [&](const auto& p, const auto& q) { return same_json(p, q, depth + 1); });
  }
  if (is_object(a)) {
    if (a.dict->items.size() != b.dict->items.size()) return false;
    return std::all_of(a.dict->items.begin(), a.dict->items.end(), [&](const auto& item) {
      const SchemaValue* other = member(b, item.first.bytes());
      return other != nullptr && same_json(item.second, *other, depth + 1);
    });
  }
  return scalar_text(a) == scalar_text(b);
}

bool read_count(const SchemaValue& v, uint32_t* out) {
  Decimal number;
  const bool is_number = v.is(jinja::Kind::kInt) || v.is(jinja::Kind::kFloat);
  if (!is_number || !read_decimal(scalar_text(v), &number)) return false;
  if (number.negative || !number.is_integer() || number.whole.size() > 10) return false;
  const unsigned long long value = std::strtoull(number.whole.c_str(), nullptr, 10);
  *out = static_cast<uint32_t>(value);
  return value <= 0x7FFFFFFF;
}

SchemaDocument::SchemaDocument(const SchemaValue* root, std::string where)
    : root_(root), where_(std::move(where)) {
  index(*root_, where_, root_, 0);
}

// Names that a schema gives itself, within the resource that it belongs to.
void SchemaDocument::index_names(const SchemaValue& value, const std::string& where,
                                 const SchemaValue* resource) {
  for (const char* keyword : {"$anchor", "$dynamicAnchor"}) {
    const SchemaValue* anchor = member(value, keyword);
    if (anchor == nullptr || !anchor->is_string()) continue;
    anchors_.try_emplace({resource, std::string(anchor->bytes())}, Place{&value, where});
  }
  for (const char* keyword : {"$id", "id"}) {
    const SchemaValue* given = member(value, keyword);
    if (given == nullptr || !given->is_string()) continue;
    std::string id(given->bytes());
    if (id.starts_with('#')) {  // as drafts before 2019-09 have it
      anchors_.try_emplace({resource, id.substr(1)}, Place{&value, where});
      continue;
    }
    if (id.ends_with('#')) id.pop_back();
    if (!id.empty()) resources_.try_emplace(std::move(id), Place{&value, where});
  }
}

void SchemaDocument::index(const SchemaValue& value, const std::string& where,
                           const SchemaValue* resource, int depth) {
  if (depth > kMaxDepth) return;
  if (is_list(value)) {
    for (size_t i = 0; i < value.list->items.size(); ++i) {
      const SchemaValue& item = value.list->items[i];
      if (is_object(item)) index(item, where + "[" + std::to_string(i) + "]", resource, depth + 1);
    }
    return;
  }
  if (!is_object(value)) return;
  const SchemaValue* id = member(value, "$id");
  const bool begins_one = id != nullptr && id->is_string() && !id->bytes().starts_with('#');
  if (begins_one && &value != root_) around_[resource = &value] = Place{&value, where};
  if (resource != root_) around_.try_emplace(&value, around_.at(resource));
  index_names(value, where, resource);
  for (const auto& [key, item] : value.dict->items) {
    const std::string_view name = key.bytes();
    const bool is_data =
        name == "enum" || name == "const" || name == "default" || name == "examples";
    if (!is_data && (is_object(item) || is_list(item))) {
      index(item, where + "." + std::string(name), resource, depth + 1);
    }
  }
}

SchemaDocument::Place SchemaDocument::pointed(Place from, std::string_view pointer) const {
  while (!pointer.empty() && from.schema != nullptr) {
    pointer.remove_prefix(1);
    const size_t end = std::min(pointer.find('/'), pointer.size());
    const std::string token = unescaped(pointer.substr(0, end));
    pointer.remove_prefix(end);
    const SchemaValue* next = member(*from.schema, token);
    if (is_list(*from.schema) && !token.empty() && token.size() < 8 &&
        token.find_first_not_of("0123456789") == token.npos) {
      const auto at = static_cast<size_t>(std::atoi(token.c_str()));
      if (at < from.schema->list->items.size()) next = &from.schema->list->items[at];
    }
    from = {next, from.where + "." + token};
  }
  return from;
}

SchemaDocument::Place SchemaDocument::resolve(std::string_view reference,
                                              const SchemaValue* from) const {
  const size_t hash = std::min(reference.find('#'), reference.size());
  Place resource = root();
  if (hash > 0) {
    const auto found = resources_.find(reference.substr(0, hash));
    if (found == resources_.end()) return {};
    resource = found->second;
  } else if (const auto found = around_.find(from); found != around_.end()) {
    resource = found->second;
  }
  if (hash + 1 >= reference.size()) return resource;
  const std::string_view fragment = reference.substr(hash + 1);
  if (fragment[0] == '/') return pointed(std::move(resource), fragment);
  const auto found = anchors_.find({resource.schema, std::string(fragment)});
  return found == anchors_.end() ? Place{} : found->second;
}

}  // namespace sharpi::grammar
