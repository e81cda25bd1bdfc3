// SPDX-License-Identifier: MIT
#include "model/spec_builder.h"

#include <algorithm>
#include <cinttypes>
#include <iterator>
#include <utility>

#include "gguf/gguf_parse.h"

namespace sharpi {
namespace {

std::string shape_text(const std::array<uint64_t, 4>& ne, uint32_t n_dims) {
  std::string text = "{";
  for (uint32_t d = 0; d < n_dims; ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(ne[d]);
  }
  return text + "}";
}

std::array<uint64_t, 4> expected_shape(const TensorRule& rule) {
  return {rule.n_in.n, rule.n_out.n, rule.n_experts.n, 1};
}

/// Trailing ones are not written: [n] and [n, 1] are the same tensor.
uint32_t significant_dims(const std::array<uint64_t, 4>& ne) {
  uint32_t n = 4;
  while (n > 1 && ne[n - 1] == 1) --n;
  return n;
}

std::string shape_text(const std::array<uint64_t, 4>& ne) {
  return shape_text(ne, significant_dims(ne));
}

}  // namespace

std::optional<uint64_t> block_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const size_t end = name.find('.');
  if (end == 0 || end == std::string_view::npos || end > 9) return std::nullopt;
  uint64_t block = 0;
  for (const char c : name.substr(0, end)) {
    if (c < '0' || c > '9') return std::nullopt;
    block = block * 10 + static_cast<uint64_t>(c - '0');
  }
  return block;
}

std::string layer_tensor_name(uint32_t block, std::string_view name) {
  std::string full = "blk." + std::to_string(block) + ".";
  full += name;
  return full;
}

SpecBuilder::SpecBuilder(const GgufFile& file, std::string arch)
    : file_(file), arch_(std::move(arch)) {}

std::string SpecBuilder::full_key(std::string_view key) const {
  std::string full = arch_ + ".";
  full += key;
  return full;
}

std::string SpecBuilder::expand(std::string_view origin) const {
  std::string text;
  for (const char c : origin) {
    if (c == '%') {
      text += arch_;
    } else {
      text += c;
    }
  }
  return text;
}

bool SpecBuilder::has_key(std::string_view key) const {
  return file_.find_value(full_key(key)) != nullptr;
}

Status SpecBuilder::absent(std::string_view key) const {
  return Status::error(Code::kFormat, "key %s is missing, %s needs it", full_key(key).c_str(),
                       arch_.c_str());
}

Result<std::optional<uint32_t>> SpecBuilder::find_uint(std::string_view key, Range range) const {
  const std::string full = full_key(key);
  SHARPI_TRY_ASSIGN(const std::optional<uint64_t> value, file_.get_uint(full));
  if (!value) return std::optional<uint32_t>{};
  if (*value < range.min || *value > range.max) {
    return Status::error(Code::kFormat, "%s is %" PRIu64 ", expected %" PRIu64 " to %" PRIu64,
                         full.c_str(), *value, range.min, range.max);
  }
  return std::optional<uint32_t>{static_cast<uint32_t>(*value)};
}

Result<uint32_t> SpecBuilder::require_uint(std::string_view key, Range range) const {
  SHARPI_TRY_ASSIGN(const std::optional<uint32_t> value, find_uint(key, range));
  if (!value) return absent(key);
  return *value;
}

Result<uint32_t> SpecBuilder::uint_or(std::string_view key, uint32_t fallback, Range range) const {
  SHARPI_TRY_ASSIGN(const std::optional<uint32_t> value, find_uint(key, range));
  return value.value_or(fallback);
}

Result<double> SpecBuilder::require_float(std::string_view key, double min, double max) const {
  const std::string full = full_key(key);
  SHARPI_TRY_ASSIGN(const std::optional<double> value, file_.get_float(full));
  if (!value) return absent(key);
  if (!(*value >= min && *value <= max)) {  // also false for NaN
    return Status::error(Code::kFormat, "%s is %g, expected %g to %g", full.c_str(), *value, min,
                         max);
  }
  return *value;
}

Result<double> SpecBuilder::float_or(std::string_view key, double fallback, double min,
                                     double max) const {
  if (!has_key(key)) return fallback;
  return require_float(key, min, max);
}

