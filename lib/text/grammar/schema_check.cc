// SPDX-License-Identifier: MIT
#include "text/grammar/schema_check.h"

#include "text/grammar/json_numbers.h"
#include "text/grammar/json_texts.h"
#include "text/grammar/pattern.h"
#include "text/grammar/schema_checker.h"
#include "text/jinja/json.h"

namespace sharpi::grammar {
namespace {

using jinja::Kind;

bool is_numeric(const SchemaValue& v) {
  return v.is(Kind::kInt) || v.is(Kind::kFloat) || v.is(Kind::kNumeral);
}

size_t n_characters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// Digits of a number with so many behind the point.
std::string digits_of(const Decimal& number, size_t n_fraction) {
  std::string out = number.whole + number.fraction;
  return out.append(n_fraction - number.fraction.size(), '0');
}

}  // namespace

std::string path_of(const ValuePlace& place) {
  if (place.within == nullptr) return "$";
  const std::string outer = path_of(*place.within);
  if (place.index != SIZE_MAX) return outer + "[" + std::to_string(place.index) + "]";
  return outer + "." + std::string(place.name.substr(0, 80));
}

void append_canonical(const SchemaValue& v, std::string* out) {
  Decimal number;
  if (is_numeric(v) && read_decimal(scalar_text(v), &number)) {
    *out +=
        (number.negative && !number.is_zero() ? "-" : "") + number.whole + "." + number.fraction;
  } else if (is_list(v)) {
    *out += '[';
    for (const SchemaValue& item : v.list->items) {
      append_canonical(item, out);
      *out += ',';
    }
    *out += ']';
  } else if (is_object(v)) {
    std::map<std::string_view, const SchemaValue*> sorted;
    for (const auto& [key, value] : v.dict->items) sorted.emplace(key.bytes(), &value);
    *out += '{';
    for (const auto& [key, value] : sorted) {
      *out += spelled(key, Spelling::kJson) + "\":";
      append_canonical(*value, out);
      *out += ',';
    }
    *out += '}';
  } else {
    *out += scalar_text(v);
  }
}

bool SchemaChecker::check(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place,
                          Seen* seen) {
  if (broken_) return false;
  if (schema.is(Kind::kBool)) return schema.boolean || no(place, "may not be there", "false");
  if (!is_object(schema)) return fail(Code::kInvalidArgument, "the schema has a part that is none");
  if (left_ == 0 || --left_ == 0)
    return fail(Code::kDoesNotFit, "checking the text takes too much work");
  if (depth_ == kMaxLevels) {
    return fail(Code::kDoesNotFit, "the schema is nested too deeply, or refers to itself");
  }
  ++depth_;
  Seen own(seen->size());
  bool out =
      types(schema, v, place) && applied(schema, v, place, &own) && choices(schema, v, place, &own);
  if (out && is_numeric(v)) out = number(schema, v, place);
  if (out && v.is_string()) out = string(schema, v.bytes(), place);
  if (out && is_list(v)) out = array(schema, v, place, &own);
  if (out && is_object(v)) out = object(schema, v, place, &own);
  out = out && unevaluated(schema, v, place, &own);
  add_seen(own, seen);
  --depth_;
  return out && !broken_;
}

bool SchemaChecker::types(const SchemaValue& schema, const SchemaValue& v,
                          const ValuePlace& place) {
  if (const SchemaValue* type = member(schema, "type")) {
    Decimal decimal;
    const bool integer =
        is_numeric(v) && read_decimal(scalar_text(v), &decimal) && decimal.is_integer();
    const auto is = [&](const SchemaValue& name) {
      if (!name.is_string()) return false;
      const std::string_view n = name.bytes();
      return (n == "null" && v.is(Kind::kNone)) || (n == "boolean" && v.is(Kind::kBool)) ||
             (n == "integer" && integer) || (n == "number" && is_numeric(v)) ||
             (n == "string" && v.is_string()) || (n == "array" && is_list(v)) ||
             (n == "object" && is_object(v));
    };
    const SchemaValue* nullable = member(schema, "nullable");
    const bool may_be_null = nullable != nullptr && jinja::truthy(*nullable);
    const bool fits = is_list(*type)
                          ? std::any_of(type->list->items.begin(), type->list->items.end(), is)
                          : is(*type);
    if (!fits && !(may_be_null && v.is(Kind::kNone))) return no(place, "has another type", "type");
  }
  if (const SchemaValue* only = member(schema, "const")) {
    if (!same_json(*only, v)) return no(place, "is another value", "const");
  }
  const SchemaValue* list = member(schema, "enum");
  if (list == nullptr) return true;
  if (!is_list(*list)) return fail(Code::kInvalidArgument, "an enum of the schema is no list");
  const auto [listed, is_new] = listed_.try_emplace(list);
  for (size_t i = 0; is_new && i < list->list->items.size(); ++i) {
    std::string text;
    append_canonical(list->list->items[i], &text);
    listed->second.insert(std::move(text));
  }
  std::string text;
  append_canonical(v, &text);
  return listed->second.contains(text) || no(place, "is none of the listed values", "enum");
}

// Schemas that hold for the same value in any case.
bool SchemaChecker::applied(const SchemaValue& schema, const SchemaValue& v,
                            const ValuePlace& place, Seen* seen) {
  if (const SchemaValue* reference = member(schema, "$ref")) {
    const auto target = reference->is_string() ? document_.resolve(reference->bytes(), &schema)
                                               : SchemaDocument::Place{};
    if (target.schema == nullptr) {
      return fail(Code::kUnsupported, "a $ref of the schema leads to nothing in it");
    }
    if (!check(*target.schema, v, place, seen)) return false;
  }
  for (const char* keyword : {"$dynamicRef", "$recursiveRef"}) {
    if (member(schema, keyword) == nullptr) continue;
    return fail(Code::kUnsupported, std::string(keyword) + " is not followed");
  }
  const SchemaValue* all = member(schema, "allOf");
  if (all == nullptr) return true;
  if (!is_list(*all)) return fail(Code::kInvalidArgument, "an allOf of the schema is no list");
  return std::all_of(all->list->items.begin(), all->list->items.end(),
                     [&](const SchemaValue& one) { return check(one, v, place, seen); });
}

bool SchemaChecker::choices(const SchemaValue& schema, const SchemaValue& v,
                            const ValuePlace& place, Seen* seen) {
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const SchemaValue* list = member(schema, keyword);
    if (list == nullptr) continue;
    if (!is_list(*list)) return fail(Code::kInvalidArgument, "a choice of the schema is no list");
    size_t n = 0;
    for (const SchemaValue& one : list->list->items) n += fits(one, v, place, seen) ? 1 : 0;
    const bool is_one = keyword[0] == 'o';
    if (n == 0) return no(place, "fits none of the alternatives", keyword);
    if (is_one && n > 1) return no(place, "fits more than one of the alternatives", keyword);
  }
  if (const SchemaValue* inverted = member(schema, "not")) {
    if (fits_child(*inverted, v, place)) return no(place, "is what it must not be", "not");
  }
  const SchemaValue* condition = member(schema, "if");
  if (condition == nullptr) return !broken_;
  const bool holds = fits(*condition, v, place, seen);
  const SchemaValue* then = member(schema, holds ? "then" : "else");
  return !broken_ && (then == nullptr || check(*then, v, place, seen));
}

