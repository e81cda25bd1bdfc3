// SPDX-License-Identifier: MIT
#include "support/gguf_writer.h"

#include <cmath>
#include <cstdio>
#include <random>

#include "base/checked.h"
#include "base/half.h"

namespace sharpi::test {
namespace {

/// Where a block keeps its half-precision scale and, if it has one, its minimum (-1: none).
/// `balance` is the ratio minimum / scale that centres the values on zero.
struct ScalePlace {
  int scale, minimum;
  double balance;
};

ScalePlace scale_place(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_1:
      return {0, 2, -7.5};
    case GgmlType::kQ5_1:
      return {0, 2, -15.5};
    case GgmlType::kQ2_K:
      return {80, 82, 1.5};
    case GgmlType::kQ3_K:
      return {108, -1, 0};
    case GgmlType::kQ4_K:
      return {0, 2, 7.5};
    case GgmlType::kQ5_K:
      return {0, 2, 15.5};
    case GgmlType::kQ6_K:
      return {208, -1, 0};
    default:
      return {0, -1, 0};  // Q4_0, Q5_0, Q8_0, IQ4_NL, IQ4_XS
  }
}

void set_scales(Bytes& rows, GgmlType type, double scale) {
  const ScalePlace place = scale_place(type);
  const GgmlTypeTraits& traits = ggml_traits(type);
  const uint16_t d = f16_from_f32(static_cast<float>(scale));
  const uint16_t m = f16_from_f32(static_cast<float>(scale * place.balance));
  for (uint64_t at = 0; at < rows.size(); at += traits.block_bytes) {
    patch(rows, at + static_cast<uint64_t>(place.scale), d);
    if (place.minimum >= 0) patch(rows, at + static_cast<uint64_t>(place.minimum), m);
  }
}

double deviation_of(GgmlType type, const Bytes& rows, uint64_t n) {
  std::vector<float> values(n);
  dequantize_row(type, rows.data(), values.data(), n);
  double squares = 0;
  for (const float v : values) squares += double{v} * double{v};
  return std::sqrt(squares / static_cast<double>(n));
}

/// Values of the plain float types, drawn one by one.
Bytes random_floats(GgmlType type, uint64_t n, std::mt19937_64& random, double deviation) {
  std::normal_distribution<double> normal(0.0, deviation);
  Bytes out;
  for (uint64_t i = 0; i < n; ++i) {
    const auto v = static_cast<float>(normal(random));
    if (type == GgmlType::kF32) append(out, v);
    if (type == GgmlType::kF16) append(out, f16_from_f32(v));
    if (type == GgmlType::kBF16) append(out, bf16_from_f32(v));
  }
  return out;
}

}  // namespace

void append_bytes(Bytes& out, const void* data, uint64_t bytes) {
  if (bytes == 0) return;
  const uint64_t at = out.size();
  out.resize(at + bytes);
  std::memcpy(out.data() + at, data, bytes);
}

void append_string(Bytes& out, std::string_view text) {
  append(out, uint64_t{text.size()});
  append_bytes(out, text.data(), text.size());
}

GgufWriter& GgufWriter::raw_value(std::string_view key, int32_t type_id, const Bytes& payload) {
  Bytes entry;
  append_string(entry, key);
  append(entry, type_id);
  append_bytes(entry, payload.data(), payload.size());
  values_.push_back(std::move(entry));
  return *this;
}

GgufWriter& GgufWriter::alignment(uint32_t bytes) {
  alignment_ = bytes;
  return value("general.alignment", bytes);
}

GgufWriter& GgufWriter::split(uint16_t no, uint16_t count, int32_t n_tensors) {
  return value("split.no", no).value("split.count", count).value("split.tensors.count", n_tensors);
}