Result<std::vector<uint32_t>> SpecBuilder::per_block(std::string_view key, uint32_t n_blocks,
                                                     Range range) const {
  const std::string full = full_key(key);
  const GgufValue* value = file_.find_value(full);
  if (value == nullptr) return absent(key);
  if (value->type != GgufValueType::kArray) {
    SHARPI_TRY_ASSIGN(const uint32_t scalar, require_uint(key, range));
    return std::vector<uint32_t>(n_blocks, scalar);
  }
  if (value->count != n_blocks) {
    return Status::error(Code::kFormat, "%s has %" PRIu64 " elements, %s is %u", full.c_str(),
                         value->count, full_key("block_count").c_str(), n_blocks);
  }
  SHARPI_TRY_ASSIGN(const std::optional<std::vector<int64_t>> array, file_.get_int_array(full));
  std::vector<uint32_t> out;
  for (const int64_t v : *array) {
    if (v < 0 || static_cast<uint64_t>(v) < range.min || static_cast<uint64_t>(v) > range.max) {
      return Status::error(Code::kFormat,
                           "%s[%zu] is %" PRId64 ", expected %" PRIu64 " to %" PRIu64, full.c_str(),
                           out.size(), v, range.min, range.max);
    }
    out.push_back(static_cast<uint32_t>(v));
  }
  return out;
}

Result<std::vector<uint32_t>> SpecBuilder::per_block_or(std::string_view key, uint32_t n_blocks,
                                                        const std::vector<uint32_t>& fallback,
                                                        Range range) const {
  if (!has_key(key)) return fallback;
  return per_block(key, n_blocks, range);
}

Result<std::vector<bool>> SpecBuilder::flags_per_block(std::string_view key,
                                                       uint32_t n_blocks) const {
  const GgufValue* value = file_.find_value(full_key(key));
  if (value != nullptr && value->type != GgufValueType::kArray) {
    return Status::error(Code::kFormat, "%s is a single value, expected an array of %u flags",
                         full_key(key).c_str(), n_blocks);
  }
  SHARPI_TRY_ASSIGN(const std::vector<uint32_t> values,
                    per_block(key, n_blocks, Range{.min = 0, .max = 1}));
  return std::vector<bool>(values.begin(), values.end());
}

bool SpecBuilder::has_layer_tensor(uint32_t block, std::string_view name) const {
  return has_tensor(layer_tensor_name(block, name));
}

Status SpecBuilder::missing(const TensorRule& rule, const std::string& name) const {
  const std::string shape = shape_text(expected_shape(rule));
  if (block_of(name)) {
    return Status::error(
        Code::kFormat, "tensor \"%s\" is missing, expected %s with shape %s because %s is %u",
        name.c_str(), arch_.c_str(), shape.c_str(), full_key("block_count").c_str(), n_blocks_);
  }
  return Status::error(Code::kFormat, "tensor \"%s\" is missing, %s needs it with shape %s",
                       name.c_str(), arch_.c_str(), shape.c_str());
}

Status SpecBuilder::load_one(const TensorRule& rule, const std::string& name) {
  const GgufTensor* t = file_.find_tensor(name);
  if (t == nullptr) {
    *rule.out = {};
    return rule.optional ? Status::ok() : missing(rule, name);
  }
  SHARPI_TRY(check(rule, *t, name));
  *rule.out = TensorRef{t, rule.n_in.n, rule.n_out.n, rule.n_experts.n};
  used_.insert(t);
  return Status::ok();
}

Result<const GgufTensor*> SpecBuilder::find_in_layer(uint32_t block, const TensorRule& rule) const {
  const std::string name = layer_tensor_name(block, rule.name);
  const GgufTensor* t = file_.find_tensor(name);
  if (t != nullptr) SHARPI_TRY(check(rule, *t, name));
  return t;
}

