// SPDX-License-Identifier: MIT
#include "text/grammar/schema_compiler.h"

#include <algorithm>

namespace sharpi::grammar {
namespace {

constexpr int kMaxLevels = 120;  // of schemas within schemas, each a call within a call
constexpr size_t kMaxNotes = 256;

// A keyword that is enforced and was not dealt with yet.
bool has_more(const SchemaPart& part, uint32_t done_any_of, uint32_t done_one_of) {
  const auto& items = part.schema->dict->items;
  return std::any_of(items.begin(), items.end(), [&](const auto& item) {
    const std::string_view name = item.first.bytes();
    if (use_of_keyword(name) != KeywordUse::kEnforced || name == "$ref" || name == "allOf" ||
        name == "not") {
      return false;
    }
    if (name == "anyOf") return (part.done & done_any_of) == 0;
    return name != "oneOf" || (part.done & done_one_of) == 0;
  });
}

}  // namespace

SchemaCompiler::SchemaCompiler(Expressions& e, JsonTexts& json, SchemaDocument document,
                               bool strict, std::vector<std::string>* notes)
    : e_(e), json_(json), document_(std::move(document)), strict_(strict), notes_(notes) {}

Expr SchemaCompiler::refuse(const std::string& where, const std::string& what) {
  if (status_.is_ok()) {
    status_ = Status::error(Code::kUnsupported, "%.300s %.160s", where.c_str(), what.c_str());
  }
  return Expressions::kNothing;
}

void SchemaCompiler::note(const std::string& sentence) {
  const bool is_new = std::find(notes_->begin(), notes_->end(), sentence) == notes_->end();
  if (is_new && notes_->size() < kMaxNotes) notes_->push_back(sentence);
}

void SchemaCompiler::unenforced(const std::string& where, const std::string& what) {
  if (strict_) {
    refuse(where, what);
    return;
  }
  note(where + " " + what);
}

Result<Expr> SchemaCompiler::whole(bool call) {
  const SchemaDocument::Place root = document_.root();
  const Expr out = any({{root.schema, root.where, 0, {}, call}}, 0);
  // What was referred to is made by itself, not where it was met: chains of references are as long
  // as somebody likes.
  for (; !to_do_.empty() && ok(); to_do_.pop_front()) {
    const Deferred next = to_do_.front();
    e_.define(next.rule, plain(next.parts, 0));
  }
  if (!status_.is_ok()) return status_;
  return out;
}

void SchemaCompiler::check_keywords(const SchemaPart& part) {
  for (const auto& [key, value] : part.schema->dict->items) {
    const std::string name(key.bytes());
    switch (use_of_keyword(name)) {
      case KeywordUse::kEnforced:
      case KeywordUse::kAnnotation:
        break;
      case KeywordUse::kChecked:
        unenforced(part.where + "." + name, "cannot be enforced while a text is written");
        break;
      case KeywordUse::kUnknown:
        unenforced(part.where + "." + name, "is not a keyword that is known");
        break;
    }
  }
  const SchemaValue* inverted = member(*part.schema, "not");
  const bool never = inverted != nullptr && is_object(*inverted) && inverted->dict->items.empty();
  if (inverted != nullptr && !never) {
    unenforced(part.where + ".not", "cannot be enforced while a text is written");
  }
}

// Adds a schema, and what it refers to and merges, to a list of parts. False: nothing matches.
bool SchemaCompiler::flatten(const SchemaPart& part, SchemaParts* out,
                             std::vector<const SchemaValue*>* open, bool* referred) {
  if (!e_.spend(1) || !status_.is_ok()) return false;
  const SchemaValue& schema = *part.schema;
  if (schema.is(jinja::Kind::kBool)) return schema.boolean;
  if (!is_object(schema)) return refuse(part.where, "is not a schema"), false;
  const bool known = std::any_of(out->begin(), out->end(), [&](const SchemaPart& other) {
    return other.schema == part.schema && (other.done & part.done) == other.done &&
           other.within == part.within;
  });
  if (known) return true;
  if ((part.done & kDoneReferences) != 0) {
    out->push_back(part);
    return true;
  }
  if (std::find(open->begin(), open->end(), &schema) != open->end()) {
    return refuse(part.where, "refers to itself without an end"), false;
  }
  if (open->size() > kMaxLevels) return refuse(part.where, "goes through too many $ref"), false;
  open->push_back(&schema);
  const bool possible = flatten_inner(part, out, open, referred);
  open->pop_back();
  return possible;
}

bool SchemaCompiler::flatten_inner(const SchemaPart& part, SchemaParts* out,
                                   std::vector<const SchemaValue*>* open, bool* referred) {
  const SchemaValue& schema = *part.schema;
  check_keywords(part);
  const SchemaValue* inverted = member(schema, "not");
  if (inverted != nullptr && is_object(*inverted) && inverted->dict->items.empty()) return false;
  SchemaPart own = part;
  own.done |= kDoneReferences;
  out->push_back(own);
  if (const SchemaValue* reference = member(schema, "$ref")) {
    const std::string at = part.where + ".$ref";
    if (!reference->is_string()) return refuse(at, "is not a text"), false;
    const auto target = document_.resolve(reference->bytes(), &schema);
    if (target.schema == nullptr) return refuse(at, "leads to nothing in this document"), false;
    *referred = true;
    const SchemaPart next = applied(part, *target.schema, target.where);
    if (!flatten(next, out, open, referred)) return false;
  }
  if (const SchemaValue* all = member(schema, "allOf")) {
    const std::string at = part.where + ".allOf";
    if (!is_list(*all)) return refuse(at, "is not a list of schemas"), false;
    for (size_t i = 0; i < all->list->items.size(); ++i) {
      const SchemaPart next =
          applied(part, all->list->items[i], at + "[" + std::to_string(i) + "]");
      if (!flatten(next, out, open, referred)) return false;
    }
  }
  return true;
}

Expr SchemaCompiler::any(SchemaParts parts, int depth) {
  if (!ok()) return Expressions::kNothing;
  if (depth > kMaxLevels) return refuse(parts.at(0).where, "is nested too deeply");
  SchemaParts flat;
  std::vector<const SchemaValue*> open;
  bool referred = false;
  const bool call = parts.at(0).call;
  for (const SchemaPart& part : parts) {
    if (!flatten(part, &flat, &open, &referred)) return Expressions::kNothing;
  }
  // Chains of references would carry along what they went through.
  std::erase_if(flat,
                [](const SchemaPart& part) { return !has_more(part, kDoneAnyOf, kDoneOneOf); });
  if (flat.empty()) return call ? json_.any_arguments() : json_.value();
  return referred ? deferred(std::move(flat)) : plain(flat, depth);
}

Expr SchemaCompiler::deferred(SchemaParts parts) {
  std::vector<std::string> sorted;
  for (const SchemaPart& part : parts) {
    std::string one(reinterpret_cast<const char*>(&part.schema), sizeof part.schema);
    one.append(reinterpret_cast<const char*>(&part.done), sizeof part.done);
    for (const SchemaValue* outer : part.within) {
      one.append(reinterpret_cast<const char*>(&outer), sizeof outer);
    }
    one += part.call ? 'c' : part.tagged ? 't' : 'v';
    one += std::to_string(part.n_dependent);
    sorted.push_back(std::to_string(one.size()) + one);
  }
  std::sort(sorted.begin(), sorted.end());
  std::string key;
  for (const std::string& one : sorted) key += one;
  const auto [found, is_new] = rules_.try_emplace(std::move(key), Expressions::kNothing);
  if (!is_new) return found->second;
  found->second = e_.rule();
  to_do_.push_back({found->second, std::move(parts)});
  return found->second;
}

// Parts without references and allOf. Choices are made one after the other.
Expr SchemaCompiler::plain(const SchemaParts& parts, int depth) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const SchemaPart& part = parts[i];
    if ((part.done & kDoneAnyOf) == 0 && member(*part.schema, "anyOf") != nullptr) {
      return choice(parts, i, "anyOf", depth);
    }
    if ((part.done & kDoneOneOf) == 0 && member(*part.schema, "oneOf") != nullptr) {
      return choice(parts, i, "oneOf", depth);
    }
  }
  const Types types = types_of(parts);
  const auto has = [&](const char* name) {
    return std::any_of(parts.begin(), parts.end(), [&](const SchemaPart& part) {
      return member(*part.schema, name) != nullptr;
    });
  };
  if (has("enum") || has("const")) return values(parts, types);
  std::vector<Expr> choices;
  if ((types & kNull) != 0) choices.push_back(json_.null());
  if ((types & kBoolean) != 0) choices.push_back(json_.boolean());
  if ((types & kNumber) != 0) choices.push_back(number(parts, types));
  if ((types & kString) != 0) choices.push_back(string(parts));
  if ((types & kObject) != 0) choices.push_back(object(parts, depth));
  if ((types & kArray) != 0) choices.push_back(array(parts, depth));
  return e_.either(std::move(choices));
}

}  // namespace sharpi::grammar
