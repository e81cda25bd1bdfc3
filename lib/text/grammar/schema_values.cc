// SPDX-License-Identifier: MIT
// Types, listed values, numbers and strings.
#include <algorithm>
#include <cstring>

#include "text/grammar/formats.h"
#include "text/grammar/schema_compiler.h"

namespace sharpi::grammar {
namespace {

constexpr uint32_t kMaxDivisor = 1u << 24;

constexpr std::string_view kObjectWords[] = {
    "properties",        "required",         "additionalProperties", "patternProperties",
    "propertyNames",     "minProperties",    "maxProperties",        "unevaluatedProperties",
    "dependentRequired", "dependentSchemas", "dependencies"};
constexpr std::string_view kArrayWords[] = {"items",           "prefixItems", "minItems",
                                            "maxItems",        "uniqueItems", "additionalItems",
                                            "unevaluatedItems"};
constexpr std::string_view kStringWords[] = {"minLength", "maxLength", "pattern", "format"};
constexpr std::string_view kNumberWords[] = {"minimum", "maximum", "exclusiveMinimum",
                                             "exclusiveMaximum", "multipleOf"};

template <size_t n>
bool says_one_of(const SchemaParts& parts, const std::string_view (&words)[n]) {
  return std::any_of(parts.begin(), parts.end(), [&](const SchemaPart& part) {
    return std::any_of(std::begin(words), std::end(words), [&](std::string_view word) {
      return member(*part.schema, word) != nullptr;
    });
  });
}

// 0.1, 0.01, ...: how many digits behind the point; 0: none of these.
uint32_t decimal_places(const Decimal& number) {
  if (!number.whole.empty() || number.fraction.empty()) return 0;
  const bool is_power = number.fraction.back() == '1' &&
                        number.fraction.find_first_not_of('0') == number.fraction.size() - 1;
  return is_power ? static_cast<uint32_t>(number.fraction.size()) : 0;
}

}  // namespace

bool SchemaCompiler::types_of_part(const SchemaPart& part, Types* types) {
  static constexpr std::pair<std::string_view, Types> kNames[] = {
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kNumber},
      {"string", kString}, {"object", kObject},   {"array", kArray}};
  const SchemaValue* given = member(*part.schema, "type");
  if (given == nullptr) return false;
  *types = 0;
  const auto list = is_list(*given) ? given->list->items : std::vector<SchemaValue>{*given};
  for (const SchemaValue& name : list) {
    const auto* found = std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& known) {
      return name.is_string() && known.first == name.bytes();
    });
    if (found == std::end(kNames)) {
      refuse(part.where + ".type", "is not a type or a list of types");
      return true;
    }
    *types |= found->second;
  }
  const SchemaValue* nullable = member(*part.schema, "nullable");
  if (nullable != nullptr && nullable->is(jinja::Kind::kBool) && nullable->boolean) *types |= kNull;
  return true;
}

// Where no type is said, keywords that are about one type mean it.
SchemaCompiler::Types SchemaCompiler::types_of(const SchemaParts& parts) {
  Types out = kAllTypes, one = 0;
  bool said = false;
  for (const SchemaPart& part : parts) {
    if (types_of_part(part, &one)) {
      out &= one;
      said = true;
    }
    said |= member(*part.schema, "enum") != nullptr || member(*part.schema, "const") != nullptr;
  }
  if (!parts.empty() && parts[0].call) return out & kObject;
  if (said) return out;
  Types meant = 0;
  if (says_one_of(parts, kObjectWords)) meant |= kObject;
  if (says_one_of(parts, kArrayWords)) meant |= kArray;
  if (says_one_of(parts, kStringWords)) meant |= kString;
  if (says_one_of(parts, kNumberWords)) meant |= kNumber;
  return meant == 0 ? out : meant;
}

bool SchemaCompiler::matches(Expr regular, std::string_view text) {
  for (const char c : text) regular = e_.after(regular, static_cast<unsigned char>(c));
  return e_.node(regular).accepts_empty;
}