bool SchemaChecker::number(const SchemaValue& schema, const SchemaValue& v,
                           const ValuePlace& place) {
  Decimal value, bound;
  const auto read = [&](const SchemaValue* given) {
    return given != nullptr && is_numeric(*given) && read_decimal(scalar_text(*given), &bound);
  };
  if (!read_decimal(scalar_text(v), &value)) {
    return no(place, "is a number beyond what is compared", "minimum");
  }
  const auto is_true = [](const SchemaValue* given) {  // as drafts before 6 have it
    return given != nullptr && given->is(Kind::kBool) && given->boolean;
  };
  const SchemaValue *low = member(schema, "exclusiveMinimum"),
                    *high = member(schema, "exclusiveMaximum");
  if (read(member(schema, "minimum"))) {
    const int order = compare(value, bound);
    if (order < 0 || (order == 0 && is_true(low))) return no(place, "is too small", "minimum");
  }
  if (read(member(schema, "maximum"))) {
    const int order = compare(value, bound);
    if (order > 0 || (order == 0 && is_true(high))) return no(place, "is too large", "maximum");
  }
  if (read(low) && compare(value, bound) <= 0) return no(place, "is too small", "exclusiveMinimum");
  if (read(high) && compare(value, bound) >= 0)
    return no(place, "is too large", "exclusiveMaximum");
  const SchemaValue* multiple_of = member(schema, "multipleOf");
  return multiple_of == nullptr || multiple(*multiple_of, value, place);
}

