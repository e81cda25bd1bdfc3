// SPDX-License-Identifier: MIT
// Typed access to the metadata of an open file. The parser has checked every length, so the data
// of a value may be walked without further bounds.
#include <charconv>
#include <cinttypes>

#include "gguf/gguf_file.h"
#include "gguf/gguf_parse.h"
#include "gguf/gguf_reader.h"

namespace sharpi {
namespace {

enum class NumberKind { kNone, kSigned, kUnsigned, kBool, kFloat, kDouble };

/// A number as it is stored; the member that `kind` names is valid.
struct Number {
  NumberKind kind = NumberKind::kNone;
  int64_t i = 0;
  uint64_t u = 0;  // also of a bool
  double f = 0;    // also of a float
};

Number signed_number(int64_t v) {
  return {NumberKind::kSigned, v, 0, 0};
}
Number unsigned_number(uint64_t v) {
  return {NumberKind::kUnsigned, 0, v, 0};
}

Number number_at(GgufValueType type, const std::byte* data, uint64_t index) {
  const std::byte* p = data + index * gguf_value_bytes(type);
  switch (type) {
    case GgufValueType::kU8:
      return unsigned_number(load_unaligned<uint8_t>(p));
    case GgufValueType::kI8:
      return signed_number(load_unaligned<int8_t>(p));
    case GgufValueType::kU16:
      return unsigned_number(load_unaligned<uint16_t>(p));
    case GgufValueType::kI16:
      return signed_number(load_unaligned<int16_t>(p));
    case GgufValueType::kU32:
      return unsigned_number(load_unaligned<uint32_t>(p));
    case GgufValueType::kI32:
      return signed_number(load_unaligned<int32_t>(p));
    case GgufValueType::kU64:
      return unsigned_number(load_unaligned<uint64_t>(p));
    case GgufValueType::kI64:
      return signed_number(load_unaligned<int64_t>(p));
    case GgufValueType::kBool:
      return {NumberKind::kBool, 0, load_unaligned<uint8_t>(p), 0};
    case GgufValueType::kF32:
      return {NumberKind::kFloat, 0, 0, double{load_unaligned<float>(p)}};
    case GgufValueType::kF64:
      return {NumberKind::kDouble, 0, 0, load_unaligned<double>(p)};
    case GgufValueType::kString:
    case GgufValueType::kArray:
      break;
  }
  return {};
}

/// The string whose length field is at *p; moves *p past it.
std::string_view next_string(const std::byte** p) {
  const auto length = load_unaligned<uint64_t>(*p);
  const auto* text = reinterpret_cast<const char*>(*p + sizeof length);
  *p += sizeof length + length;
  return {text, length};
}

template <class T>
void append_number(std::string* out, T value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  out->append(text, end);
}

void append_text(std::string* out, const Number& n) {
  switch (n.kind) {
    case NumberKind::kSigned:
      append_number(out, n.i);
      break;
    case NumberKind::kUnsigned:
      append_number(out, n.u);
      break;
    case NumberKind::kBool:
      *out += n.u != 0 ? "true" : "false";
      break;
    case NumberKind::kFloat:
      append_number(out, static_cast<float>(n.f));
      break;
    case NumberKind::kDouble:
      append_number(out, n.f);
      break;
    case NumberKind::kNone:
      break;
  }
}

Status unsuited(const GgufValue& value, const char* expected) {
  return Status::error(Code::kFormat, "metadata %s is %s, expected %s",
                       gguf_quoted(value.key).c_str(), gguf_type_name(value).c_str(), expected);
}

/// Right type, wrong value: also says which element and what it is.
Status out_of_range(const GgufValue& value, uint64_t index, const char* expected) {
  std::string found;
  append_text(&found, number_at(value.element, value.data, index));
  std::string where;
  if (value.type == GgufValueType::kArray) where = "element " + std::to_string(index) + " of ";
  return Status::error(Code::kFormat, "%smetadata %s is %s (%s), expected %s", where.c_str(),
                       gguf_quoted(value.key).c_str(), found.c_str(), gguf_type_name(value.element),
                       expected);
}

bool is_integer(GgufValueType t) {
  return t != GgufValueType::kBool && t != GgufValueType::kF32 && t != GgufValueType::kF64 &&
         t != GgufValueType::kString && t != GgufValueType::kArray;
}
bool is_real(GgufValueType t) {
  return t == GgufValueType::kF32 || t == GgufValueType::kF64;
}

double as_double(const Number& n) {
  if (n.kind == NumberKind::kSigned) return static_cast<double>(n.i);
  if (n.kind == NumberKind::kUnsigned) return static_cast<double>(n.u);
  return n.f;
}

}  // namespace

Result<uint64_t> gguf_uint(const GgufValue& value) {
  constexpr const char* kExpected = "an unsigned integer";
  if (!is_integer(value.type)) return unsuited(value, kExpected);
  const Number n = number_at(value.type, value.data, 0);
  if (n.kind == NumberKind::kUnsigned) return n.u;
  if (n.i < 0) return out_of_range(value, 0, kExpected);
  return static_cast<uint64_t>(n.i);
}

Result<std::optional<uint64_t>> GgufFile::get_uint(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<uint64_t>();
  SHARPI_TRY_ASSIGN(const uint64_t number, gguf_uint(*value));
  return std::optional<uint64_t>(number);
}

Result<std::optional<double>> GgufFile::get_float(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<double>();
  if (!is_integer(value->type) && !is_real(value->type)) return unsuited(*value, "a number");
  return std::optional<double>(as_double(number_at(value->type, value->data, 0)));
}

Result<std::optional<bool>> GgufFile::get_bool(std::string_view key) const {
  constexpr const char* kExpected = "a bool or 0 or 1";
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<bool>();
  if (!is_integer(value->type) && value->type != GgufValueType::kBool) {
    return unsuited(*value, kExpected);
  }
  const Number n = number_at(value->type, value->data, 0);
  const uint64_t number = n.kind == NumberKind::kSigned ? static_cast<uint64_t>(n.i) : n.u;
  if (number > 1) return out_of_range(*value, 0, kExpected);
  return std::optional<bool>(number == 1);
}

Result<std::optional<std::string_view>> GgufFile::get_string(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<std::string_view>();
  if (value->type != GgufValueType::kString) return unsuited(*value, "a string");
  const std::byte* p = value->data;
  return std::optional<std::string_view>(next_string(&p));
}

Result<std::optional<std::vector<int64_t>>> GgufFile::get_int_array(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<std::vector<int64_t>>();
  if (!is_integer(value->element) && value->element != GgufValueType::kBool) {
    return unsuited(*value, "an array of integers or bools");
  }
  std::vector<int64_t> numbers(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const Number n = number_at(value->element, value->data, i);
    if (n.kind == NumberKind::kSigned) {
      numbers[i] = n.i;
    } else if (n.u <= INT64_MAX) {
      numbers[i] = static_cast<int64_t>(n.u);
    } else {
      return out_of_range(*value, i, "an integer of 63 bits");
    }
  }
  return std::optional<std::vector<int64_t>>(std::move(numbers));
}

Result<std::optional<std::vector<float>>> GgufFile::get_float_array(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<std::vector<float>>();
  if (!is_integer(value->element) && !is_real(value->element)) {
    return unsuited(*value, "an array of numbers");
  }
  std::vector<float> numbers(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    numbers[i] = static_cast<float>(as_double(number_at(value->element, value->data, i)));
  }
  return std::optional<std::vector<float>>(std::move(numbers));
}

Result<std::optional<std::vector<std::string_view>>> GgufFile::get_string_array(
    std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<std::vector<std::string_view>>();
  if (value->type != GgufValueType::kArray || value->element != GgufValueType::kString) {
    return unsuited(*value, "an array of strings");
  }
  std::vector<std::string_view> strings(value->count);
  const std::byte* p = value->data;
  for (std::string_view& s : strings) s = next_string(&p);
  return std::optional<std::vector<std::string_view>>(std::move(strings));
}

std::string GgufFile::value_text(const GgufValue& value) const {
  std::string text;
  const bool is_array = value.type == GgufValueType::kArray;
  const std::byte* p = value.data;
  if (is_array) text += '[';
  for (uint64_t i = 0; i < value.count; ++i) {
    if (i != 0) text += ", ";
    if (value.element == GgufValueType::kString) {
      text += next_string(&p);
    } else {
      append_text(&text, number_at(value.element, value.data, i));
    }
  }
  if (is_array) text += ']';
  return text;
}

}  // namespace sharpi