bool SchemaCompiler::allows(const SchemaParts& parts, Types types, const SchemaValue& value) {
  using jinja::Kind;
  Decimal number;
  const bool is_number = value.is(Kind::kInt) || value.is(Kind::kFloat) || value.is(Kind::kNumeral);
  if (is_number && !read_decimal(scalar_text(value), &number)) return false;
  const Types type = value.is(Kind::kNone)   ? kNull
                     : value.is(Kind::kBool) ? kBoolean
                     : value.is_string()     ? kString
                     : is_list(value)        ? kArray
                     : is_object(value)      ? kObject
                     : number.is_integer()   ? kInteger
                                             : kFraction;
  if ((types & type) == 0) return false;
  for (const SchemaPart& part : parts) {
    const SchemaValue *constant = member(*part.schema, "const"),
                      *list = member(*part.schema, "enum");
    if (constant != nullptr && !same_json(*constant, value)) return false;
    if (list == nullptr) continue;
    if (!is_list(*list)) return refuse(part.where + ".enum", "is not a list of values"), false;
    const auto& items = list->list->items;
    const bool found = std::any_of(items.begin(), items.end(), [&](const SchemaValue& item) {
      return e_.spend(1) && same_json(item, value);
    });
    if (!found) return false;
  }
  if (type == kString && says_one_of(parts, kStringWords)) {
    return matches(string_terminal(parts), texts_of(parts).quoted(value.bytes()));
  }
  if (is_number && says_one_of(parts, kNumberWords)) {
    NumberRange range;
    return read_range(parts, kNumber, &range) && range.contains(number);
  }
  const bool has_more = (type == kObject && says_one_of(parts, kObjectWords)) ||
                        (type == kArray && says_one_of(parts, kArrayWords));
  if (has_more) unenforced(parts[0].where, "lists values beside keywords that describe them");
  return true;
}

Expr SchemaCompiler::values(const SchemaParts& parts, Types types) {
  JsonTexts& texts = texts_of(parts);
  if (parts[0].call && json_.tagged() != nullptr) {
    return refuse(parts[0].where, "lists whole arguments, which this model's calls cannot keep to");
  }
  std::vector<SchemaValue> list;
  for (const SchemaPart& part : parts) {
    const SchemaValue* given = member(*part.schema, "const");
    if (given != nullptr) {
      list.assign(1, *given);
      break;
    }
    given = member(*part.schema, "enum");
    if (given == nullptr || !list.empty()) continue;
    if (!is_list(*given) || given->list->items.empty()) {
      return refuse(part.where + ".enum", "is not a list of values");
    }
    list = given->list->items;
  }
  std::vector<std::string> scalars;
  std::vector<Expr> choices;
  // A list of one schema is the list itself, so looking each value up in it would find it.
  const auto n_lists = std::count_if(parts.begin(), parts.end(), [](const SchemaPart& part) {
    return member(*part.schema, "enum") != nullptr;
  });
  const bool fixed = std::any_of(parts.begin(), parts.end(), [](const SchemaPart& part) {
    return member(*part.schema, "const") != nullptr;
  });
  const bool only = n_lists == 1 && !fixed && !says_one_of(parts, kStringWords) &&
                    !says_one_of(parts, kNumberWords) && !says_one_of(parts, kObjectWords) &&
                    !says_one_of(parts, kArrayWords);
  for (const SchemaValue& value : list) {
    if (!ok() || !e_.spend(1)) return Expressions::kNothing;
    if (!allows(only ? SchemaParts{} : parts, types, value)) continue;
    if (is_list(value) || is_object(value) || !texts.has_one_spelling(value)) {
      choices.push_back(texts.literal(value, parts[0].call));
    } else {
      scalars.push_back(texts.scalar(value));
    }
  }
  choices.push_back(e_.texts({scalars.begin(), scalars.end()}));
  return e_.either(std::move(choices));
}

void SchemaCompiler::read_bounds(const SchemaPart& part, NumberRange* out) {
  struct Word {
    const char* name;
    bool low, open;
  };
  static constexpr Word kWords[] = {{"minimum", true, false},
                                    {"exclusiveMinimum", true, true},
                                    {"maximum", false, false},
                                    {"exclusiveMaximum", false, true}};
  for (const Word& word : kWords) {
    const SchemaValue* given = member(*part.schema, word.name);
    if (given == nullptr) continue;
    NumberRange::Bound bound;
    bound.open = word.open;
    if (given->is(jinja::Kind::kBool) && word.open) {  // as drafts before 6 have it
      const SchemaValue* value = member(*part.schema, word.low ? "minimum" : "maximum");
      if (!given->boolean || value == nullptr) continue;
      given = value;
    }
    const bool is_number = given->is(jinja::Kind::kInt) || given->is(jinja::Kind::kFloat) ||
                           given->is(jinja::Kind::kNumeral);
    if (!is_number || !read_decimal(scalar_text(*given), &bound.value)) {
      refuse(part.where + "." + word.name, "is not a number");
      return;
    }
    word.low ? out->at_least(bound) : out->at_most(bound);
  }
}