GgufWriter& GgufWriter::tensor(std::string_view name, GgmlType type, std::vector<uint64_t> ne,
                               Bytes data) {
  TensorEntry entry;
  entry.name = name;
  entry.type_id = static_cast<uint32_t>(type);
  entry.ne = std::move(ne);
  entry.data = std::move(data);
  tensors_.push_back(std::move(entry));
  return *this;
}

GgufWriter& GgufWriter::tensor_f32(std::string_view name, std::vector<uint64_t> ne,
                                   const std::vector<float>& data) {
  Bytes bytes;
  for (const float v : data) append(bytes, v);
  return tensor(name, GgmlType::kF32, std::move(ne), std::move(bytes));
}

GgufWriter& GgufWriter::tensor_random(std::string_view name, GgmlType type,
                                      std::vector<uint64_t> ne, uint64_t seed, double deviation) {
  uint64_t n = 1;
  for (const uint64_t d : ne) n *= d;
  return tensor(name, type, std::move(ne), random_rows(type, n, seed, deviation));
}

Bytes GgufWriter::bytes(GgufLayout* layout) const {
  GgufLayout places;
  Bytes out;
  for (const char c : {'G', 'G', 'U', 'F'}) append(out, c);
  append(out, version_);
  append(out, forced_n_tensors.value_or(tensors_.size()));
  append(out, forced_n_values.value_or(values_.size()));
  for (const Bytes& entry : values_) {
    places.values.push_back(out.size());
    append_bytes(out, entry.data(), entry.size());
  }
  uint64_t offset = 0;
  for (const TensorEntry& t : tensors_) {
    places.tensors.push_back(out.size());
    append_string(out, t.name);
    append(out, t.forced_n_dims.value_or(static_cast<uint32_t>(t.ne.size())));
    for (const uint64_t d : t.ne) append(out, d);
    append(out, t.type_id);
    append(out, t.forced_offset.value_or(offset));
    offset += round_up(t.data.size(), alignment_);
  }
  places.table_end = out.size();
  if (!tensors_.empty()) out.resize(round_up(out.size(), alignment_));
  places.data = out.size();
  for (const TensorEntry& t : tensors_) {
    append_bytes(out, t.data.data(), t.data.size());
    out.resize(places.data + round_up(out.size() - places.data, alignment_));
  }
  places.end = out.size();
  if (layout != nullptr) *layout = places;
  return out;
}

bool GgufWriter::write(const std::string& path) const {
  const Bytes all = bytes();
  std::FILE* f = std::fopen(path.c_str(), "wb");
  if (f == nullptr) return false;
  const bool written = std::fwrite(all.data(), 1, all.size(), f) == all.size();
  return std::fclose(f) == 0 && written;
}

Bytes random_rows(GgmlType type, uint64_t n, uint64_t seed, double deviation) {
  std::mt19937_64 random(seed);
  const GgmlTypeTraits& traits = ggml_traits(type);
  if (traits.block_elements == 1) return random_floats(type, n, random, deviation);
  Bytes rows(n / traits.block_elements * traits.block_bytes);
  for (std::byte& b : rows) b = static_cast<std::byte>(random());
  if (type == GgmlType::kMXFP4) {
    constexpr double kCodeDeviation = 5.9;  // root mean square of the sixteen codes
    const auto exponent =
        static_cast<uint8_t>(128 + std::lround(std::log2(deviation / kCodeDeviation)));
    for (uint64_t at = 0; at < rows.size(); at += traits.block_bytes) {
      rows[at] = static_cast<std::byte>(exponent);
    }
    return rows;
  }
  set_scales(rows, type, 1.0);
  set_scales(rows, type, deviation / deviation_of(type, rows, n));
  return rows;
}

std::string split_path(const std::string& prefix, uint32_t i_part, uint32_t n_parts) {
  char suffix[64];
  std::snprintf(suffix, sizeof suffix, "-%05u-of-%05u.gguf", i_part + 1, n_parts);
  return prefix + suffix;
}

}  // namespace sharpi::test