Status SpecBuilder::check(const TensorRule& rule, const GgufTensor& tensor,
                          const std::string& name) const {
  const GgufTensor* t = &tensor;
  const std::array<uint64_t, 4> expected = expected_shape(rule);
  const Extent* const extents[] = {&rule.n_in, &rule.n_out, &rule.n_experts};
  for (uint32_t d = 0; d < 4; ++d) {
    if (t->ne[d] == expected[d]) continue;
    const std::string origin = d < 3 ? expand(extents[d]->origin) : std::string();
    return Status::error(
        Code::kFormat, "tensor \"%s\" has shape %s, expected %s: dimension %u is %" PRIu64 "%s%s",
        name.c_str(), shape_text(t->ne, std::clamp(t->n_dims, 1u, 4u)).c_str(),
        shape_text(expected).c_str(), d, expected[d], origin.empty() ? "" : " by ", origin.c_str());
  }
  const GgmlTypeTraits& traits = ggml_traits(t->type);
  if (rule.kind == WeightKind::kF32 && t->type != GgmlType::kF32) {
    return Status::error(Code::kUnsupported,
                         "tensor \"%s\" has type %s, only f32 is supported for it", name.c_str(),
                         traits.name);
  }
  if (!traits.computable) {
    return Status::error(Code::kUnsupported, "tensor \"%s\" has type %s, which is not supported",
                         name.c_str(), traits.name);
  }
  return Status::ok();
}

Status SpecBuilder::load(std::initializer_list<TensorRule> rules) {
  for (const TensorRule& rule : rules) SHARPI_TRY(load_one(rule, rule.name));
  return Status::ok();
}

Status SpecBuilder::load_layer(uint32_t block, std::initializer_list<TensorRule> rules) {
  for (const TensorRule& rule : rules) {
    SHARPI_TRY(load_one(rule, layer_tensor_name(block, rule.name)));
  }
  return Status::ok();
}

void SpecBuilder::leave_out(uint32_t block, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const GgufTensor* t = file_.find_tensor(layer_tensor_name(block, name))) used_.insert(t);
  }
}

namespace {

/// What files that hold more than a text model call the tensors of the rest.
struct Tower {
  std::string_view prefix;
  const char* what;
};
constexpr Tower kTowers[] = {
    {"v.", "a vision tower"}, {"a.", "an audio tower"}, {"mm.", "a projector"}};

/// Counts tensors of towers, by their prefixes.
class Towers {
 public:
  bool take(const GgufTensor& t) {
    for (size_t i = 0; i < std::size(kTowers); ++i) {
      if (!t.name.starts_with(kTowers[i].prefix)) continue;
      n_[i] += 1;
      return true;
    }
    return false;
  }
  std::string text() const {
    std::string out;
    for (size_t i = 0; i < std::size(kTowers); ++i) {
      if (n_[i] == 0) continue;
      out += (out.empty() ? "" : ", ") + std::string(kTowers[i].what) + " (" +
             std::to_string(n_[i]) + (n_[i] == 1 ? " tensor " : " tensors ") +
             std::string(kTowers[i].prefix) + "*)";
    }
    return out;
  }

 private:
  size_t n_[std::size(kTowers)] = {};
};

}  // namespace

Result<std::string> SpecBuilder::check_leftovers() const {
  constexpr size_t kNamed = 4;
  size_t n_left = 0;
  std::string names;
  Towers towers;
  for (const GgufTensor& t : file_.tensors()) {
    if (used_.contains(&t) || towers.take(t)) continue;
    const std::optional<uint64_t> block = block_of(t.name);
    if (block && *block >= n_blocks_) {
      return Status::error(Code::kFormat, "tensor %s with shape %s lies beyond %s, which is %u",
                           gguf_quoted(t.name).c_str(), shape_text(t.ne).c_str(),
                           full_key("block_count").c_str(), n_blocks_);
    }
    if (++n_left > kNamed) continue;
    names += (names.empty() ? "" : ", ") + gguf_quoted(t.name);
  }
  if (n_left == 0) return towers.text();
  if (n_left > kNamed) names += " and " + std::to_string(n_left - kNamed) + " more";
  return Status::error(Code::kUnsupported, "%s %s not supported for %s, which has no use for %s",
                       n_left == 1 ? "tensor" : "tensors",
                       (names + (n_left == 1 ? " is" : " are")).c_str(), arch_.c_str(),
                       n_left == 1 ? "it" : "them");
}

}  // namespace sharpi