void SchemaCompiler::read_multiple(const SchemaPart& part, NumberRange* out) {
  const SchemaValue* given = member(*part.schema, "multipleOf");
  if (given == nullptr) return;
  const std::string where = part.where + ".multipleOf";
  Decimal value;
  if (given->is_string() || !read_decimal(scalar_text(*given), &value) || value.negative ||
      value.is_zero()) {
    refuse(where, "is not a number above 0");
    return;
  }
  if (const uint32_t places = decimal_places(value); places != 0) {
    out->max_fraction = std::min(out->max_fraction, places);
    return;
  }
  if (!value.is_integer() || value.whole.size() > 8 ||
      std::strtoul(value.whole.c_str(), nullptr, 10) > kMaxDivisor) {
    unenforced(where, "is only supported for whole numbers up to 16777216, 0.1, 0.01 and so on");
    return;
  }
  const auto divisor = static_cast<uint32_t>(std::strtoul(value.whole.c_str(), nullptr, 10));
  uint64_t a = out->divisor, b = divisor;
  while (b != 0) std::swap(a %= b, b);
  const uint64_t common = out->divisor / a * divisor;
  if (common > kMaxDivisor) {
    refuse(where, "gives too large a multiple together with another one");
    return;
  }
  out->divisor = static_cast<uint32_t>(common);
  out->integer = true;
}

bool SchemaCompiler::read_range(const SchemaParts& parts, Types types, NumberRange* out) {
  out->integer = (types & kFraction) == 0;
  for (const SchemaPart& part : parts) {
    read_bounds(part, out);
    read_multiple(part, out);
  }
  return ok();
}

Expr SchemaCompiler::number(const SchemaParts& parts, Types types) {
  NumberRange range;
  if (!read_range(parts, types, &range)) return Expressions::kNothing;
  if (range.is_free()) return range.integer ? json_.integer() : json_.number();
  return numbers_in(e_, range);
}

void SchemaCompiler::count(const SchemaPart& part, const char* name, uint32_t* out) {
  const SchemaValue* given = member(*part.schema, name);
  if (given == nullptr) return;
  uint32_t value = 0;
  if (!read_count(*given, &value)) {
    refuse(part.where + "." + name, "is not a whole number from 0 to 2147483647");
    return;
  }
  const bool is_least = std::strncmp(name, "min", 3) == 0;
  *out = is_least ? std::max(*out, value) : std::min(*out, value);
}

Expr SchemaCompiler::pattern(std::string_view pattern, const std::string& where, JsonTexts& texts) {
  Result<Expr> made = compile_pattern(e_, pattern, texts.pattern_text());
  if (made.is_ok()) return made.value();
  if (made.status().code() != Code::kUnsupported) return refuse(where, made.status().text());
  unenforced(where, made.status().text());
  return texts.plain_string(0, Expressions::kAnyNumber);
}

Expr SchemaCompiler::string_terminal(const SchemaParts& parts) {
  JsonTexts& texts = texts_of(parts);
  uint32_t low = 0, high = Expressions::kAnyNumber;
  std::vector<Expr> all;
  for (const SchemaPart& part : parts) {
    count(part, "minLength", &low);
    count(part, "maxLength", &high);
    if (const SchemaValue* given = member(*part.schema, "pattern")) {
      const std::string where = part.where + ".pattern";
      if (!given->is_string()) return refuse(where, "is not a text");
      all.push_back(pattern(given->bytes(), where, texts));
    }
    const SchemaValue* format = member(*part.schema, "format");
    if (format == nullptr || !format->is_string()) continue;
    if (const char* known = pattern_of_format(format->bytes())) {
      all.push_back(pattern(known, part.where + ".format", texts));
    } else {  // an annotation, says JSON Schema
      note(part.where + ".format is one that is not known, and any string");
    }
  }
  if (low > high) return Expressions::kNothing;
  if (all.empty()) return texts.string_of_length(low, high);
  const bool counted = low != 0 || high != Expressions::kAnyNumber;
  if (counted || texts.has_marks_around_strings()) all.push_back(texts.plain_string(low, high));
  return e_.terminal(e_.both(std::move(all)));
}

Expr SchemaCompiler::string(const SchemaParts& parts) {
  return string_terminal(parts);
}

}  // namespace sharpi::grammar