bool SchemaChecker::multiple(const SchemaValue& given, const Decimal& number,
                             const ValuePlace& place) {
  Decimal divisor;
  if (!is_numeric(given) || !read_decimal(scalar_text(given), &divisor) || divisor.negative ||
      divisor.is_zero()) {
    return fail(Code::kInvalidArgument, "a multipleOf of the schema is no number above 0");
  }
  const size_t n_fraction = std::max(number.fraction.size(), divisor.fraction.size());
  const std::string steps = digits_of(divisor, n_fraction), digits = digits_of(number, n_fraction);
  uint64_t by = 0, rest = 0;
  const size_t first = std::min(steps.find_first_not_of('0'), steps.size());
  if (steps.size() - first > 18) {
    return fail(Code::kUnsupported, "a multipleOf of the schema has too many digits");
  }
  for (const char c : steps) by = by * 10 + static_cast<uint64_t>(c - '0');
  for (const char c : digits) {
    rest = (rest * 10 + static_cast<uint64_t>(c - '0')) % by;  // of 19 digits at most
  }
  return rest == 0 || no(place, "is no multiple", "multipleOf");
}

bool SchemaChecker::matches(std::string_view pattern, std::string_view text) {
  auto found = patterns_.find(pattern);
  if (found == patterns_.end()) {
    PatternText plain;
    plain.character = character_;
    Result<Expr> made = compile_pattern(expressions_, pattern, plain);
    if (!made.is_ok()) {
      return fail(made.status().code(), "a pattern of the schema " + made.status().text());
    }
    found = patterns_.emplace(std::string(pattern), made.value()).first;
  }
  Expr left = found->second;
  for (const char c : text) left = expressions_.after(left, static_cast<unsigned char>(c));
  if (expressions_.is_spent()) {
    return fail(Code::kDoesNotFit, "a pattern of the schema takes too much work");
  }
  return expressions_.node(left).accepts_empty;
}

bool SchemaChecker::count(const SchemaValue& schema, const char* name, size_t n,
                          const ValuePlace& place) {
  const SchemaValue* given = member(schema, name);
  if (given == nullptr) return true;
  uint32_t bound = 0;
  if (!read_count(*given, &bound)) {
    return fail(Code::kInvalidArgument, std::string(name) + " of the schema is no count");
  }
  if (name[1] == 'i') return n >= bound || no(place, "has too few", name);
  return n <= bound || no(place, "has too many", name);
}

bool SchemaChecker::string(const SchemaValue& schema, std::string_view text,
                           const ValuePlace& place) {
  const size_t n = n_characters(text);
  if (!count(schema, "minLength", n, place) || !count(schema, "maxLength", n, place)) return false;
  const SchemaValue* pattern = member(schema, "pattern");
  if (pattern != nullptr && pattern->is_string() && !matches(pattern->bytes(), text)) {
    return no(place, "does not match", "pattern");
  }
  return !broken_;
}

Status check_against_schema(std::string_view schema, std::string_view json) {
  jinja::Heap heap(uint64_t{64} << 20, uint64_t{1} << 27);
  SchemaValue root, value;
  SHARPI_TRY(jinja::parse_json(schema, "the schema", &heap, &root, jinja::JsonNumbers::kAsWritten));
  if (!is_object(root) && !root.is(Kind::kBool)) {
    return Status::error(Code::kInvalidArgument, "the schema is no object and no boolean");
  }
  SHARPI_TRY(jinja::parse_json(json, "the text", &heap, &value, jinja::JsonNumbers::kAsWritten));
  return SchemaChecker(&root).whole(value);
}

}  // namespace sharpi::grammar
